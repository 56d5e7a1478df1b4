"""`chronik verify --remote`: is what the metadata names in the object store there, whole and as stored?

The metadata log has the manifest's checksum, the manifest those of the footers, each batch its own. Objects
that nothing names are told and left alone: the partition's leader removes them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from chronik.cli.object_thread import ObjectThread
from chronik.cli.verify_findings import FileFinding, Place
from chronik.cli.verify_segment import CheckedSegment, ObjectBytes, check_segment
from chronik.model import TooNew
from chronik.objects.store import LIST_MAX, ObjectMissing, ObjectStoreError, StoredObject
from chronik.tiering.manifest import (
    MANIFEST_BYTES_MAX,
    DamagedObject,
    RemoteManifest,
    RemoteSegment,
    cluster_folder,
    decode_manifest,
)
from chronik.words import counted, human_bytes

if TYPE_CHECKING:
    from chronik.metadata.commands import RemoteLog
    from chronik.metadata.state import ClusterState
    from chronik.metadata.values import PartitionRegistration, Topic

__all__ = ["RemoteCheck", "RemotePartition", "remote_partitions"]

RANGE_BYTES: Final = 8 * 1024 * 1024
"""Read at a time; the store's time-out counts for one call."""

Advance = Callable[[int], None]
Repair = Callable[["RemotePartition", RemoteManifest, RemoteSegment, FileFinding], None]
"""Tries to put a segment's object back; what was done stands in the finding then."""


class RemotePartition(NamedTuple):
    topic: Topic
    registration: PartitionRegistration
    folder: str
    """In the store."""

    @property
    def place(self) -> Place:
        return Place(self.topic.name, self.registration.partition)

    @property
    def remote(self) -> RemoteLog | None:
        """None if nothing of it is in the store."""
        found = self.registration.remote
        return found if found is not None and found.manifest else None


def remote_partitions(state: ClusterState) -> list[RemotePartition]:
    """All partitions, since what nothing names may lie in the folder of any."""
    if state.cluster_id is None:
        return []
    root = cluster_folder(state.cluster_id)
    return [
        RemotePartition(topic, one, f"{root}/{topic.topic_id.hex}/{one.partition}")
        for topic in sorted(state.topics.values(), key=lambda each: each.name)
        for one in topic.partitions
    ]


class ObjectRange:
    """Reads of one object, in large pieces."""

    def __init__(self, objects: ObjectThread, name: str, size: int, advance: Advance) -> None:
        self._objects = objects
        self._name = name
        self._size = size
        self._advance = advance
        self._piece = b""
        self._start = self._read_until = 0

    def read_at(self, position: int, size: int) -> bytes:
        size = max(min(size, self._size - position), 0)
        if not self._start <= position <= position + size <= self._start + len(self._piece):
            whole = min(max(size, RANGE_BYTES), self._size - position)
            self._piece = self._objects.run(self._objects.door.get(self._name, position, whole))
            self._start = position
            self._advance(max(position + whole - max(self._read_until, position), 0))
            self._read_until = max(self._read_until, position + whole)
        inside = position - self._start
        return self._piece[inside : inside + size]


