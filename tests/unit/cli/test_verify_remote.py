"""`chronik verify --remote` finds damage of every kind in an object store, and mends what it can (O03)."""

from __future__ import annotations

import asyncio
import errno
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest
from crc32c import crc32c
from typer.testing import CliRunner

from chronik.cli import build, verify_put_back
from chronik.cli.object_thread import ObjectThread
from chronik.cli.offline_metadata import cluster_state
from chronik.cli.verify import VerifyRefused
from chronik.cli.verify_findings import ASIDE, FileFinding
from chronik.cli.verify_put_back import PutBack
from chronik.cli.verify_remote import RemoteCheck, remote_partitions, without_hole
from chronik.cli.verify_segment import check_segment
from chronik.metadata import commands as c
from chronik.metadata.commands import encode_entry
from chronik.metadata.state import ClusterState
from chronik.objects.door import ObjectDoor
from chronik.objects.local import LocalObjects
from chronik.raft.entries import EntryKind
from chronik.records.batch import headers
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.storage import checkpoint
from chronik.storage.index import OFFSET_ENTRY
from chronik.tiering.manifest import RemoteSegment, SegmentFooter, encode
from tests.segments import flip_bit
from tests.unit.tiering.support import TOPIC, TOPIC_ID, objects_in, tiered

COUNT = 60


class Stored(NamedTuple):
    folder: Path
    state: ClusterState

    @property
    def segments(self) -> list[Path]:
        found = objects_in(self.folder, "segment")
        return sorted(found, key=lambda path: int(path.name.split("-")[1]))

    @property
    def manifest(self) -> Path:
        (partition,) = remote_partitions(self.state)
        assert partition.remote is not None
        return next(
            path for path in objects_in(self.folder, "manifest") if path.name == partition.remote.manifest
        )

    @property
    def footer_at(self) -> int:
        """Where the batches of the second segment end."""
        return sum(header.size_bytes for _, header in headers(self.segments[1].read_bytes()))

    def check(self, *, repair: bool = False) -> list[FileFinding]:
        door = ObjectDoor(LocalObjects(self.folder / "objects"), rng=random.Random(1), timeout_s=5)
        objects = ObjectThread(door)
        try:
            check = RemoteCheck(
                objects,
                self.state,
                lambda _: None,
                PutBack(objects, [self.folder / "data"]) if repair else None,
            )
            check.run()
            return check.findings
        finally:
            objects.close()


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stored:
    """Segments in the store, all of which the local log still has."""
    monkeypatch.setattr(verify_put_back, "INDEX_INTERVAL_MIN", 100)  # as for the upload

    async def fill() -> ClusterState:
        async with tiered(tmp_path) as made:
            await made.fill(COUNT)
            await made.uploader.upload(made.partition)
            return made.metadata.state

    made = Stored(tmp_path, asyncio.run(fill()))
    assert len(made.segments) > 2
    return made


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


# --- plants ------------------------------------------------------------------------------------------


class Plant(NamedTuple):
    kind: str
    plant: Callable[[Stored], object]
    repaired: bool = True
    also: tuple[str, ...] = ()


