"""What the metadata in the data directories of a cluster says of its topics, without a node that runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from crc32c import crc32c

from chronik.metadata.commands import decode_entry
from chronik.metadata.snapshot import decode_snapshot
from chronik.metadata.state import ClusterState
from chronik.model import RequestError, TooNew
from chronik.raft.entries import EntryKind, Snapshot
from chronik.records.batch import check_batch, headers
from chronik.records.reader import read_records

if TYPE_CHECKING:
    from chronik.spark.jobs.audit import Assigned

_LOG: Final = "__chronik_metadata-0"


def assigned_replicas(folders: Iterable[str]) -> Assigned | None:
    """The assigned replicas, as the directory knows them whose metadata log goes furthest; None if none can
    be read."""
    from chronik.spark.jobs.audit import Assigned

    states = [state for folder in folders if (state := _state(Path(folder))) is not None]
    if not states:
        return None
    state = max(states, key=lambda each: each.applied_index)
    return Assigned(
        replicas={
            (topic.name, number): len(partition.replicas)
            for topic in state.topics.values()
            for number, partition in enumerate(topic.partitions)
        },
        compacted=compacted_topics(state),
    )


def cluster_state(folder: Path, tail: Sequence[bytes] = (), cut_at: int | None = None) -> ClusterState | None:
    """As far as the metadata of one data directory can be read; None if it cannot.

    `tail` are the batches of the metadata log that the WAL holds, oldest first: a node that was killed has
    the newest there alone. `cut_at` is the lowest offset at which the WAL says the log was cut.
    """
    try:
        return _state(folder, tail, cut_at)
    except Exception:  # commands of which those before are lost may fail in any way
        return None


def compacted_topics(state: ClusterState) -> frozenset[str]:
    default = state.broker_configs.get("", {}).get("log.cleanup.policy", "delete")
    return frozenset(
        topic.name
        for topic in state.topics.values()
        if "compact" in topic.configs.get("cleanup.policy", default)
    )


def _state(folder: Path, tail: Sequence[bytes] = (), cut_at: int | None = None) -> ClusterState | None:
    root = folder / "topics" if (folder / "topics").is_dir() else folder
    try:
        state = _snapshot(folder) or ClusterState()
        for log in sorted((root / _LOG).glob("*.log")):
            _apply(state, log.read_bytes(), cut_at)
        for data in tail:
            _apply(state, data)
    except (OSError, RequestError, TooNew, ValueError):
        return None
    return state if state.applied_index else None


def _snapshot(folder: Path) -> ClusterState | None:
    for path in sorted(folder.glob("metadata-snapshot-*"), reverse=True):
        data = path.read_bytes()
        if not path.name.endswith(".new") and crc32c(data[4:]) == int.from_bytes(data[:4], "big"):
            return decode_snapshot(msgspec.msgpack.decode(data[4:], type=Snapshot).data)
    return None


def _apply(state: ClusterState, data: bytes, end_offset: int | None = None) -> None:
    for position, header in headers(data):
        if end_offset is not None and header.base_offset >= end_offset:
            return
        check_batch(data, position)
        for record in read_records(data, position):
            index = record.offset + 1
            if index > state.applied_index and record.key == bytes([EntryKind.COMMAND]):
                state.apply(decode_entry(record.value or b"").command, index)
