"""`chronik verify` finds damage of every kind, and repairs what the rest of the directory allows (O03)."""

from __future__ import annotations

import asyncio
import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import msgspec
import pytest
from crc32c import crc32c
from typer.testing import CliRunner

from chronik.cli import build
from chronik.cli.verify import VerifyRefused
from chronik.cli.verify_checks import ASIDE, FileFinding, Verification
from chronik.cli.verify_findings import Inspection
from chronik.cli.verify_wal import WalCheck
from chronik.metadata.snapshot import encode_snapshot
from chronik.metadata.state import ClusterState
from chronik.model import METADATA_TOPIC, METADATA_TOPIC_ID, StorageError, TopicPartition
from chronik.raft.entries import EntryKind, Membership, Snapshot
from chronik.records.batch import headers
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.storage import checkpoint as checkpoints
from chronik.storage.checkpoint import LogState
from chronik.storage.cleanable import CleanedPosition
from chronik.storage.disk import IoThread, RealDisk
from chronik.storage.index import OFFSET_ENTRY, TIME_ENTRY
from chronik.storage.log import LogConfig
from chronik.storage.store import StoreOptions
from chronik.storage.wal import PROFILES, WalOptions
from chronik.storage.wal_format import ENTRY_HEADER_BYTES, WalScanner, decode_header, encode_header
from tests.segments import flip_bit
from tests.unit.replication.support import Replicas, put
from tests.unit.storage.support import opened, read_values

BATCHES = 60
TP = TopicPartition("orders", 0)
SMALL = StoreOptions(wal=WalOptions(profile=PROFILES["ultra"], file_bytes=8_192))


async def fill(root: Path, *, is_killed: bool = False) -> None:
    """Three rounds of batches with a checkpoint behind the first and the second, and at an orderly stop."""
    async with opened(root, SMALL, crash=is_killed) as (store, _):
        partition = Replicas(store).add(TP.topic, segment_bytes=7_000)
        for number in range(BATCHES):
            producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": number}
            put(partition, (b"k", value_at(number)), now_ms=1000 + number, **producer)
            await store.wal.drained()
            if number in (19, 39):
                await store.checkpoint()
        await store.flusher.flushed()
    snapshot = Snapshot(
        index=1, term=1, membership=Membership(voters=(1,)), data=encode_snapshot(ClusterState())
    )
    write_checked(root / f"metadata-snapshot-{1:020d}", snapshot)
    (root / "lock").touch()


def value_at(offset: int) -> bytes:
    return b"%03d" % offset + b"v" * 900


async def served(root: Path) -> list[tuple[int, bytes]]:
    """What the node that starts here has in the partition."""
    async with opened(root, SMALL) as (store, _):
        log = store.open_log(TP, UUID(bytes=b"orders".ljust(16, b"\0")), LogConfig())
        return await read_values(log)


def write_checked(path: Path, value: object) -> None:
    body = msgspec.msgpack.encode(value)
    path.write_bytes(crc32c(body).to_bytes(4, "big") + body)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    asyncio.run(fill(tmp_path))
    return tmp_path


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    asyncio.run(fill(tmp_path / "killed", is_killed=True))
    return tmp_path / "killed"


def verified(root: Path, *, repair: bool = False) -> list[FileFinding]:
    verification = Verification(root, repair=repair)
    verification.run(lambda _: None)
    return verification.findings


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


# --- plants ------------------------------------------------------------------------------------------


def logs(root: Path) -> list[Path]:
    found = sorted((root / "topics" / "orders-0").glob("*.log"))
    assert len(found) > 5
    return found


def wal_files(root: Path) -> list[Path]:
    found = sorted(path for path in (root / "wal").glob("*.wal") if path.stem.isdigit())
    assert len(found) > 2
    return found


def wal_payloads(path: Path) -> list[int]:
    """Where the payloads of a WAL file begin."""
    data = path.read_bytes()
    scanner = WalScanner(path.name, lambda at, size: data[at : at + size], len(data), -1, is_last_file=True)
    return [entry.file_position + ENTRY_HEADER_BYTES for entry in scanner.entries() if entry.payload]


