"""Files that a disk, a crash or a person damaged: the node comes up, says what is wrong, serves the rest.

Guards L02.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chronik.cli import build
from tests.compat.clients import Confluent
from tests.crash.load import Ledger, lost_records, read_partition, strange_records, write
from tests.node import ChronikNode
from tests.process import ServerFailed
from tests.small_disk import mount, unmount

RECORDS = 2_000
TOPIC = "damage"


def fill(node: ChronikNode, ledger: Ledger, count: int = RECORDS, size: int = 200) -> None:
    """Acknowledged records in partition 0, most batches of two or three."""
    target = len(ledger.acknowledged) + count
    code = asyncio.run(write(ledger, node.kafka_port, 0, 0, lambda: len(ledger.acknowledged) >= target, size))
    assert code == 0
    assert not ledger.in_doubt


@pytest.fixture
def filled(node: ChronikNode) -> tuple[ChronikNode, Ledger]:
    node.start()
    Confluent(node.bootstrap).create(TOPIC)
    ledger = Ledger(TOPIC)
    fill(node, ledger)
    return node, ledger


def log_of(node: ChronikNode) -> dict[int, list[tuple[int, bytes]]]:
    return {0: read_partition(node.bootstrap, TOPIC, 0)}


def check_intact(node: ChronikNode, ledger: Ledger) -> None:
    log = log_of(node)
    assert not lost_records(ledger, log)[:3]
    assert not strange_records(ledger, log)[:3]


def check_goes_on(node: ChronikNode, ledger: Ledger) -> None:
    """New records get new offsets and survive the next crash."""
    before = max(offset for _, offset in ledger.acknowledged)
    fill(node, ledger, 50)
    assert max(offset for _, offset in ledger.acknowledged) > before
    node.kill()
    node.start()
    check_intact(node, ledger)


def wal_files(node: ChronikNode) -> list[Path]:
    return sorted((node.data_dir / "wal").glob("[0-9]*.wal"))


def last_written(node: ChronikNode) -> tuple[Path, int]:
    """The WAL file that was written last, and where what was written ends."""
    for path in reversed(wal_files(node)):
        data = path.read_bytes().rstrip(b"\0")
        if data:
            return path, len(data) + 1  # a record without headers ends in one zero
    raise AssertionError("nothing was written")


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def flip_bit_in(path: Path, marker: bytes) -> None:
    position = path.read_bytes().index(marker)
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))


def test_a_torn_write_behind_the_acknowledged_end_costs_nothing(filled: tuple[ChronikNode, Ledger]) -> None:
    node, ledger = filled
    node.kill()
    path, end = last_written(node)
    overwrite(path, end, path.read_bytes()[end - 300 : end - 150])
    node.start()
    check_intact(node, ledger)
    check_goes_on(node, ledger)


def test_garbage_behind_the_acknowledged_end_costs_nothing(filled: tuple[ChronikNode, Ledger]) -> None:
    node, ledger = filled
    node.kill()
    path, end = last_written(node)
    overwrite(path, end, os.urandom(5_000))
    node.start()
    check_intact(node, ledger)
    check_goes_on(node, ledger)


def test_a_flipped_bit_in_the_middle_of_the_wal_is_told_and_the_rest_served(
    filled: tuple[ChronikNode, Ledger],
) -> None:
    node, ledger = filled
    node.kill()
    marker = b"writer 0 record 1000."
    (path,) = (path for path in wal_files(node) if marker in path.read_bytes())
    flip_bit_in(path, marker)
    node.log.unlink()
    node.start()
    assert "ERROR" in node.log.read_text()
    rows = dict(log_of(node)[0])
    missing = [value for (_, offset), value in ledger.acknowledged.items() if rows.get(offset) != value]
    assert len(missing) <= 3, "no more than the one batch that the disk lost"
    assert all(b"record 100" in value or b"record 99" in value for value in missing)


def test_verify_repairs_what_the_rest_of_the_directory_tells(filled: tuple[ChronikNode, Ledger]) -> None:
    node, ledger = filled
    for _ in range(2):  # so that there is a former checkpoint
        node.stop()
        node.start()
    node.kill()
    (segment,) = node.segment_files(TOPIC)
    flip_bit_in(segment, b"writer 0 record 1000.")
    flip_bit_in(segment, b"writer 0 record 1500.")
    segment.with_suffix(".index").unlink(missing_ok=True)
    overwrite(node.data_dir / "checkpoint", 20, b"damage")
    verify = ["verify", str(node.data_dir)]
    assert CliRunner().invoke(build("verify"), verify).exit_code == 1
    repaired = CliRunner().invoke(build("verify"), [*verify, "--repair"])
    assert repaired.output.count("written again from 000000000000.wal") == 2
    assert CliRunner().invoke(build("verify"), verify).exit_code == 0
    node.start()
    check_intact(node, ledger)
    check_goes_on(node, ledger)


def test_a_node_that_lost_both_checkpoints_refuses_to_start(node: ChronikNode) -> None:
    node.settings["wal_file_bytes"] = 1 << 20
    node.start()
    Confluent(node.bootstrap).create(TOPIC)
    ledger = Ledger(TOPIC)
    fill(node, ledger, 200, 5_000)
    node.restart()
    fill(node, ledger, 200, 5_000)
    node.stop()  # two checkpoints: the first file of the WAL is not needed any more
    assert int(wal_files(node)[0].stem) > 0
    kept = {name: (node.data_dir / name).read_bytes() for name in ("checkpoint", "checkpoint.former")}
    for name in kept:
        (node.data_dir / name).unlink()
    before = {path: path.read_bytes() for path in node.data_dir.glob("topics/*/*")}
    node.log.unlink()
    with pytest.raises(ServerFailed, match="could lose acknowledged records: run `chronik verify --repair"):
        node.start()
    assert "Traceback" not in node.log.read_text()
    assert {path: path.read_bytes() for path in node.data_dir.glob("topics/*/*")} == before
    (node.data_dir / "checkpoint.former").write_bytes(kept["checkpoint.former"])  # one is enough
    node.start()
    check_intact(node, ledger)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "empty", "garbage"])
def test_indexes_are_made_anew(filled: tuple[ChronikNode, Ledger], suffix: str, damage: str) -> None:
    node, ledger = filled
    node.stop()
    for segment in node.segment_files(TOPIC):
        index = segment.with_suffix(suffix)
        if damage == "missing":
            index.unlink(missing_ok=True)
        elif damage == "truncated":
            os.truncate(index, max(0, index.stat().st_size - 5))
        elif damage == "empty":
            os.truncate(index, 0)
        else:
            index.write_bytes(os.urandom(96))
    node.start()
    check_intact(node, ledger)
    client = Confluent(node.bootstrap)
    assert [record.value for record in client.consume(TOPIC, 3, offset=1_500)] == [
        ledger.acknowledged[0, 1_500 + index] for index in range(3)
    ]
    check_goes_on(node, ledger)


def test_a_flipped_bit_in_a_segment_hurts_only_its_batch(filled: tuple[ChronikNode, Ledger]) -> None:
    node, ledger = filled
    client = Confluent(node.bootstrap)
    client.create("bystander")
    bystander = Ledger("bystander")
    asyncio.run(write(bystander, node.kafka_port, 0, 0, lambda: len(bystander.acknowledged) >= 100))
    node.stop()
    marker = b"writer 0 record 1000."
    (segment,) = (path for path in node.segment_files(TOPIC) if marker in path.read_bytes())
    flip_bit_in(segment, marker)
    node.start()
    rows = {0: read_partition(node.bootstrap, "bystander", 0)}
    assert not lost_records(bystander, rows)
    for offset in (0, 990, 1_010):
        (record,) = client.consume(TOPIC, 1, offset=offset)
        assert record.value == ledger.acknowledged[0, offset]
    fill(node, ledger, 50)


def test_a_shortened_segment_is_told_and_the_rest_served(filled: tuple[ChronikNode, Ledger]) -> None:
    node, ledger = filled
    node.stop()
    segment = node.segment_files(TOPIC)[-1]
    os.truncate(segment, segment.stat().st_size // 2)
    node.log.unlink()
    node.start()
    after = Ledger(TOPIC)
    fill(node, after, 50)
    assert min(after.acknowledged)[1] > max(ledger.acknowledged)[1], "an offset is never given out twice"
    rows = log_of(node)[0]
    assert "ERROR" in node.log.read_text()
    assert len(rows) > RECORDS // 4
    promised = ledger.acknowledged | after.acknowledged
    assert all(promised[0, offset] == value for offset, value in rows)
    assert not lost_records(after, {0: rows})


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    mount(folder, 24 << 20)
    yield folder
    unmount(folder)


def test_a_full_disk_refuses_writes_and_keeps_what_was_acknowledged(tmp_path: Path, small_disk: Path) -> None:
    data = small_disk / "data"
    node = ChronikNode(
        tmp_path / "node", data_dir=data, wal_file_bytes=1024 * 1024, segment_bytes=1024 * 1024
    )
    try:
        node.start()
        Confluent(node.bootstrap).create(TOPIC)
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(8 * 1024 * 1024))
        ledger = Ledger(TOPIC)
        code = asyncio.run(
            asyncio.wait_for(write(ledger, node.kafka_port, 0, 0, lambda: False, 10_000), timeout=60)
        )
        assert code != 0, "the broker must say so when it cannot write"
        assert node.running
        check_intact(node, ledger)  # the consumer asks for a coordinator, whose topic cannot be created
        wait_for_elections(node, 2)  # by then the lease of the last one is over
        check_intact(node, ledger)
        ballast.unlink()
        fill_when_there_is_room(node, ledger)
        check_intact(node, ledger)
        node.kill()
        node.start()
        check_intact(node, ledger)
    finally:
        node.kill()


def wait_for_elections(node: ChronikNode, count: int) -> None:
    """Those of a node alone that cannot write its vote."""
    deadline = time.monotonic() + 60
    while True:
        _, found, after = node.log.read_text().partition("this node leaves the quorum")
        if found and after.count("a commit round of 1 entries failed") >= count:
            return
        assert time.monotonic() < deadline, "the metadata log can still be written"
        time.sleep(0.05)


def fill_when_there_is_room(node: ChronikNode, ledger: Ledger) -> None:
    """A broker may need a moment to notice that there is room again; it must need no restart."""
    target = len(ledger.acknowledged) + 20
    for _ in range(200):
        code = asyncio.run(write(ledger, node.kafka_port, 0, 0, lambda: len(ledger.acknowledged) >= target))
        if code == 0:
            return
    raise AssertionError("the broker went on refusing writes although there was room")