class RemoteCheck:
    def __init__(
        self, objects: ObjectThread, state: ClusterState, advance: Advance, repair: Repair | None = None
    ) -> None:
        self._objects = objects
        self._state = state
        self._advance = advance
        self._repair = repair
        self.findings: list[FileFinding] = []
        self.object_count = 0
        """Objects that were read."""
        self.size_bytes = 0
        self.partitions = remote_partitions(state)
        self.expected_bytes = sum(
            one.remote.manifest_bytes + one.remote.size_bytes for one in self.partitions if one.remote
        )

    def run(self) -> None:
        """A store that cannot be read is a finding as well: what is left was not checked then."""
        try:
            for partition in self.partitions:
                self._check(partition)
            self._unknown_topics()
        except ObjectStoreError as error:
            what = f"{error}; what comes behind it was not checked"
            self._find(self._objects.door.address, -1, "unreadable object store", what, None)

    def _find(
        self, name: str, position: int, kind: str, what: str, place: Place | None, *, harmless: bool = False
    ) -> FileFinding:
        finding = FileFinding(name, position, kind, what, is_harmless=harmless)
        if place is not None:
            finding.topic, finding.partition, finding.offset = place
        self.findings.append(finding)
        return finding

    def _get(self, name: str, size: int) -> bytes:
        pieces = []
        for start in range(0, size, RANGE_BYTES):
            pieces.append(
                self._objects.run(self._objects.door.get(name, start, min(RANGE_BYTES, size - start)))
            )
            self._advance(len(pieces[-1]))
        return b"".join(pieces)

    def _check(self, partition: RemotePartition) -> None:
        if (partition.registration.remote is None) and not self._is_tiered(partition):
            return
        found = self._objects.run(self._objects.door.listed(partition.folder))
        there = {one.name.rpartition("/")[2]: one for one in found}
        named: set[str] = set()
        remote = partition.remote
        if remote is not None:
            named.add(remote.manifest)
            manifest = self._manifest(partition, remote, there)
            if manifest is None:
                return  # what counts is not known
            named |= {one.name for one in manifest.segments}
            # A listing that is full may have left some out.
            sizes = {name: one.size_bytes for name, one in there.items()}
            for segment in manifest.segments:
                size = sizes.get(segment.name, segment.size_bytes if len(found) >= LIST_MAX else None)
                self._segment(partition, manifest, segment, size)
        self._unnamed(partition.folder, [one for name, one in there.items() if name not in named])

    @staticmethod
    def _is_tiered(partition: RemotePartition) -> bool:
        return partition.topic.configs.get("remote.storage.enable") == "true"

    # --- the manifest --------------------------------------------------------------------------------

    def _manifest(
        self, partition: RemotePartition, remote: RemoteLog, there: dict[str, StoredObject]
    ) -> RemoteManifest | None:
        path = f"{partition.folder}/{remote.manifest}"
        place = partition.place._replace(offset=remote.start_offset)
        what = "none of this name is in the store"
        kind = "missing manifest"
        stored = there.get(remote.manifest)
        if stored is not None:
            kind = "damaged manifest"
            if stored.size_bytes != remote.manifest_bytes:
                what = f"it has {stored.size_bytes} bytes, not {remote.manifest_bytes}"
            elif not 0 < remote.manifest_bytes <= MANIFEST_BYTES_MAX:
                what = f"it cannot have {remote.manifest_bytes} bytes"
            else:
                try:
                    found = decode_manifest(self._get(path, remote.manifest_bytes), remote)
                    self.object_count += 1
                    self.size_bytes += remote.manifest_bytes
                    return found
                except (DamagedObject, TooNew) as error:
                    what = str(error)
        later = [name for name in there if name.endswith(".manifest") and name > remote.manifest]
        if later:
            what += (
                f"; {max(later)} is newer: if other nodes ran on while this one was stopped, its metadata is "
                "old; check the directory of the node that was stopped last"
            )
        else:
            what += (
                f"; of {partition.place} below offset {remote.end_offset} only what is on a local disk can "
                "be read: bring the object back if the store keeps former versions, or give these records up "
                "(kafka-delete-records.sh to that offset)"
            )
        self._find(path, 0 if stored is not None else -1, kind, what, place)
        return None

    # --- segments --------------------------------------------------------------------------------------

    def _segment(
        self,
        partition: RemotePartition,
        manifest: RemoteManifest,
        segment: RemoteSegment,
        size: int | None,
    ) -> None:
        path = f"{partition.folder}/{segment.name}"
        place = partition.place._replace(offset=segment.base_offset)
        before = len(self.findings)
        if size is None:
            self._find(path, -1, "missing object", "none of this name is in the store", place)
        else:
            if size != segment.size_bytes:
                what = f"it has {size} bytes, not {segment.size_bytes}"
                self._find(path, min(size, segment.size_bytes), "wrong size of an object", what, place)
            self._read(partition, manifest, segment, path, size)
        for finding in self.findings[before:]:
            if self._repair is not None and not finding.repaired:
                self._repair(partition, manifest, segment, finding)
                if finding.repaired:
                    for other in self.findings[before:]:
                        other.repaired = finding.repaired
            if not finding.repaired:
                finding.what += (
                    f"; it has offsets {segment.base_offset} to {segment.end_offset - 1}: bring it back if "
                    "the store keeps former versions, or use --repair on a node that still has these records"
                )

    def _read(
        self,
        partition: RemotePartition,
        manifest: RemoteManifest,
        segment: RemoteSegment,
        path: str,
        size: int,
    ) -> None:
        source: ObjectBytes = ObjectRange(self._objects, path, size, self._advance)
        try:
            checked = check_segment(source, size, segment, manifest.epochs)
        except ObjectMissing:
            place = partition.place._replace(offset=segment.base_offset)
            self._find(path, -1, "missing object", "it was removed meanwhile", place)
            return
        self.object_count += 1
        self.size_bytes += size
        self._note(partition, path, checked)

    def _note(self, partition: RemotePartition, path: str, checked: CheckedSegment) -> None:
        for fault in checked.faults:
            place = partition.place._replace(offset=fault.offset)
            self._find(path, fault.position, fault.kind, fault.why, place)

    # --- what nothing names ----------------------------------------------------------------------------

    def _unnamed(self, folder: str, left: Sequence[StoredObject]) -> None:
        if not left:
            return
        size = human_bytes(sum(one.size_bytes for one in left))
        what = (
            f"{counted(len(left), 'object')} ({size}) that the manifest does not name, such as "
            f"{left[0].name.rpartition('/')[2]}: of an upload that did not end, or replaced, or deleted; the "
            "partition's leader removes them"
        )
        self._find(folder, -1, "objects that do not count", what, None, harmless=True)

    def _unknown_topics(self) -> None:
        if self._state.cluster_id is None:
            return
        root = cluster_folder(self._state.cluster_id)
        known = {topic.topic_id for topic in self._state.topics.values()}
        for name in self._objects.run(self._objects.door.folders(root)):
            if _topic_id(name) not in known:
                what = (
                    "a topic that the metadata does not know: it was deleted, or is newer than the metadata"
                )
                self._find(f"{root}/{name}", -1, "objects that do not count", what, None, harmless=True)


def _topic_id(folder: str) -> UUID | None:
    try:
        return UUID(hex=folder)
    except ValueError:
        return None


def without_hole(
    partitions: Sequence[RemotePartition], folders: Sequence[Path], data_dir: Path
) -> Iterator[FileFinding]:
    """Local logs that begin behind what is in the store: nobody has the records between."""
    for partition in partitions:
        remote = partition.remote  # an emptied one holds nothing that could be missing before a log
        for folder in folders if remote is not None else ():
            name = f"{partition.topic.name}-{partition.registration.partition}"
            log = folder / "topics" / name
            first = min((int(path.stem) for path in log.glob("*.log") if path.stem.isdigit()), default=None)
            if remote is None or first is None or first <= remote.end_offset:
                continue
            what = (
                f"the store ends at offset {remote.end_offset}, this log begins at {first}: the records "
                "between are neither in the store nor on this disk; other replicas may have them"
            )
            place = partition.place._replace(offset=remote.end_offset)
            finding = FileFinding(str(log.relative_to(data_dir)), -1, "missing offsets", what)
            yield dataclasses.replace(
                finding, topic=place.topic, partition=place.partition, offset=place.offset
            )