def flip_wal(root: Path, file: int, place: int) -> None:
    path = wal_files(root)[file]
    flip_bit(path, wal_payloads(path)[place] + 20)


def unfinished_write(root: Path) -> None:
    """A round of one entry that the disk got only half of."""
    path = wal_files(root)[-1]
    start = wal_payloads(path)[-1]
    entry = decode_header(path.read_bytes()[start - ENTRY_HEADER_BYTES : start])
    assert entry is not None
    following = entry._replace(sequence=entry.sequence + 1, round=entry.round + 1, offset=entry.offset + 1)
    _, _, sequence, number, topic_id, partition, offset, kind = following
    header = encode_header(kind, sequence, number, topic_id, partition, offset, b"x" * 500)
    with path.open("r+b") as file:
        file.seek(start + entry.payload_bytes)
        file.write(header + b"x" * 200)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\1" * 50)


def flip_bits(path: Path, *positions: int) -> None:
    for position in positions:
        flip_bit(path, position)


def remove_segment(path: Path) -> None:
    for suffix in (".log", ".index", ".timeindex"):
        path.with_suffix(suffix).unlink(missing_ok=True)


def remove_behind_compaction(root: Path) -> None:
    compacted_to(root, 3)
    remove_segment(logs(root)[2])


def shorten(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 10)


def keep_only(paths: list[Path], *kept: Path) -> None:
    for path in paths:
        if path not in kept:
            path.unlink()


def change_checkpoint(root: Path, change: Callable[[LogState], LogState]) -> None:
    found = checkpoints.decode((root / "checkpoint").read_bytes())
    assert found is not None
    write_checked(
        root / "checkpoint", msgspec.structs.replace(found, logs=[change(state) for state in found.logs])
    )


def change_producers(root: Path, *, sequence: int = 0, offset: int = 0, forget: int = 0) -> None:
    """As if a checkpoint had remembered another sequence, another offset, or not the last batches."""

    def change(state: LogState) -> LogState:
        producers = msgspec.msgpack.decode(state.producers)
        for entry in producers[2]:
            spans = entry[2][: len(entry[2]) - forget]
            entry[2] = [
                (base + sequence, last + sequence, first + offset, end + offset, at)
                for base, last, first, end, at in spans
            ]
        return msgspec.structs.replace(state, producers=msgspec.msgpack.encode(producers))

    change_checkpoint(root, change)


def spoil_producers(root: Path) -> None:
    change_checkpoint(root, lambda state: msgspec.structs.replace(state, producers=b"\xff"))


def spoil_metadata(root: Path) -> None:
    folder = root / "topics" / f"{METADATA_TOPIC}-0"
    folder.mkdir(exist_ok=True)
    record = Record(key=bytes([EntryKind.COMMAND]), value=b"\xc1 no command", timestamp_ms=0)
    (folder / f"{0:020d}.log").write_bytes(build_batch([record]))


def begin_metadata_later(root: Path) -> None:
    found = checkpoints.decode((root / "checkpoint").read_bytes())
    assert found is not None
    metadata = LogState(
        topic_id=METADATA_TOPIC_ID.bytes,
        partition=0,
        topic=METADATA_TOPIC,
        log_start_offset=5,
        log_end_offset=5,
        active_base_offset=5,
        active_bytes=0,
        epochs=[],
    )
    write_checked(root / "checkpoint", msgspec.structs.replace(found, logs=[*found.logs, metadata]))


def compacted_to(root: Path, offset: int) -> Path:
    path = logs(root)[0].with_name("cleaner-position")
    write_checked(path, CleanedPosition(first_dirty_offset=offset))
    return path


def forget_a_log(root: Path) -> None:
    """As a checkpoint that is not of this directory would."""
    found = checkpoints.decode((root / "checkpoint").read_bytes())
    assert found is not None
    write_checked(root / "checkpoint", msgspec.structs.replace(found, logs=[]))
    keep_only(wal_files(root))


def both(root: Path) -> list[Path]:
    return [root / "checkpoint", root / "checkpoint.former"]


def flip_both(root: Path) -> None:
    for path in both(root):
        flip_bit(path, 30)


