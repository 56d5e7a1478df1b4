"""Whether a data directory lost its checkpoints: recovery refuses such a one.

A directory without a checkpoint is empty, or of a node that ended before its first one: then the WAL has
everything that was ever written. In any other case recovery would start from nothing and drop segments that
hold acknowledged records, and the node would forget its vote. Segments alone cannot replace a checkpoint:
they tell neither the vote, nor what had been cut off them, nor whether their end is the log's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from chronik.model import METADATA_TOPIC, METADATA_TOPIC_ID, StorageError
from chronik.records.batch import BatchHeader, headers
from chronik.storage.disk import Disk
from chronik.storage.soundness import find_fault
from chronik.storage.wal_format import EntryHeader, WalEntryKind, WalScanner

_NO_END: Final = 1 << 62
SNAPSHOT_PREFIX: Final = "metadata-snapshot-"


def refusal(root: Path, why: str) -> StorageError:
    return StorageError(
        f"{root}: {why}, so a start could lose acknowledged records: run `chronik verify --repair {root}`, "
        "and if that does not help move the directory away and let the replicas copy (a node that is alone "
        "needs a backup)"
    )


def wal_names(disk: Disk, root: Path) -> list[str]:
    """The files of the WAL, oldest first, without spares."""
    return [name for name in disk.list(root / "wal") if name.endswith(".wal") and name[:-4].isdigit()]


def what_is_lost(disk: Disk, root: Path) -> str:
    """Blocking, where there is no checkpoint: why recovery must not begin from nothing. Empty if the WAL has
    all there ever was."""
    names = wal_names(disk, root)
    last_segments = _last_segments(disk, root / "topics")
    if not names:
        has_snapshot = any(name.startswith(SNAPSHOT_PREFIX) for name in disk.list(root))
        return "its checkpoints and its WAL are missing" if last_segments or has_snapshot else ""
    for place, name in enumerate(names):
        if int(name[:-4]) != place:
            return f"its checkpoints are missing, and so are WAL files before {name}"
    if last_segments:
        ends = _ends_in_wal(disk, root / "wal", names)
        for folder, path in last_segments.items():
            if _end_of(disk, path) > ends.get(folder, 0):
                return f"its checkpoints are missing, and its WAL lacks records of topics/{folder}"
    return ""


def _last_segments(disk: Disk, topics: Path) -> dict[str, Path]:
    """The last segment of each log that is not empty, by the log's folder."""
    found: dict[str, Path] = {}
    for folder in disk.list(topics):
        if not folder.rpartition("-")[2].isdigit():
            continue  # a deleted log, or nothing of ours
        for name in disk.list(topics / folder):
            path = topics / folder / name
            if name.endswith(".log") and name[:-4].isdigit() and disk.size(path):
                found[folder] = path
    return found


def _end_of(disk: Disk, path: Path) -> int:
    """Where the sound batches of a segment end."""
    end = 0

    def on_batch(_position: int, header: BatchHeader) -> None:
        nonlocal end
        end = header.next_offset

    file = disk.open(path)
    try:
        find_fault(file.read_at, file.size(), int(path.stem), _NO_END, on_batch)
    finally:
        file.close()
    return end


def _ends_in_wal(disk: Disk, directory: Path, names: list[str]) -> dict[str, int]:
    """The highest end that the WAL shows for each log directory. Later cuts and deletions need no check:
    recovery repeats them."""
    topics = {METADATA_TOPIC_ID.bytes: METADATA_TOPIC}
    ends: dict[str, int] = {}
    sequence = -1

    def is_needed(header: EntryHeader) -> bool:
        return header.kind in (WalEntryKind.APPEND, WalEntryKind.OPEN)

    for name in names:
        file = disk.open(directory / name)
        try:
            scanner = WalScanner(name, file.read_at, file.size(), sequence, is_last_file=name == names[-1])
            for entry in scanner.entries(is_needed):
                header = entry.header
                if header.kind == WalEntryKind.OPEN:
                    topics[header.topic_id] = entry.payload.decode()
                elif header.kind == WalEntryKind.APPEND and header.topic_id in topics:
                    folder = f"{topics[header.topic_id]}-{header.partition}"
                    for _, batch in headers(entry.payload):
                        ends[folder] = max(ends.get(folder, 0), batch.next_offset)
            sequence = max(sequence, scanner.last_sequence)
        finally:
            file.close()
    return ends
