"""Everything a node writes is for its owner alone: log, segments, indexes, checkpoints, the query folder."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.clients import Confluent, Record
from tests.node import ChronikNode

pytestmark = pytest.mark.usefixtures("only_chronik")


class Careless(ChronikNode):
    """Started by somebody whose umask gives everything to everybody."""

    def command(self) -> list[str]:
        return ["sh", "-c", 'umask 000; exec "$@"', "sh", *super().command()]


def too_open(folder: Path) -> list[str]:
    paths = [folder, *(Path(top, name) for top, dirs, files in os.walk(folder) for name in [*dirs, *files])]
    return [f"{path} {mode:o}" for path in paths if (mode := path.stat().st_mode & 0o777) & 0o077]


def test_nobody_else_can_read_what_a_node_keeps(tmp_path: Path) -> None:
    node = Careless(tmp_path, env={"CHRONIK_SEGMENT_BYTES": "20000"})
    node.start()
    try:
        client = Confluent(node.bootstrap)
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.create_topics([NewTopic("orders", 1, config={"searchable": "true"})])["orders"].result(20)
        for _ in range(5):  # each a batch of its own, so that there are several segments
            client.produce("orders", [Record(b'{"n": %d}' % n + b" " * 500) for n in range(40)])
        deadline = time.monotonic() + 30
        while not list((node.data_dir).rglob("meta.json")) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert list(node.data_dir.rglob("meta.json"))  # the search index
        node.stop()
        assert len(node.segment_files("orders")) > 1
        assert too_open(node.data_dir) == []
        for path in node.data_dir.rglob("*"):
            path.chmod(0o777 if path.is_dir() else 0o666)
        node.data_dir.chmod(0o755)
        node.start()
        assert too_open(node.data_dir) == []
        assert "took the rights of others from" in node.log.read_text()
        assert len(client.consume("orders", 200)) == 200
    finally:
        node.kill()