class Plant(NamedTuple):
    kind: str
    plant: Callable[[Path], object]
    of: str = "stopped"
    """What the node was before: stopped in order, or killed."""
    repaired: bool = False
    """`--repair` makes the directory whole, and a node that starts on it serves everything."""
    harmless: bool = False
    also: tuple[str, ...] = ()
    """Kinds of findings that follow from the same damage."""


PLANTED: dict[str, Plant] = {
    "a bit of a record": Plant("damaged batch", lambda root: flip_bit(logs(root)[1], 500)),
    "a bit of an offset": Plant("damaged batch", lambda root: flip_bit(logs(root)[1], 6)),
    "a batch's length": Plant("damaged batch", lambda root: flip_bit(logs(root)[1], 9)),
    "a bit of a record that the WAL holds": Plant(
        "damaged batch", lambda root: flip_bit(logs(root)[-1], 500), repaired=True
    ),
    "a bit of an offset that the WAL holds": Plant(
        "damaged batch", lambda root: flip_bit(logs(root)[-2], 6), repaired=True
    ),
    "a batch's length that the WAL holds": Plant(
        "damaged batch", lambda root: flip_bit(logs(root)[-2], 9), repaired=True
    ),
    "two batches that the WAL holds": Plant(
        "damaged batch",
        lambda root: flip_bits(logs(root)[-2], 500, 1500),
        repaired=True,
    ),
    "a bit of a closed segment behind the checkpoint": Plant(
        "damaged batch", lambda root: flip_bit(logs(root)[-2], 500), of="killed", repaired=True
    ),
    "bytes behind the end": Plant("torn tail", lambda root: grow(logs(root)[-1]), repaired=True),
    "an end that is gone": Plant(
        "short segment", lambda root: shorten(logs(root)[-1]), repaired=True, also=("damaged batch",)
    ),
    "the last segment gone": Plant("missing segment", lambda root: remove_segment(logs(root)[-1])),
    "the first segment gone": Plant("missing segment", lambda root: remove_segment(logs(root)[0])),
    "a segment gone": Plant("missing offsets", lambda root: remove_segment(logs(root)[1])),
    "a segment gone behind the last compaction": Plant("missing offsets", remove_behind_compaction),
    "a log's directory": Plant(
        "missing log", lambda root: (root / "topics" / "orders-0").rename(root / "elsewhere")
    ),
    "a log that nothing knows": Plant("unknown log", forget_a_log),
    "a bit of an index": Plant(
        "damaged index", lambda root: flip_bit(logs(root)[1].with_suffix(".index"), 7), repaired=True
    ),
    "a bit of a time index": Plant(
        "damaged index", lambda root: flip_bit(logs(root)[1].with_suffix(".timeindex"), 6), repaired=True
    ),
    "an index gone": Plant(
        "damaged index", lambda root: logs(root)[1].with_suffix(".index").unlink(), repaired=True
    ),
    "an index too many": Plant(
        "index without a log",
        lambda root: logs(root)[0].with_name(f"{9999:020d}.index").write_bytes(b""),
        repaired=True,
    ),
    "the cleaner's position": Plant(
        "damaged cleaner position", lambda root: flip_bit(compacted_to(root, 30), 2)
    ),
    "a compaction that was being written": Plant(
        "unfinished compaction",
        lambda root: logs(root)[0].with_suffix(".log.cleaned").write_bytes(b"x"),
        harmless=True,
    ),
    "a compaction that was about to end": Plant(
        "unfinished compaction",
        lambda root: logs(root)[0].with_name(f"{0:020d}-{int(logs(root)[1].stem):020d}.swap").touch(),
        harmless=True,
    ),
    "a compaction that left nothing": Plant(
        "unfinished compaction",
        lambda root: logs(root)[0].with_name(f"{0:020d}-{int(logs(root)[1].stem):020d}.drop").touch(),
        harmless=True,
        also=("missing segment",),
    ),
    "the checkpoint": Plant(
        "damaged checkpoint", lambda root: flip_bit(root / "checkpoint", 30), repaired=True
    ),
    "the checkpoint of a node that was killed": Plant(
        "damaged checkpoint", lambda root: flip_bit(root / "checkpoint", 30), of="killed", repaired=True
    ),
    "the former checkpoint": Plant(
        "damaged checkpoint", lambda root: flip_bit(root / "checkpoint.former", 30), repaired=True
    ),
    "both checkpoints": Plant("damaged checkpoint", flip_both),
    "the checkpoint gone": Plant(
        "missing checkpoint", lambda root: (root / "checkpoint").unlink(), repaired=True, harmless=True
    ),
    "both checkpoints gone": Plant("missing checkpoint", lambda root: keep_only(both(root))),
    "the producers": Plant("damaged producer state", spoil_producers),
    "a producer's sequence": Plant("wrong producer state", lambda root: change_producers(root, sequence=1)),
    "a producer's offset": Plant("wrong producer state", lambda root: change_producers(root, offset=1000)),
    "a producer's last batch": Plant("wrong producer state", lambda root: change_producers(root, forget=2)),
    "an early WAL entry": Plant("damaged WAL entry", lambda root: flip_wal(root, 0, 0), repaired=True),
    "a WAL entry of a node that was killed": Plant(
        "damaged WAL entry", lambda root: flip_wal(root, -2, 0), of="killed", repaired=True
    ),
    "the last WAL entry": Plant(
        "torn WAL tail",
        lambda root: flip_wal(root, -1, -1),
        of="killed",
        repaired=True,
        also=("records behind the WAL",),
    ),
    "a write that did not end": Plant("torn WAL tail", unfinished_write, of="killed", repaired=True),
    "a WAL file gone": Plant("missing WAL file", lambda root: wal_files(root)[1].unlink(), of="killed"),
    "the first WAL files gone": Plant(
        "missing WAL file", lambda root: keep_only(wal_files(root), wal_files(root)[-1]), of="killed"
    ),
    "the last WAL file gone": Plant(
        "records behind the WAL", lambda root: wal_files(root)[-1].unlink(), of="killed"
    ),
    "all WAL files gone": Plant("missing WAL file", lambda root: keep_only(wal_files(root))),
    "the metadata snapshot": Plant(
        "damaged metadata snapshot", lambda root: flip_bit(next(root.glob("metadata-snapshot-*")), 12)
    ),
    "a metadata snapshot gone": Plant("missing metadata snapshot", begin_metadata_later),
    "a metadata command": Plant("unreadable metadata", spoil_metadata),
    "the node's key": Plant("damaged node key", lambda root: (root / "node.key").write_bytes(b"k" * 31)),
    "the first user": Plant(
        "damaged first user", lambda root: (root / "first-user.json").write_bytes(b'{"version": 1')
    ),
}
REPAIRED = [name for name, one in PLANTED.items() if one.repaired]


