"""The checks of `chronik verify`, one per kind of file, and repairs that need nothing but the directory."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from crc32c import crc32c

from chronik.metadata.commands import decode_entry
from chronik.metadata.snapshot import decode_snapshot
from chronik.model import METADATA_TOPIC, RequestError, TooNew
from chronik.raft.entries import EntryKind, Snapshot
from chronik.records.batch import BatchHeader
from chronik.records.reader import read_records
from chronik.storage import checkpoint as checkpoints
from chronik.storage.checkpoint import Checkpoint, LogState
from chronik.storage.disk import RealDisk, RealFile
from chronik.storage.index import OffsetIndex, TimeIndex
from chronik.storage.producer_state import ProducerStates
from chronik.storage.segment import Segment
from chronik.storage.soundness import SegmentFault, find_fault
from chronik.storage.wal_format import WalScanner

ASIDE: Final = "verify-aside"
_NO_END: Final = 1 << 62
_INDEX_INTERVAL_BYTES: Final = 4096
_ENDLESS: Final = -1

Advance = Callable[[int], None]


@dataclasses.dataclass(slots=True)
class FileFinding:
    file: str
    """Relative to the data directory."""
    position: int
    """Byte of the file; -1 where it concerns the whole of it."""
    kind: str
    what: str
    repaired: str = ""
    """What was done about it; empty if nothing was."""

    def as_dict(self) -> dict[str, object]:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        at = f" at byte {self.position}" if self.position >= 0 else ""
        done = f" [{self.repaired}]" if self.repaired else ""
        return f"{self.file}{at}: {self.kind}: {self.what}{done}"


class Verification:
    def __init__(self, root: Path, *, repair: bool) -> None:
        self._root = root
        self._repair = repair
        self._loop = asyncio.new_event_loop()
        self._disk = RealDisk(self._loop)
        self.findings: list[FileFinding] = []
        self._wal_files = sorted(p for p in (root / "wal").glob("*.wal") if p.stem.isdigit())
        self._folders = sorted(p for p in (root / "topics").iterdir() if p.is_dir())
        self._snapshots = sorted(p for p in root.glob("metadata-snapshot-*") if p.suffix != ".new")
        self._segments = {folder: _segments(folder) for folder in self._folders}
        checked = [*self._wal_files, *(path for paths in self._segments.values() for path in paths)]
        self.file_count = len(checked) + len(self._snapshots)
        self.size_bytes = sum(path.stat().st_size for path in checked)

    def run(self, advance: Advance) -> None:
        try:
            checkpoint = self._checkpoint()
            states = {f"{state.topic}-{state.partition}": state for state in checkpoint.logs}
            self._producers(checkpoint)
            self._wal(advance)
            for folder in self._folders:
                if not folder.name.endswith("-delete"):
                    self._log(folder, states.get(folder.name), advance)
            for name, state in states.items():
                folder = self._root / "topics" / name
                if folder not in self._segments and state.active_bytes:
                    self._find(folder, -1, "missing log", "the checkpoint knows it, its directory is gone")
            self._metadata()
        finally:
            self._disk.close()
            self._loop.close()

    def _find(self, path: Path, position: int, kind: str, what: str) -> FileFinding:
        finding = FileFinding(str(path.relative_to(self._root)), position, kind, what)
        self.findings.append(finding)
        return finding

    # --- checkpoint and WAL --------------------------------------------------------------------------

    def _checkpoint(self) -> Checkpoint:
        found: Checkpoint | None = None
        for name in (checkpoints.FILE_NAME, checkpoints.FORMER_NAME):
            path = self._root / name
            if path.exists():
                self.file_count += 1
                decoded = checkpoints.decode(path.read_bytes())
                if decoded is None:
                    self._find(path, 0, "damaged checkpoint", "its checksum does not match")
                found = found or decoded
        return found or checkpoints.EMPTY

    def _producers(self, checkpoint: Checkpoint) -> None:
        path = self._root / checkpoints.FILE_NAME
        for state in checkpoint.logs:
            try:
                if state.producers:
                    ProducerStates.restore(state.producers)
            except (ValueError, msgspec.DecodeError) as error:
                self._find(path, -1, "damaged producer state", f"{state.topic}-{state.partition}: {error}")

    def _wal(self, advance: Advance) -> None:
        sequence = -1
        for path in self._wal_files:
            size = path.stat().st_size
            file = self._disk.open(path)
            try:
                is_last = path == self._wal_files[-1]
                scanner = WalScanner(path.name, file.read_at, size, sequence, is_last_file=is_last)
                for _ in scanner.entries():
                    pass
            finally:
                file.close()
            sequence = max(sequence, scanner.last_sequence)
            for damage in scanner.damage:
                what = f"{damage.bytes_skipped} bytes of acknowledged entries cannot be read"
                self._find(path, damage.position, "damaged WAL entry", what)
            if scanner.torn_at is not None:
                finding = self._find(
                    path, scanner.torn_at, "torn WAL tail", "a write that nobody was told of"
                )
                self._cut(finding, path, scanner.torn_at)
            advance(size)

    # --- segments and their indexes ------------------------------------------------------------------

    def _log(self, folder: Path, state: LogState | None, advance: Advance) -> None:
        paths = self._segments[folder]
        bases = [int(path.stem) for path in paths]
        if state is not None and state.active_bytes and state.log_end_offset > state.log_start_offset:
            if state.active_base_offset not in bases:
                missing = folder / f"{state.active_base_offset:020d}.log"
                self._find(missing, -1, "missing segment", "the checkpoint vouches for it")
            elif bases[0] > state.log_start_offset:
                self._find(paths[0], -1, "missing segment", f"it begins behind {state.log_start_offset}")
        for path, end_offset in zip(paths, [*bases[1:], _NO_END], strict=True):
            next_offset = self._segment(path, end_offset, _vouched(state, path))
            is_compacted = (folder / "cleaner-position").exists() or state is None
            if not is_compacted and next_offset != end_offset != _NO_END:
                self._find(path, -1, "missing offsets", f"{next_offset} to {end_offset - 1}")
            advance(path.stat().st_size)
        for path in sorted(folder.glob("*index")):
            if path.with_suffix(".log") not in paths:
                finding = self._find(path, -1, "index without a log", "no segment has this name")
                self._set_aside(finding, path)

    def _segment(self, path: Path, end_offset: int, vouched: int) -> int:
        """Returns where the segment's offsets end, as far as that is known."""
        size = path.stat().st_size
        if size < vouched:
            self._find(path, size, "short segment", f"the checkpoint vouches for {vouched} bytes")
        index = _IndexCheck(path)
        file = self._disk.open(path)
        try:
            fault = find_fault(file.read_at, size, int(path.stem), end_offset, index.on_batch)
        finally:
            file.close()
        if fault is not None:
            self._fault(path, fault, vouched)
        for suffix, why in index.wrong(is_sealed=end_offset != _NO_END, is_whole=fault is None):
            finding = self._find(path.with_suffix(suffix), -1, "damaged index", why)
            if fault is None:
                self._rebuild(finding, path)
        return end_offset if fault is not None else index.next_offset

    def _fault(self, path: Path, fault: SegmentFault, vouched: int) -> None:
        if fault.position < vouched or vouched == _ENDLESS:
            what = f"{fault.why}; offset {fault.offset} cannot be read (other replicas may have it)"
            self._find(path, fault.position, "damaged batch", what)
        else:
            what = f"{fault.why}; no checkpoint vouches for it"
            finding = self._find(path, fault.position, "torn tail", what)
            self._cut(finding, path, fault.position)

    # --- metadata ----------------------------------------------------------------------------------

    def _metadata(self) -> None:
        for path in self._snapshots:
            data = path.read_bytes()
            if len(data) <= 4 or crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
                self._find(path, 0, "damaged metadata snapshot", "its checksum does not match")
                continue
            try:
                decode_snapshot(msgspec.msgpack.decode(data[4:], type=Snapshot).data)
            except (TooNew, msgspec.DecodeError) as error:
                self._find(path, 0, "damaged metadata snapshot", str(error))
        for path in _segments(self._root / "topics" / f"{METADATA_TOPIC}-0"):
            self._metadata_log(path)

    def _metadata_log(self, path: Path) -> None:
        data = path.read_bytes()

        def read_commands(position: int, header: BatchHeader) -> None:
            try:
                for record in read_records(data, position):
                    if record.key == bytes([EntryKind.COMMAND]):
                        decode_entry(record.value or b"")
            except (TooNew, RequestError, msgspec.DecodeError) as error:
                self._find(path, position, "unreadable metadata", f"offset {header.base_offset}: {error}")

        find_fault(lambda at, size: data[at : at + size], len(data), int(path.stem), _NO_END, read_commands)

    # --- repairs -----------------------------------------------------------------------------------

    def _aside(self, path: Path, position: int = 0) -> Path:
        name = "__".join(path.relative_to(self._root).parts)
        folder = self._root / ASIDE
        folder.mkdir(mode=0o700, exist_ok=True)
        number = 0
        while (target := folder / f"{name}.{position}.{number}").exists():
            number += 1
        return target

    def _cut(self, finding: FileFinding, path: Path, position: int) -> None:
        if not self._repair:
            return
        target = self._aside(path, position)
        file: RealFile = self._disk.open(path)
        kept = self._disk.open(target, create=True)
        try:
            kept.write_at(0, [file.read_at(position, file.size() - position)])
            kept.sync()
            file.truncate(position)
            file.sync()
        finally:
            kept.close()
            file.close()
        finding.repaired = f"cut; what stood there is in {target.relative_to(self._root)}"

    def _set_aside(self, finding: FileFinding, path: Path) -> None:
        if self._repair:
            target = self._aside(path)
            os.replace(path, target)
            finding.repaired = f"moved to {target.relative_to(self._root)}"

    def _rebuild(self, finding: FileFinding, path: Path) -> None:
        if not self._repair:
            return
        kept = []
        for suffix in (".index", ".timeindex"):
            former = path.with_suffix(suffix)
            if former.exists():
                kept.append(self._aside(former))
                shutil.copy2(former, kept[-1])
        segment = Segment.load(
            self._disk, path.parent, int(path.stem), index_interval_bytes=_INDEX_INTERVAL_BYTES
        )
        segment.rebuild_indexes()
        segment.seal()
        segment.close()
        finding.repaired = "both indexes rebuilt from the log"
        if kept:
            finding.repaired += f"; the former ones are in {', '.join(p.name for p in kept)}"


