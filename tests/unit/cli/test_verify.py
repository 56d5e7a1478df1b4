"""`chronik verify` finds damage of every kind, and repairs what the rest of the directory allows (O03)."""

from __future__ import annotations

import asyncio
import fcntl
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from crc32c import crc32c
from typer.testing import CliRunner

from chronik.cli import build
from chronik.cli.verify import VerifyRefused
from chronik.cli.verify_checks import ASIDE, FileFinding, Verification
from chronik.metadata.snapshot import encode_snapshot
from chronik.metadata.state import ClusterState
from chronik.model import METADATA_TOPIC
from chronik.raft.entries import EntryKind, Membership, Snapshot
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.storage import checkpoint as checkpoints
from chronik.storage.wal_format import ENTRY_HEADER_BYTES, WalScanner
from tests.segments import flip_bit
from tests.unit.replication.support import Replicas, put
from tests.unit.storage.support import opened

BATCHES = 60


async def fill(root: Path) -> None:
    async with opened(root) as (store, _):
        partition = Replicas(store).add("orders", segment_bytes=12_000)
        for number in range(BATCHES):
            producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": number}
            put(partition, (b"k", b"v" * 900), now_ms=1000 + number, **producer)
            await store.wal.drained()
        await store.checkpoint()
    snapshot = Snapshot(
        index=1, term=1, membership=Membership(voters=(1,)), data=encode_snapshot(ClusterState())
    )
    write_checked(root / f"metadata-snapshot-{1:020d}", snapshot)


def write_checked(path: Path, value: object) -> None:
    body = msgspec.msgpack.encode(value)
    path.write_bytes(crc32c(body).to_bytes(4, "big") + body)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    asyncio.run(fill(tmp_path))
    (tmp_path / "lock").touch()
    return tmp_path


def verified(root: Path, *, repair: bool = False) -> list[FileFinding]:
    verification = Verification(root, repair=repair)
    verification.run(lambda _: None)
    return verification.findings


def logs(root: Path) -> list[Path]:
    found = sorted((root / "topics" / "orders-0").glob("*.log"))
    assert len(found) > 3
    return found


def wal_entries(root: Path) -> tuple[Path, list[int]]:
    """The WAL file that has entries, and where their payloads begin."""
    for path in sorted((root / "wal").glob("*.wal")):
        data = path.read_bytes()
        scanner = WalScanner(
            path.name, lambda at, size, data=data: data[at : at + size], len(data), -1, is_last_file=True
        )
        starts = [entry.file_position + ENTRY_HEADER_BYTES for entry in scanner.entries() if entry.payload]
        if len(starts) > 2:
            return path, starts
    raise AssertionError("no WAL file has entries")


def flip_wal(root: Path, place: int) -> None:
    path, starts = wal_entries(root)
    flip_bit(path, starts[place] + 20)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\1" * 50)


def shorten(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 10)


def spoil_producers(root: Path) -> None:
    found = checkpoints.decode((root / "checkpoint").read_bytes())
    assert found is not None
    spoiled = [msgspec.structs.replace(state, producers=b"\xff") for state in found.logs]
    write_checked(root / "checkpoint", msgspec.structs.replace(found, logs=spoiled))


def spoil_metadata(root: Path) -> None:
    folder = root / "topics" / f"{METADATA_TOPIC}-0"
    folder.mkdir(exist_ok=True)
    record = Record(key=bytes([EntryKind.COMMAND]), value=b"\xc1 no command", timestamp_ms=0)
    (folder / f"{0:020d}.log").write_bytes(build_batch([record]))


PLANTED: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a bit of a record": ("damaged batch", lambda root: flip_bit(logs(root)[1], 500)),
    "a bit of an offset": ("damaged batch", lambda root: flip_bit(logs(root)[1], 6)),
    "a batch's length": ("damaged batch", lambda root: flip_bit(logs(root)[1], 9)),
    "bytes behind the end": ("torn tail", lambda root: grow(logs(root)[-1])),
    "an end that is gone": ("short segment", lambda root: shorten(logs(root)[-1])),
    "the last segment gone": ("missing segment", lambda root: logs(root)[-1].unlink()),
    "the first segment gone": ("missing segment", lambda root: logs(root)[0].unlink()),
    "a segment gone": ("missing offsets", lambda root: logs(root)[1].unlink()),
    "a bit of an index": ("damaged index", lambda root: flip_bit(logs(root)[1].with_suffix(".index"), 7)),
    "a bit of a time index": (
        "damaged index",
        lambda root: flip_bit(logs(root)[1].with_suffix(".timeindex"), 6),
    ),
    "an index gone": ("damaged index", lambda root: logs(root)[1].with_suffix(".index").unlink()),
    "an index too many": (
        "index without a log",
        lambda root: logs(root)[0].with_name(f"{9999:020d}.index").write_bytes(b""),
    ),
    "the checkpoint": ("damaged checkpoint", lambda root: flip_bit(root / "checkpoint", 30)),
    "the former checkpoint": ("damaged checkpoint", lambda root: flip_bit(root / "checkpoint.former", 30)),
    "the producers": ("damaged producer state", spoil_producers),
    "an early WAL entry": ("damaged WAL entry", lambda root: flip_wal(root, 0)),
    "the last WAL entry": ("torn WAL tail", lambda root: flip_wal(root, -1)),
    "the metadata snapshot": (
        "damaged metadata snapshot",
        lambda root: flip_bit(next(root.glob("metadata-snapshot-*")), 12),
    ),
    "a metadata command": ("unreadable metadata", spoil_metadata),
    "a log's directory": (
        "missing log",
        lambda root: (root / "topics" / "orders-0").rename(root / "elsewhere"),
    ),
}
REPAIRED = {"torn tail", "torn WAL tail", "damaged index", "index without a log"}


def test_a_sound_directory_has_no_findings(root: Path) -> None:
    assert verified(root) == []


@pytest.mark.parametrize("planted", PLANTED)
def test_planted_damage_is_found(root: Path, planted: str) -> None:
    kind, plant = PLANTED[planted]
    plant(root)
    found = verified(root)
    assert kind in {finding.kind for finding in found}
    assert all(not finding.repaired for finding in found)
    assert not (root / ASIDE).exists(), "looking changes nothing"


@pytest.mark.parametrize("planted", [name for name, (kind, _) in PLANTED.items() if kind in REPAIRED])
def test_what_the_rest_allows_is_repaired_and_told(root: Path, planted: str) -> None:
    kind, plant = PLANTED[planted]
    plant(root)
    found = verified(root, repair=True)
    assert {finding.kind for finding in found} == {kind}
    assert all(finding.repaired for finding in found)
    assert any((root / ASIDE).iterdir()), "nothing is thrown away"
    assert verified(root) == []


def test_what_a_checkpoint_vouches_for_is_never_cut(root: Path) -> None:
    PLANTED["a bit of a record"][1](root)
    before = {path: path.read_bytes() for path in logs(root)}
    found = verified(root, repair=True)
    assert [(finding.kind, finding.repaired) for finding in found] == [("damaged batch", "")]
    assert {path: path.read_bytes() for path in logs(root)} == before


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