@pytest.fixture
def planted(request: pytest.FixtureRequest) -> tuple[Plant, Path]:
    plant = PLANTED[request.param]
    root: Path = request.getfixturevalue("root" if plant.of == "stopped" else "killed")
    plant.plant(root)
    return plant, root


@pytest.mark.parametrize("of", ["root", "killed"])
def test_a_sound_directory_has_no_findings(of: str, request: pytest.FixtureRequest) -> None:
    assert verified(request.getfixturevalue(of)) == []


@pytest.mark.parametrize("planted", PLANTED, indirect=True)
def test_planted_damage_is_found(planted: tuple[Plant, Path]) -> None:
    plant, root = planted
    before = contents(root)
    found = verified(root)
    of_kind = [finding for finding in found if finding.kind == plant.kind]
    assert of_kind
    assert all(finding.is_harmless is plant.harmless for finding in of_kind)
    assert all(not finding.repaired for finding in found)
    assert contents(root) == before, "looking changes nothing"
    if of_kind[0].file.startswith("topics/orders-0/"):
        assert (of_kind[0].topic, of_kind[0].partition) == ("orders", 0)


@pytest.mark.parametrize("planted", REPAIRED, indirect=True)
def test_what_the_rest_allows_is_repaired_and_served(planted: tuple[Plant, Path]) -> None:
    plant, root = planted
    found = verified(root, repair=True)
    assert {finding.kind for finding in found} <= {plant.kind, *plant.also}
    assert all(finding.repaired for finding in found)
    assert list(root.glob(f"{ASIDE}/*")) or plant.kind == "missing checkpoint", "nothing is thrown away"
    assert verified(root) == []
    assert asyncio.run(served(root)) == [(offset, value_at(offset)) for offset in range(BATCHES)]


