"""The checks of `chronik verify`, in their order, and repairs that need nothing but the directory.

The checkpoint says which bytes were acknowledged. Without it nothing is cut: what looks like an unfinished
write may be what somebody was promised. Nor is a segment cut that another one follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from chronik.cli.offline_metadata import cluster_state, compacted_topics
from chronik.cli.verify_findings import ASIDE, FROM_NOTHING, NOT_NOTICED, FileFinding, Inspection, Place
from chronik.cli.verify_logs import LogCheck, segments_of
from chronik.cli.verify_metadata import METADATA_PLACE, check_metadata, check_small_files
from chronik.cli.verify_wal import Replay, WalCheck
from chronik.metadata.state import ClusterState
from chronik.records.batch import HEADER_BYTES, read_header
from chronik.storage import checkpoint as checkpoints
from chronik.storage.checkpoint import Checkpoint, LogState
from chronik.storage.disk import RealDisk
from chronik.storage.lost_checkpoint import what_is_lost
from chronik.storage.producer_state import ProducerStates

__all__ = ["ASIDE", "FileFinding", "Verification"]

_MISSING: Final = "missing checkpoint"

Advance = Callable[[int], None]


class Verification:
    def __init__(self, root: Path, *, repair: bool) -> None:
        self._root = root
        self._loop = asyncio.new_event_loop()
        self._disk = RealDisk(self._loop)
        self._inspection = Inspection(root, self._disk, is_repairing=repair)
        self._wal_files = sorted(p for p in (root / "wal").glob("*.wal") if p.stem.isdigit())
        self._folders = sorted(p for p in (root / "topics").iterdir() if p.is_dir())
        self._snapshots = sorted(p for p in root.glob("metadata-snapshot-*") if p.suffix != ".new")
        self._segments = {folder: segments_of(folder) for folder in self._folders}
        checked = [*self._wal_files, *(path for paths in self._segments.values() for path in paths)]
        self._lost = ""
        """Why a start without a checkpoint is refused; empty if it is not, or if there is a checkpoint."""
        self.metadata: ClusterState | None = None
        """What the directory knows of the cluster, once it was checked; None if that cannot be read."""
        self.file_count = len(checked) + len(self._snapshots)
        self.size_bytes = sum(path.stat().st_size for path in checked)

    @property
    def findings(self) -> list[FileFinding]:
        return self._inspection.findings

    def run(self, advance: Advance) -> None:
        try:
            self._run(advance)
        finally:
            self._disk.close()
            self._loop.close()

    def _run(self, advance: Advance) -> None:
        newest, former = self._checkpoints()
        checkpoint = newest or former
        logs = checkpoint.logs if checkpoint is not None else []
        states = {f"{state.topic}-{state.partition}": state for state in logs}
        self._producers(logs)
        is_cut_back = newest is not None and former is not None and newest.sequence == former.sequence
        wal = WalCheck(self._inspection, checkpoint, advance)
        wal.run(self._wal_files, is_cut_back=is_cut_back)
        self._missing_wal(checkpoint)
        replay = wal.replays.get(METADATA_PLACE, Replay())
        self.metadata = cluster_state(self._root, wal.appends(METADATA_PLACE), replay.cut_at)
        compacted = compacted_topics(self.metadata) if self.metadata is not None else frozenset()
        is_stopped = checkpoint is not None and checkpoint.clean and not wal.replays
        for folder in self._folders:
            if not folder.name.endswith("-delete"):
                LogCheck(
                    self._inspection,
                    folder,
                    states.get(folder.name),
                    wal,
                    is_checkpoint_read=checkpoint is not None,
                    is_stopped=is_stopped,
                    is_compacted=folder.name.rpartition("-")[0] in compacted,
                    is_first_run=not self._has_checkpoint_file() and not self._lost,
                ).run(advance)
        for name, state in states.items():
            self._missing_log(self._root / "topics" / name, state, wal)
        log = states.get("{}-{}".format(*METADATA_PLACE))
        log_start = max(log.log_start_offset if log is not None else 0, replay.start)
        check_metadata(self._inspection, self._snapshots, log_start)
        self.file_count += check_small_files(self._inspection)
        wal.settle(self._segment_bytes)
        if self._lost and self._inspection.is_repairing and not what_is_lost(self._disk, self._root):
            for finding in self.findings:
                if finding.kind == _MISSING:
                    finding.repaired = "the WAL has everything again, so none is needed"

    # --- checkpoint ----------------------------------------------------------------------------------

    def _checkpoints(self) -> tuple[Checkpoint | None, Checkpoint | None]:
        """The newest and the former checkpoint; None for one that cannot be read."""
        paths = [self._root / name for name in (checkpoints.FILE_NAME, checkpoints.FORMER_NAME)]
        found = [checkpoints.decode(path.read_bytes()) if path.exists() else None for path in paths]
        self.file_count += sum(path.exists() for path in paths)
        damaged = [path for path, one in zip(paths, found, strict=True) if one is None and path.exists()]
        for path in damaged:
            what = "its checksum does not match"
            if found == [None, None]:
                what += f", and no other one can be read: the node does not start; {FROM_NOTHING}"
            finding = self._inspection.find(path, 0, "damaged checkpoint", what)
            for other, one in zip(paths, found, strict=True):
                if one is not None:
                    finding.what += f"; {other.name} serves"
                    self._inspection.replace(finding, path, other)
        if not paths[0].exists() and found[1] is not None:
            what = f"the node ended while it wrote one; {paths[1].name} serves"
            finding = self._inspection.find(paths[0], -1, _MISSING, what, is_harmless=True)
            self._inspection.replace(finding, *paths)
        elif not self._has_checkpoint_file() and (lost := what_is_lost(self._disk, self._root)):
            self._lost = lost
            what = f"{lost}: the node does not start; {FROM_NOTHING}"
            self._inspection.find(paths[0], -1, _MISSING, what)
        return found[0], found[1]

    def _has_checkpoint_file(self) -> bool:
        return any((self._root / name).exists() for name in (checkpoints.FILE_NAME, checkpoints.FORMER_NAME))

    def _producers(self, logs: list[LogState]) -> None:
        path = self._root / checkpoints.FILE_NAME
        for state in logs:
            try:
                if state.producers:
                    ProducerStates.restore(state.producers)
            except ValueError as error:
                place = Place(state.topic, state.partition)
                self._inspection.find(path, -1, "damaged producer state", f"{place}: {error}", place)

    # --- what is not there ---------------------------------------------------------------------------

    def _missing_wal(self, checkpoint: Checkpoint | None) -> None:
        """The last file of a WAL is never removed."""
        if (
            self._wal_files
            or checkpoint is None
            or not any(state.log_end_offset for state in checkpoint.logs)
        ):
            return
        what = "all of its files are gone"
        if checkpoint.clean:
            what += "; the node was stopped in order, so segments have what was in them: nothing is lost"
        else:
            what += "; what was written since the checkpoint is lost on this disk, other replicas may have it"
        self._inspection.find(self._root / "wal", -1, "missing WAL file", what)

    def _missing_log(self, folder: Path, state: LogState, wal: WalCheck) -> None:
        place = Place(state.topic, state.partition)
        if (
            folder in self._segments
            or not state.active_bytes
            or wal.replays.get(place[:2], Replay()).is_reset
        ):
            return
        what = f"the checkpoint knows it, its directory is gone; {NOT_NOTICED}"
        self._inspection.find(folder, -1, "missing log", what, place)

    def _segment_bytes(self, place: Place, size: int) -> bytes | None:
        """Read that many bytes, from the batch at an offset on, out of the segment that has it."""
        folder = self._root / "topics" / f"{place.topic}-{place.partition}"
        offset = place.offset or 0
        path = next((p for p in reversed(segments_of(folder)) if int(p.stem) <= offset), None)
        if path is None:
            return None
        position = 0
        while len(data := self._inspection.read(path, position, HEADER_BYTES)) == HEADER_BYTES:
            header = read_header(data)
            if header.base_offset == offset:
                return self._inspection.read(path, position, size)
            if header.base_offset > offset or header.size_bytes < HEADER_BYTES:
                return None
            position += header.size_bytes
        return None
