from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node import ChronikNode


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ChronikNode]:
    """A node with small files, so that rolling, checkpoints and many WAL files all happen in a short test."""
    made = ChronikNode(
        tmp_path / "node", wal_profile="ultra", wal_file_bytes=1024 * 1024, segment_bytes=1024 * 1024
    )
    yield made
    made.kill()
