"""What `chronik verify` finds, and the ways in which it repairs: whatever it takes away is kept aside."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from chronik.storage.disk import RealDisk
from chronik.storage.segment import Segment

ASIDE: Final = "verify-aside"
_INDEX_INTERVAL_BYTES: Final = 4096

FROM_REPLICA: Final = (
    "start the node: when it meets this it takes the records from a replica that is in sync, if there is one"
)
NOT_NOTICED: Final = (
    "a node does not fetch what is missing again by itself: if other replicas have it, take this one away "
    "and give it back (kafka-reassign-partitions.sh), or empty the data directory"
)
FROM_NOTHING: Final = (
    "do not start the node on this directory; move it away, and the node takes everything from the other "
    "replicas (one that is alone needs a backup)"
)


class Place(NamedTuple):
    """The partition, and the offset from which on a finding concerns it."""

    topic: str
    partition: int
    offset: int | None = None

    def __str__(self) -> str:
        where = f"{self.topic}-{self.partition}"
        return where if self.offset is None else f"{where} from offset {self.offset}"

    @classmethod
    def of_folder(cls, folder: Path, offset: int | None = None) -> Place:
        topic, _, partition = folder.name.rpartition("-")
        return cls(topic, int(partition), offset) if partition.isdigit() else cls(folder.name, -1, offset)


@dataclasses.dataclass(slots=True)
class FileFinding:
    file: str
    """Relative to the data directory."""
    position: int
    """Byte of the file; -1 where it concerns the whole of it."""
    kind: str
    what: str
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    """First offset that is concerned, as far as that is known."""
    is_harmless: bool = False
    """Nothing is damaged: the node settles it at its next start."""
    repaired: str = ""
    """What was done about it; empty if nothing was."""

    def as_dict(self) -> dict[str, object]:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        at = f" at byte {self.position}" if self.position >= 0 else ""
        kind = f"{self.kind} (harmless)" if self.is_harmless else self.kind
        done = f" [{self.repaired}]" if self.repaired else ""
        return f"{self.file}{at}: {kind}: {self.what}{done}"


class Inspection:
    """The data directory under inspection: collects findings, carries out repairs if it `is_repairing`."""

    def __init__(self, root: Path, disk: RealDisk, *, is_repairing: bool) -> None:
        self.root = root
        self.disk = disk
        self.is_repairing = is_repairing
        self.findings: list[FileFinding] = []

    def find(
        self,
        path: Path,
        position: int,
        kind: str,
        what: str,
        place: Place | None = None,
        *,
        is_harmless: bool = False,
    ) -> FileFinding:
        finding = FileFinding(str(path.relative_to(self.root)), position, kind, what, is_harmless=is_harmless)
        if place is not None:
            finding.topic, finding.partition, finding.offset = place
        self.findings.append(finding)
        return finding

    def settled(self, kind: str, by: FileFinding, repaired: str) -> None:
        """A repair of one finding settles those of another kind at the same offset."""
        place = (by.topic, by.partition, by.offset)
        for one in self.findings:
            if one.kind == kind and (one.topic, one.partition, one.offset) == place:
                one.repaired = repaired

    def read(self, path: Path, position: int, size: int) -> bytes:
        file = self.disk.open(path)
        try:
            return file.read_at(position, size)
        finally:
            file.close()

    # --- repairs -----------------------------------------------------------------------------------

    def _aside(self, path: Path, position: int = 0) -> Path:
        name = "__".join(path.relative_to(self.root).parts)
        folder = self.root / ASIDE
        folder.mkdir(mode=0o700, exist_ok=True)
        number = 0
        while (target := folder / f"{name}.{position}.{number}").exists():
            number += 1
        return target

    def _keep(self, path: Path, position: int, size: int) -> Path:
        target = self._aside(path, position)
        kept = self.disk.open(target, create=True)
        try:
            kept.write_at(0, [self.read(path, position, size)])
            kept.sync()
        finally:
            kept.close()
        return target

    def cut(self, finding: FileFinding, path: Path, position: int) -> None:
        if not self.is_repairing:
            return
        target = self._keep(path, position, path.stat().st_size - position)
        file = self.disk.open(path)
        try:
            file.truncate(position)
            file.sync()
        finally:
            file.close()
        finding.repaired = f"cut; what stood there is in {target.relative_to(self.root)}"

    def overwrite(self, finding: FileFinding, path: Path, position: int, data: bytes, source: str) -> None:
        target = self._keep(path, position, len(data))
        file = self.disk.open(path)
        try:
            file.write_at(position, [data])
            file.sync()
        finally:
            file.close()
        finding.repaired = f"written again from {source}; what stood there is in "
        finding.repaired += str(target.relative_to(self.root))

    def set_aside(self, finding: FileFinding, path: Path) -> None:
        if self.is_repairing:
            target = self._aside(path)
            os.replace(path, target)
            finding.repaired = f"moved to {target.relative_to(self.root)}"

    def replace(self, finding: FileFinding, path: Path, source: Path) -> None:
        """Put a copy of `source` in the place of a file, which may be missing."""
        if not self.is_repairing:
            return
        if path.exists():
            self.set_aside(finding, path)
            finding.repaired += "; "
        copy = self.disk.open(scratch := path.with_name(path.name + ".new"), create=True)
        try:
            copy.truncate(0)
            copy.write_at(0, [source.read_bytes()])
            copy.sync()
        finally:
            copy.close()
        self.disk.rename(scratch, path)
        self.disk.sync_directory(path.parent)
        finding.repaired += f"{source.name} was copied to {path.name}"

    def rebuild(self, findings: Sequence[FileFinding], path: Path) -> None:
        """Write both indexes of a segment again from its log."""
        if not self.is_repairing or not findings:
            return
        kept = []
        for suffix in (".index", ".timeindex"):
            former = path.with_suffix(suffix)
            if former.exists():
                kept.append(self._aside(former))
                shutil.copy2(former, kept[-1])
        base_offset = int(path.stem)
        segment = Segment.load(
            self.disk, path.parent, base_offset, index_interval_bytes=_INDEX_INTERVAL_BYTES
        )
        segment.rebuild_indexes()
        segment.seal()
        segment.close()
        for finding in findings:
            finding.repaired = "both indexes rebuilt from the log"
            if kept:
                finding.repaired += f"; the former ones are in {', '.join(p.name for p in kept)}"