def _segments(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.log") if path.stem.isdigit())


def _vouched(state: LogState | None, path: Path) -> int:
    """For how many bytes of a segment the checkpoint vouches; `_ENDLESS` for all."""
    if state is None or int(path.stem) > state.active_base_offset:
        return 0
    return state.active_bytes if int(path.stem) == state.active_base_offset else _ENDLESS


class _IndexCheck:
    """Compares the entries of both indexes with the batches as they are walked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.next_offset = int(path.stem)
        self._positions: dict[int, int] = {}
        self._times: set[tuple[int, int]] = set()
        self._broken: list[str] = []
        size = path.stat().st_size
        self._size = size
        for suffix in (".index", ".timeindex"):
            index = path.with_suffix(suffix)
            data = index.read_bytes() if index.exists() else b""
            offsets = OffsetIndex.decode(self.next_offset, data, size) if suffix == ".index" else None
            times = TimeIndex.decode(self.next_offset, data) if suffix == ".timeindex" else None
            if offsets is None and times is None:
                self._broken.append(suffix)
            if offsets is not None:
                self._positions = {position: last for last, position in offsets.before(_NO_END)}
            if times is not None:
                self._times = set(times.before(_NO_END))

    def on_batch(self, position: int, header: BatchHeader) -> None:
        self.next_offset = header.next_offset
        if self._positions.get(position) == header.last_offset:
            del self._positions[position]
        self._times.discard((header.max_timestamp, header.last_offset))

    def wrong(self, *, is_sealed: bool, is_whole: bool) -> list[tuple[str, str]]:
        """Suffix and reason of each index that does not say what the log holds."""
        found = [(suffix, "its entries make no sense") for suffix in self._broken]
        if is_whole and self._positions:
            found.append((".index", f"{len(self._positions)} entries do not point to their batch"))
        if is_whole and self._times:
            found.append((".timeindex", f"{len(self._times)} entries do not tell a batch's timestamp"))
        if is_sealed and self._size:
            for suffix in (".index", ".timeindex"):
                if not self._path.with_suffix(suffix).exists():
                    found.append((suffix, "it is missing"))
        return found
