"""A node that was killed with much in its WAL comes back without holding all of it in memory (T21)."""

from __future__ import annotations

import os
import re
from pathlib import Path

import confluent_kafka
import pytest

from tests.node import ChronikNode

RECORDS, RECORD_BYTES = 1_500, 100_000


def peak_bytes(node: ChronikNode) -> int:
    status = Path(f"/proc/{node.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found.group(1)) * 1024


@pytest.mark.timeout(300)
def test_recovery_takes_memory_for_a_part_of_the_wal_only(tmp_path: Path) -> None:
    with ChronikNode(tmp_path) as node:
        assert isinstance(node, ChronikNode)
        fresh = peak_bytes(node)
        producer = confluent_kafka.Producer({"bootstrap.servers": node.bootstrap})
        value = os.urandom(RECORD_BYTES)
        for _ in range(RECORDS):
            producer.produce("large", value, partition=0)
            producer.poll(0)
        assert producer.flush(120) == 0
        node.kill()
        node.start()
        grown = peak_bytes(node) - fresh
        recovered = re.findall(r"recovered \d+ WAL entries \(([\d.]+) MB\)", node.log.read_text())
        read_bytes = float(recovered[-1]) * 1e6
        print(f"{read_bytes / 1e6:.0f} MB recovered, {grown / 1e6:.0f} MB more than a fresh start")
        assert read_bytes > 0
        assert grown < RECORDS * RECORD_BYTES / 2
        node.stop()
