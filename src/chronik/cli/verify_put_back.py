"""`chronik verify --remote --repair`: puts an object into the store again if a local log has its batches.

The same bytes go under the same name, and only if the manifest proves them: the footer by its checksum, the
batches by their own, their total size, their offsets and their leader epochs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from crc32c import crc32c

from chronik.cli.verify_findings import ASIDE, FileFinding
from chronik.cli.verify_segment import check_segment
from chronik.model import RequestError, StorageError
from chronik.objects.store import ObjectMissing, ObjectStoreError
from chronik.private_files import make_private
from chronik.records.batch import HEADER_BYTES, check_batch, read_header
from chronik.tiering.manifest import BATCH_BYTES_MAX, RemoteManifest, RemoteSegment
from chronik.tiering.segment_copy import SegmentCopy
from chronik.tiering.uploader import INDEX_INTERVAL_MAX, INDEX_INTERVAL_MIN

if TYPE_CHECKING:
    from chronik.cli.object_thread import ObjectThread
    from chronik.cli.verify_remote import RemotePartition

__all__ = ["PutBack"]

_PIECE_BYTES: Final = 1024 * 1024


class _FileSource:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read_at(self, position: int, size: int) -> bytes:
        self._file.seek(position)
        return self._file.read(size)


class PutBack:
    def __init__(self, objects: ObjectThread, folders: Sequence[Path]) -> None:
        """`folders` are the data directories whose logs may have what is missing."""
        self._objects = objects
        self._folders = folders
        self._aside = folders[0] / ASIDE

    def __call__(
        self,
        partition: RemotePartition,
        manifest: RemoteManifest,
        segment: RemoteSegment,
        finding: FileFinding,
    ) -> None:
        path = f"{partition.folder}/{segment.name}"
        scratch = self._aside / f"{segment.name}.again"
        log = f"{partition.topic.name}-{partition.registration.partition}"
        try:
            make_private(self._aside)
            for folder in self._folders:
                if self._is_built(scratch, folder / "topics" / log, path, partition, manifest, segment):
                    kept = self._keep(path, segment)
                    self._put(path, scratch)
                    finding.repaired = f"put again from the log in {folder}{kept}"
                    return
        except OSError as error:  # a full disk, for one: it takes the object twice
            finding.what += f"; it could not be put back: {self._aside}: {error.strerror or error}"
        finally:
            scratch.unlink(missing_ok=True)

    def _is_built(
        self,
        scratch: Path,
        log: Path,
        path: str,
        partition: RemotePartition,
        manifest: RemoteManifest,
        segment: RemoteSegment,
    ) -> bool:
        with scratch.open("w+b") as file:
            size = 0
            for batch in local_batches(log, segment.base_offset, segment.end_offset):
                size += file.write(batch)
                if size > segment.log_bytes:
                    return False
            footer = self._footer(path, segment) if size == segment.log_bytes else None
            if footer is None and size == segment.log_bytes:
                footer = _built_footer(file, partition, segment)
            if footer is None:
                return False
            file.seek(size)
            file.write(footer)
            file.flush()
            return not check_segment(_FileSource(file), segment.size_bytes, segment, manifest.epochs).faults

    def _footer(self, path: str, segment: RemoteSegment) -> bytes | None:
        """That of the object, if it is sound."""
        get = self._objects.door.get(path, segment.log_bytes, segment.footer_bytes)
        try:
            data = self._objects.run(get)
        except ObjectStoreError:
            return None
        return data if crc32c(data) == segment.footer_crc else None

    def _keep(self, path: str, segment: RemoteSegment) -> str:
        """What stands under the name now goes into a file; a sentence about that."""
        found = self._objects.run(self._objects.door.listed(path.rpartition("/")[0]))
        size = next((one.size_bytes for one in found if one.name == path), None)
        if size is None:
            return ""
        number = 0
        while (target := self._aside / f"{segment.name}.{number}").exists():
            number += 1
        with target.open("xb") as file:
            for start in range(0, size, _PIECE_BYTES):
                get = self._objects.door.get(path, start, min(_PIECE_BYTES, size - start))
                try:
                    file.write(self._objects.run(get))
                except ObjectMissing:
                    break
        return f"; what stood there is in {target}"

    def _put(self, path: str, scratch: Path) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            with scratch.open("rb") as file:
                while piece := file.read(_PIECE_BYTES):
                    yield piece

        self._objects.run(self._objects.door.put(path, chunks))


def _built_footer(file: BinaryIO, partition: RemotePartition, segment: RemoteSegment) -> bytes | None:
    """Built as the uploader does; None unless the checksum is the one that was noted. Without aborted
    transactions, which only a node that runs knows."""
    asked = int(partition.topic.configs.get("index.interval.bytes", INDEX_INTERVAL_MIN))
    for interval in dict.fromkeys(
        (min(max(asked, INDEX_INTERVAL_MIN), INDEX_INTERVAL_MAX), INDEX_INTERVAL_MIN)
    ):
        copy = SegmentCopy(segment.name, segment.base_offset, segment.end_offset, interval)
        file.seek(0)
        try:
            for piece in iter(lambda: file.read(_PIECE_BYTES), b""):
                copy.feed(piece)
            footer = copy.finish(())
        except (RequestError, StorageError):
            return None
        if crc32c(footer) == segment.footer_crc:
            return footer
    return None


def local_batches(log: Path, base_offset: int, end_offset: int) -> Iterator[bytes]:
    """Sound batches of a local log that reach into these offsets, up to the first one that is damaged."""
    paths = sorted((one for one in log.glob("*.log") if one.stem.isdigit()), key=lambda one: int(one.stem))
    for path, following in zip(paths, [*paths[1:], None], strict=True):
        if following is not None and int(following.stem) <= base_offset:
            continue
        if int(path.stem) >= end_offset:
            return
        with path.open("rb") as file:
            while len(header_bytes := file.read(HEADER_BYTES)) == HEADER_BYTES:
                header = read_header(header_bytes)
                if (
                    header.base_offset >= end_offset
                    or not HEADER_BYTES <= header.size_bytes <= BATCH_BYTES_MAX
                ):
                    break
                if header.last_offset < base_offset:
                    file.seek(header.size_bytes - HEADER_BYTES, 1)
                    continue
                batch = header_bytes + file.read(header.size_bytes - HEADER_BYTES)
                try:
                    check_batch(batch)
                except RequestError:
                    return
                yield batch