def shorten(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def change(path: Path, edit: Callable[[bytearray], object]) -> None:
    data = bytearray(path.read_bytes())
    edit(data)
    path.write_bytes(data)


def swap(stored: Stored) -> None:
    """Two objects of the right sizes under each other's names."""
    one, other = stored.segments[1:3]
    one_data, other_data = one.read_bytes(), other.read_bytes()
    one.write_bytes(other_data)
    other.write_bytes(one_data)


def take_a_batch_out(stored: Stored) -> None:
    data = stored.segments[1].read_bytes()
    size = next(headers(data))[1].size_bytes
    stored.segments[1].write_bytes(data[size:])


PLANTED = {
    "a bit of a batch": Plant("damaged batch", lambda s: flip_bit(s.segments[1], 500)),
    "the first byte": Plant("damaged batch", lambda s: flip_bit(s.segments[1], 0)),
    "a batch's offset": Plant("damaged batch", lambda s: flip_bit(s.segments[1], 6)),
    "a batch's length": Plant("damaged batch", lambda s: flip_bit(s.segments[1], 9)),
    "a batch's leader epoch": Plant("wrong leader epoch", lambda s: flip_bit(s.segments[1], 15)),
    "a range of zeros": Plant(
        "damaged batch",
        lambda s: change(s.segments[1], lambda data: data.__setitem__(slice(300, 900), bytes(600))),
    ),
    "an index": Plant("damaged index", lambda s: flip_bit(s.segments[1], s.footer_at + 12)),
    "the last byte": Plant(
        "damaged index", lambda s: flip_bit(s.segments[1], len(s.segments[1].read_bytes()) - 1)
    ),
    "a footer's version": Plant("damaged index", lambda s: flip_bit(s.segments[1], s.footer_at + 4)),
    "an end that is gone": Plant(
        "wrong size of an object", lambda s: shorten(s.segments[1], 3), also=("damaged index",)
    ),
    "half of an object": Plant(
        "wrong size of an object",
        lambda s: shorten(s.segments[1], s.segments[1].stat().st_size // 2),
        also=("damaged index", "damaged batch"),
    ),
    "an empty object": Plant(
        "wrong size of an object", lambda s: s.segments[1].write_bytes(b""), also=("damaged index",)
    ),
    "bytes behind the end": Plant(
        "wrong size of an object", lambda s: s.segments[1].write_bytes(s.segments[1].read_bytes() + b"x")
    ),
    "a batch taken out": Plant(
        "wrong size of an object",
        take_a_batch_out,
        also=("damaged index", "damaged batch"),
    ),
    "an object gone": Plant("missing object", lambda s: s.segments[1].unlink()),
    "all objects gone": Plant("missing object", lambda s: [one.unlink() for one in s.segments]),
    "the manifest gone": Plant("missing manifest", lambda s: s.manifest.unlink(), repaired=False),
    "a bit of the manifest": Plant("damaged manifest", lambda s: flip_bit(s.manifest, 40), repaired=False),
    "the manifest's end": Plant("damaged manifest", lambda s: shorten(s.manifest, 1), repaired=False),
    "another manifest's bytes": Plant(
        "damaged manifest",
        lambda s: change(s.manifest, lambda data: data.__setitem__(slice(5, None), data[:4:-1])),
        repaired=False,
    ),
    "everything gone": Plant(
        "missing manifest", lambda s: shutil.rmtree(s.folder / "objects"), repaired=False
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_damage_is_found_by_object_and_offset(name: str, stored: Stored) -> None:
    plant = PLANTED[name]
    assert stored.check() == []
    plant.plant(stored)
    before = contents(stored.folder)
    findings = stored.check()
    harmful = [one for one in findings if not one.is_harmless]
    assert {one.kind for one in harmful} == {plant.kind, *plant.also}
    for one in harmful:
        assert one.file.startswith("chronik-v1-a_cluster-")
        assert (one.topic, one.partition) == (TOPIC, 0)
        assert one.offset is not None
        assert not one.repaired
    assert contents(stored.folder) == before, "a check changes nothing"


@pytest.mark.parametrize("name", PLANTED)
def test_what_the_local_log_has_is_put_back_only_when_asked(name: str, stored: Stored) -> None:
    plant = PLANTED[name]
    sound = contents(stored.folder / "objects")
    plant.plant(stored)
    planted = contents(stored.folder / "objects")
    findings = [one for one in stored.check(repair=True) if not one.is_harmless]
    assert findings
    if not plant.repaired:
        assert contents(stored.folder / "objects") == planted
        assert not any(one.repaired for one in findings)
        return
    assert all("put again from the log in" in one.repaired for one in findings)
    assert contents(stored.folder / "objects") == sound
    assert stored.check() == []
    kept = [path.read_bytes() for path in (stored.folder / "data" / ASIDE).iterdir()]
    replaced = [data for path, data in planted.items() if sound[path] != data]
    assert sorted(kept) == sorted(replaced), "what stood there is kept"


def test_a_swap_is_found(stored: Stored) -> None:
    swap(stored)
    findings = stored.check()
    assert {Path(one.file).name for one in findings} == {one.name for one in stored.segments[1:3]}


def test_what_no_log_has_is_left_as_it_is(stored: Stored) -> None:
    flip_bit(stored.segments[1], 500)
    before = contents(stored.folder / "objects")
    for log in (stored.folder / "data" / "topics" / f"{TOPIC}-0").glob("*.log"):
        flip_bit(log, 500)
    (finding,) = stored.check(repair=True)
    assert not finding.repaired
    assert "bring it back if the store keeps former versions" in finding.what
    assert contents(stored.folder / "objects") == before
    assert list((stored.folder / "data" / ASIDE).iterdir()) == []


def test_a_full_disk_ends_a_repair_in_one_sentence(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stood there is kept on this disk, and what is to be there is built on it."""

    def refuse(_: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(verify_put_back, "make_private", refuse)
    stored.segments[1].unlink()
    before = contents(stored.folder / "objects")
    (finding,) = stored.check(repair=True)
    assert (finding.kind, finding.repaired) == ("missing object", "")
    assert "No space left on device" in finding.what
    assert contents(stored.folder / "objects") == before


def test_a_log_that_the_manifest_contradicts_is_not_put_there(stored: Stored) -> None:
    """A leader epoch stands outside a batch's checksum: the manifest tells that it is wrong."""
    stored.segments[1].unlink()
    before = contents(stored.folder / "objects")
    for log in (stored.folder / "data" / "topics" / f"{TOPIC}-0").glob("*.log"):
        if log.stat().st_size:
            flip_bit(log, 15)
    (finding,) = stored.check(repair=True)
    assert (finding.kind, finding.repaired) == ("missing object", "")
    assert contents(stored.folder / "objects") == before


def test_both_ends_of_damage_in_one_object_are_told(stored: Stored) -> None:
    """The walk goes on behind damage, at the next batch that the index knows."""
    starts = [place for place, _ in headers(stored.segments[1].read_bytes())]
    assert len(starts) > 5
    flip_bit(stored.segments[1], starts[1] + 70)
    flip_bit(stored.segments[1], starts[-1] + 70)
    first, second = stored.check()
    assert (first.position, second.position) == (starts[1], starts[-1])
    assert first.offset is not None
    assert second.offset is not None
    assert first.offset < second.offset


def test_what_nothing_names_is_told_and_is_no_damage(stored: Stored) -> None:
    extra = stored.segments[1].with_name(f"{9:08x}-{5:020d}-{'a' * 32}.segment")
    extra.write_bytes(b"of an upload that did not end")
    topic = stored.segments[1].parents[2] / UUID(int=77).hex / "0"
    topic.mkdir(parents=True)
    (topic / extra.name).write_bytes(b"of a topic that is gone")
    before = contents(stored.folder / "objects")
    findings = stored.check(repair=True)
    assert {one.kind for one in findings} == {"objects that do not count"}
    assert all(one.is_harmless and not one.repaired for one in findings)
    assert extra.name in findings[0].what
    assert findings[1].file.endswith(UUID(int=77).hex)
    assert contents(stored.folder / "objects") == before


def test_a_newer_manifest_says_that_the_metadata_may_be_old(stored: Stored) -> None:
    newer = stored.manifest.with_name(f"{9:08x}-{500:020d}-{'b' * 32}.manifest")
    newer.write_bytes(b"")
    stored.manifest.unlink()
    (finding,) = stored.check()
    assert finding.kind == "missing manifest"
    assert f"{newer.name} is newer" in finding.what


def test_a_store_that_cannot_be_read_is_a_finding(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> bytes:
        raise OSError("the mount is gone")

    monkeypatch.setattr(LocalObjects, "get", refuse)
    monkeypatch.setattr("chronik.objects.door.BACKOFF_SECONDS", 0)
    (finding,) = stored.check()
    assert finding.kind == "unreadable object store"
    assert "the mount is gone; what comes behind it was not checked" in finding.what


def test_records_that_neither_the_store_nor_the_log_has(stored: Stored) -> None:
    data_dir = stored.folder / "data"
    partitions = remote_partitions(stored.state)
    assert list(without_hole(partitions, [data_dir], data_dir)) == []
    log = data_dir / "topics" / f"{TOPIC}-0"
    for path in log.glob("*.log"):
        path.unlink()
    (log / f"{COUNT * 3:020d}.log").touch()
    (finding,) = without_hole(partitions, [data_dir], data_dir)
    assert (finding.kind, finding.file) == ("missing offsets", f"topics/{TOPIC}-0")
    remote = partitions[0].remote
    assert remote is not None
    assert finding.offset == remote.end_offset


def test_a_log_that_was_emptied_over_both_tiers_has_no_hole(tmp_path: Path) -> None:
    """DeleteRecords may go beyond what was uploaded: where the store ended then says nothing any more."""

    async def fill() -> ClusterState:
        async with tiered(tmp_path) as made:
            await made.fill(COUNT)
            await made.uploader.upload(made.partition)
            await made.fill(COUNT)
            await made.partition.delete_records(made.partition.high_watermark, made.clock.now_ms)
            await made.settle()
            return made.metadata.state

    state = asyncio.run(fill())
    data_dir = tmp_path / "data"
    (partition,) = partitions = remote_partitions(state)
    assert partition.registration.remote is not None
    assert list(without_hole(partitions, [data_dir], data_dir)) == []


def test_an_index_that_was_wrong_when_it_was_stored(stored: Stored) -> None:
    """The checksums are right then, and only the batches tell."""
    data = stored.segments[1].read_bytes()[: stored.footer_at]
    batches = list(headers(data))
    position, header = batches[2]

    def checked(offset: int, at: int, max_timestamp_ms: int) -> set[str]:
        base = batches[0][1].base_offset
        footer = encode(SegmentFooter(OFFSET_ENTRY.pack(offset - base, at), b"", ()))
        segment = RemoteSegment(
            name="x",
            base_offset=base,
            end_offset=batches[-1][1].next_offset,
            log_bytes=len(data),
            footer_bytes=len(footer),
            footer_crc=crc32c(footer),
            max_timestamp_ms=max_timestamp_ms,
        )
        whole = data + footer

        class Bytes:
            def read_at(self, position: int, size: int) -> bytes:
                return whole[position : position + size]

        found = check_segment(Bytes(), len(whole), segment, ((header.leader_epoch, 0),))
        return {fault.kind for fault in found.faults}

    latest = max(one.max_timestamp for _, one in batches)
    assert checked(header.last_offset, position, latest) == set()
    assert checked(header.last_offset + 1, position, latest) == {"wrong index"}
    assert checked(header.last_offset, position + 1, latest) == {"wrong index"}
    assert checked(header.last_offset, position, latest + 1) == {"wrong index"}


def test_the_newest_metadata_of_a_killed_node_is_in_its_wal(tmp_path: Path) -> None:
    """A manifest that a stale state names may be gone already: that would be a false alarm."""

    def entries(first: int, *commands: c.Command) -> bytes:
        values = [encode_entry(c.CommandEntry(origin=1, sequence=1, command=one)) for one in commands]
        records = [Record(key=bytes([EntryKind.COMMAND]), value=value) for value in values]
        return bytes(build_batch(records, base_offset=first))

    log = tmp_path / "topics" / "__chronik_metadata-0"
    log.mkdir(parents=True)
    cluster = c.InitCluster(cluster_id="x")
    broker = c.RegisterBroker(broker_id=1, incarnation=UUID(int=1), endpoints={})
    create = c.CreateTopic(name=TOPIC, topic_id=TOPIC_ID, assignments=((1,),))
    other = c.CreateTopic(name="other", topic_id=UUID(int=5), assignments=((1,),))
    (log / f"{0:020d}.log").write_bytes(entries(0, cluster, broker) + entries(2, other))
    behind = cluster_state(tmp_path)
    assert behind is not None
    assert set(behind.topics) == {"other"}
    state = cluster_state(tmp_path, [entries(0, cluster, broker), entries(2, create)], 2)
    assert state is not None
    assert (state.cluster_id, set(state.topics)) == ("x", {TOPIC})


def test_a_directory_without_a_store_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wal", "topics"):
        (tmp_path / name).mkdir()
    monkeypatch.delenv("CHRONIK_OBJECT_STORE", raising=False)
    refused = CliRunner().invoke(build("verify"), ["verify", str(tmp_path), "--remote"])
    assert isinstance(refused.exception, VerifyRefused)
    assert "no object store is set" in str(refused.exception)


def test_without_metadata_the_rest_is_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found in the directory, and repaired, was not told: the command only refused."""
    root = tmp_path / "data"
    for name in ("wal", "topics"):
        (root / name).mkdir(parents=True)
    (root / checkpoint.FILE_NAME).write_bytes(b"what is this?")
    (tmp_path / "objects").mkdir()
    monkeypatch.setenv("CHRONIK_OBJECT_STORE", (tmp_path / "objects").as_uri())
    done = CliRunner().invoke(build("verify"), ["verify", str(root), "--remote", "--json"])
    assert (done.exit_code, type(done.exception)) == (1, SystemExit), done.exception
    kinds = [one["kind"] for one in json.loads(done.stdout)["findings"]]
    assert kinds == ["damaged checkpoint", "object store not read"]