@pytest.mark.parametrize(
    "planted", [name for name, one in PLANTED.items() if not one.repaired], indirect=True
)
def test_what_nothing_else_tells_is_left_as_it_is(planted: tuple[Plant, Path]) -> None:
    _, root = planted
    before = contents(root)
    found = verified(root, repair=True)
    assert all(not finding.repaired for finding in found)
    assert contents(root) == before


@pytest.mark.parametrize("segment", [1, -2, -1])
def test_nothing_is_cut_without_a_checkpoint(root: Path, segment: int) -> None:
    """What looks like a torn tail may be what somebody was promised."""
    compacted_to(root, BATCHES)  # so that the WAL is no help
    flip_both(root)
    flip_bit(logs(root)[segment], 500)
    before = contents(root)
    found = verified(root, repair=True)
    assert [finding.kind for finding in found] == [
        "damaged checkpoint",
        "damaged checkpoint",
        "damaged batch",
    ]
    assert "do not start the node" in found[0].what
    assert contents(root) == before


def test_a_torn_wal_is_not_cut_without_a_checkpoint(killed: Path) -> None:
    unfinished_write(killed)
    flip_both(killed)
    before = contents(killed)
    (torn,) = (one for one in verified(killed, repair=True) if one.kind == "torn WAL tail")
    assert "not cut, since no checkpoint can be read" in torn.what
    assert contents(killed) == before


def test_a_closed_segment_is_not_cut_even_behind_the_checkpoint(killed: Path) -> None:
    compacted_to(killed, BATCHES)
    flip_bit(logs(killed)[-2], 500)
    before = contents(killed)
    (finding,) = verified(killed, repair=True)
    assert (finding.kind, finding.repaired) == ("damaged batch", "")
    assert "start the node" in finding.what
    assert contents(killed) == before


def test_a_damaged_wal_entry_says_whose_records_it_has(killed: Path) -> None:
    flip_wal(killed, -1, -1)
    (torn,) = (one for one in verified(killed) if one.kind == "torn WAL tail")
    assert (torn.topic, torn.partition, torn.offset) == ("orders", 0, BATCHES - 1)
    assert "either it was not finished" in torn.what


def test_a_wal_entry_that_the_checkpoint_covers_costs_nothing(root: Path) -> None:
    flip_wal(root, -1, -1)
    (torn,) = verified(root)
    assert "nothing is lost" in torn.what


def test_what_compaction_removed_is_not_missing(root: Path) -> None:
    compacted_to(root, int(logs(root)[3].stem))
    remove_segment(logs(root)[2])
    remove_segment(logs(root)[0])
    assert verified(root) == []


def test_a_node_that_was_killed_before_its_first_checkpoint_lacks_nothing(tmp_path: Path) -> None:
    async def begin() -> None:
        async with opened(tmp_path, crash=True) as (store, _):
            partition = Replicas(store).add(TP.topic)
            for number in range(20):
                put(partition, (b"k", value_at(number)), now_ms=1)
            await store.wal.drained()
            await store.flusher.flushed()

    asyncio.run(begin())
    assert not (tmp_path / "checkpoint").exists()
    (log,) = (tmp_path / "topics" / "orders-0").glob("*.log")
    with log.with_suffix(".index").open("ab") as file:
        file.write(OFFSET_ENTRY.pack(50, 60_000))
    assert verified(tmp_path) == []
    shorten(log)  # the write to the segment did not end
    (finding,) = verified(tmp_path)
    assert finding.what.endswith("000000000000.wal still has it")


def test_a_lost_end_of_the_wal_comes_back_from_the_segments(tmp_path: Path) -> None:
    """Before the first checkpoint. The node does not start, for it would cut off what segments still have."""

    async def begin() -> None:
        async with opened(tmp_path, crash=True) as (store, _):
            partition = Replicas(store).add(TP.topic)
            for number in range(20):
                put(partition, (b"k", value_at(number)), now_ms=1)
                await store.wal.drained()
            await store.flusher.flushed()

    asyncio.run(begin())
    wal = tmp_path / "wal" / "000000000000.wal"
    flip_bit(wal, wal.read_bytes().index(value_at(19)))
    with pytest.raises(StorageError, match="its WAL lacks records of topics/orders-0"):
        asyncio.run(served(tmp_path))
    missing = next(one for one in verified(tmp_path) if one.kind == "missing checkpoint")
    assert "the node does not start" in missing.what
    assert all(one.repaired for one in verified(tmp_path, repair=True))
    assert verified(tmp_path) == []
    assert [value for _, value in asyncio.run(served(tmp_path))] == [value_at(n) for n in range(20)]


def test_what_an_interrupted_compaction_may_have_removed_is_told_as_such(root: Path) -> None:
    """It swaps segments group by group, and moves the position only after each of them."""
    PLANTED["a segment gone behind the last compaction"].plant(root)
    (finding,) = verified(root)
    assert "interrupted, or lost" in finding.what


def test_indexes_ahead_of_a_log_that_was_killed_are_sound(killed: Path) -> None:
    """They are written before the log is, and those of a closed segment after the next one began."""
    last = logs(killed)[-1]
    for suffix, entry in (
        (".index", OFFSET_ENTRY.pack(50, 60_000)),
        (".timeindex", TIME_ENTRY.pack(9_000, 50)),
    ):
        with last.with_suffix(suffix).open("ab") as file:
            file.write(entry + b"half")
        logs(killed)[-2].with_suffix(suffix).unlink()
    assert verified(killed) == []


def test_a_log_cut_or_emptied_since_the_checkpoint_is_sound(tmp_path: Path) -> None:
    """A follower that truncated to its leader's log, and one that was too far behind."""

    async def change() -> None:
        async with opened(tmp_path, SMALL, crash=True) as (store, _):
            replicas = Replicas(store)
            made = [replicas.add(topic, segment_bytes=7_000) for topic in ("cut", "emptied")]
            for number in range(30):
                for partition in made:
                    put(partition, (b"k", value_at(number)), now_ms=1)
            await store.wal.drained()
            await store.checkpoint()
            made[0].log.truncate(12)
            made[1].log.restart_at(500)
            for partition in made:
                put(partition, (b"k", b"later"), now_ms=1)
            await store.wal.drained()
            await store.flusher.flushed()
            await store.disk.run(IoThread.BACKGROUND, lambda: None)

    asyncio.run(change())
    assert verified(tmp_path) == []


def test_what_stood_before_a_cut_in_the_middle_of_an_append_is_held(tmp_path: Path) -> None:
    """A follower takes many batches as one entry. Of the metadata log the WAL alone may have the newest."""

    async def change() -> None:
        async with opened(tmp_path, SMALL, crash=True) as (store, _):
            log = Replicas(store).add(TP.topic).log
            batches = b"".join(
                build_batch([Record(key=b"k", value=b"v", timestamp_ms=1)], base_offset=n) for n in range(3)
            )
            log.append_replicated(bytearray(batches), headers(batches), 1)
            log.truncate(2)
            await store.wal.drained()

    asyncio.run(change())
    loop = asyncio.new_event_loop()
    disk = RealDisk(loop)
    try:
        wal = WalCheck(Inspection(tmp_path, disk, is_repairing=False), None, lambda _: None)
        wal.run(sorted((tmp_path / "wal").glob("*.wal")), is_cut_back=False)
        held = wal.appends((TP.topic, 0))
    finally:
        disk.close()
        loop.close()
    assert [header.base_offset for data in held for _, header in headers(data)] == [0, 1]


def test_a_deletion_that_kill_interrupted_is_ended_by_the_next_start(tmp_path: Path) -> None:
    """A segment's log goes first: its indexes were left for ever, and called damage."""

    async def change() -> list[Path]:
        async with opened(tmp_path, SMALL, crash=True) as (store, _):
            partition = Replicas(store).add(TP.topic, segment_bytes=7_000)
            for number in range(40):
                put(partition, (b"k", value_at(number)), now_ms=1)
            await store.wal.drained()
            await store.checkpoint()
            await partition.log.advance_start(30)
            await store.wal.drained()
            await store.disk.run(IoThread.BACKGROUND, lambda: None)
        folder = tmp_path / "topics" / "orders-0"
        left = [folder / f"{0:020d}{suffix}" for suffix in (".timeindex", ".index")]
        for path in left:
            path.with_suffix(".log").unlink(missing_ok=True)
            path.write_bytes(b"")
        return left

    left = asyncio.run(change())
    findings = verified(tmp_path)
    assert [(one.kind, one.is_harmless) for one in findings] == [("index without a log", True)] * 2
    assert [offset for offset, _ in asyncio.run(served(tmp_path))][-1] == 39
    assert not any(path.exists() for path in left)
    assert verified(tmp_path) == []


def test_a_segment_that_waits_for_its_deletion_is_not_looked_at(tmp_path: Path) -> None:
    """Its indexes are never written if it was deleted before they were due."""

    async def change() -> None:
        async with opened(tmp_path, SMALL) as (store, _):
            partition = Replicas(store).add(TP.topic, segment_bytes=7_000, file_delete_delay_ms=60_000)
            for number in range(40):
                put(partition, (b"k", value_at(number)), now_ms=1)
            await store.wal.drained()
            await store.flusher.flushed()
            await partition.log.advance_start(30)
            await store.wal.drained()

    asyncio.run(change())
    first = logs_of(tmp_path)[0]
    assert int(first.stem) == 0
    for suffix in (".index", ".timeindex"):
        first.with_suffix(suffix).unlink()
    assert verified(tmp_path) == []
    flip_bit(logs_of(tmp_path)[-2], 500)
    assert len(verified(tmp_path)) == 1


def logs_of(root: Path) -> list[Path]:
    return sorted((root / "topics" / "orders-0").glob("*.log"))


def test_the_command_tells_and_ends_with_1(root: Path) -> None:
    run = CliRunner().invoke
    clean = run(build("verify"), ["verify", str(root)])
    assert (clean.exit_code, "no damage" in clean.output) == (0, True)
    flip_bit(logs(root)[1], 500)
    told = run(build("verify"), ["verify", str(root), "--json"])
    assert told.exit_code == 1
    (finding,) = json.loads(told.stdout)["findings"]
    assert finding["file"] == str(logs(root)[1].relative_to(root))
    assert finding["position"] == 0
    assert (finding["topic"], finding["partition"]) == ("orders", 0)
    assert finding["offset"] == int(logs(root)[1].stem)
    said = run(build("verify"), ["verify", str(root)]).output
    assert f"the batch that begins at offset {finding['offset']} cannot be read" in said.replace("\n", " ")
    assert said.endswith(": 1 finding\n")


def test_what_is_harmless_is_told_and_is_no_damage(root: Path) -> None:
    PLANTED["a compaction that was being written"].plant(root)
    told = CliRunner().invoke(build("verify"), ["verify", str(root)])
    assert told.exit_code == 0
    assert "unfinished compaction (harmless)" in told.output.replace("\n", "")
    assert "no damage" in told.output


def test_a_running_nodes_directory_is_refused(root: Path) -> None:
    with (root / "lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused = CliRunner().invoke(build("verify"), ["verify", str(root)])
    assert isinstance(refused.exception, VerifyRefused)
    assert "is using this data directory" in str(refused.exception)


def test_a_folder_with_several_nodes_is_checked_whole(tmp_path: Path) -> None:
    """As `start --shards` and `cluster up` lay them out."""
    nodes = [tmp_path / name / "data" for name in ("shard-1", "shard-2")]
    for node in nodes:
        node.mkdir(parents=True)
        asyncio.run(fill(node))
    run = CliRunner().invoke
    sound = run(build("verify"), ["verify", str(tmp_path)])
    assert sound.exit_code == 0
    assert "2 nodes," in sound.output
    flip_bit(next((nodes[1] / "topics").rglob("*.log")), 200)
    damaged = run(build("verify"), ["verify", str(tmp_path), "--json"])
    assert damaged.exit_code == 1
    (finding,) = json.loads(damaged.output)["findings"]
    assert finding["file"].startswith("shard-2/data/topics/")
    empty = run(build("verify"), ["verify", str(nodes[0] / "wal")])
    assert isinstance(empty.exception, VerifyRefused)
