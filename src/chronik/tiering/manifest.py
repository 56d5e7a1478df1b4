"""A partition's remote segments: the list of them, and what stands behind each one's batches. Pure.

One object holds one segment: its batches as they are on disk, then a footer with indexes and the aborted
transactions. A manifest is an object that lists all segments of a partition. The metadata log has the
manifest's checksum, the manifest those of the footers, each batch its own; nothing is believed without.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Final, TypeVar

import msgspec
from crc32c import crc32c

from chronik.metadata.commands import RemoteLog
from chronik.model import ChronikError, TooNew
from chronik.storage.index import OffsetIndex, TimeIndex
from chronik.storage.producer_state import AbortedTxn

__all__ = [
    "BATCH_BYTES_MAX",
    "FOOTER_BYTES_MAX",
    "MANIFEST_BYTES_MAX",
    "SEGMENTS_MAX",
    "DamagedObject",
    "RemoteManifest",
    "RemoteSegment",
    "SegmentFooter",
    "check_manifest",
    "cluster_folder",
    "decode_footer",
    "decode_manifest",
    "encode",
    "epoch_in",
    "joined_epochs",
    "manifest_name",
    "remote_log",
    "segment_name",
]

T = TypeVar("T")

SEGMENTS_MAX: Final = 50_000
"""Remote segments of one partition. Beyond it nothing more is uploaded until retention removes some."""
MANIFEST_BYTES_MAX: Final = 16 * 1024 * 1024
BATCH_BYTES_MAX: Final = 128 * 1024 * 1024
"""A batch is read in one piece. A larger one is not uploaded."""
FOOTER_BYTES_MAX: Final = 128 * 1024 * 1024
ID_BYTES_MAX: Final = 31
"""Up to here a cluster's id names its folder itself; of a longer one it is the hash, which is longer."""
_FORMAT: Final = "v1"
_INT64: Final = 2**63
_MAGIC: Final = b"CHRT"
_VERSION: Final = 1
_EPOCH: Final = re.compile(r"([0-9a-f]{8})-[0-9]{20}-[0-9a-f]{32}\.(?:segment|manifest)")


class DamagedObject(ChronikError):
    """An object is not what was stored under its name."""


class RemoteSegment(msgspec.Struct, array_like=True, frozen=True, gc=False):
    name: str
    """Name of the object, within the partition's folder."""
    base_offset: int
    """Where it takes over from the segment before it; its first batch may begin earlier."""
    end_offset: int
    log_bytes: int
    footer_bytes: int
    footer_crc: int
    max_timestamp_ms: int
    """-1 if no batch has one."""
    written_ms: int = -1
    """When the local file was last written to: its age if no timestamp can be believed."""

    @property
    def size_bytes(self) -> int:
        return self.log_bytes + self.footer_bytes


class RemoteManifest(msgspec.Struct, array_like=True, frozen=True):
    segments: tuple[RemoteSegment, ...] = ()
    """Sorted by offset, without gaps."""
    epochs: tuple[tuple[int, int], ...] = ()
    """(leader epoch, first offset) of everything that the segments hold, both ascending."""

    def find(self, offset: int) -> RemoteSegment | None:
        low, high = 0, len(self.segments)
        while low < high:
            middle = (low + high) // 2
            if self.segments[middle].end_offset <= offset:
                low = middle + 1
            else:
                high = middle
        if low == len(self.segments) or self.segments[low].base_offset > offset:
            return None
        return self.segments[low]


class SegmentFooter(msgspec.Struct, array_like=True, frozen=True):
    """What stands behind a segment's batches; indexes in the format of Kafka's files."""

    offset_index: bytes
    time_index: bytes
    aborted: tuple[AbortedTxn, ...]
    """Aborted transactions that touch the segment."""


def encode(content: RemoteManifest | SegmentFooter) -> bytes:
    return _MAGIC + bytes((_VERSION,)) + msgspec.msgpack.encode(content)


class _Listing(msgspec.Struct, array_like=True, frozen=True):
    """A manifest whose segments are not decoded yet."""

    segments: tuple[msgspec.Raw, ...] = ()
    epochs: tuple[tuple[int, int], ...] = ()


_SEGMENT: Final = msgspec.msgpack.Decoder(RemoteSegment)


def _decode(data: bytes, crc: int, kind: type[T]) -> T:
    if crc32c(data) != crc or data[:4] != _MAGIC or len(data) < 5:
        raise DamagedObject("its checksum is not the one that was noted")
    if data[4] > _VERSION:
        raise TooNew(f"a newer release wrote it (format {data[4]}, this one knows up to {_VERSION})")
    try:
        return msgspec.msgpack.decode(data[5:], type=kind)
    except ValueError as error:
        raise DamagedObject(f"it cannot be read: {error}") from None


def decode_manifest(data: bytes, remote: RemoteLog) -> RemoteManifest:
    """DamagedObject unless it is the manifest that the metadata log names, and consistent in itself.

    Blocking if it is large. Its segments are decoded one by one, since a single call would keep all other
    threads from running until the last one is.
    """
    listing = _decode(data, remote.manifest_crc, _Listing)
    if len(listing.segments) > SEGMENTS_MAX:
        raise DamagedObject("it lists too many segments")
    try:
        found = RemoteManifest(tuple(_SEGMENT.decode(one) for one in listing.segments), listing.epochs)
    except ValueError as error:
        raise DamagedObject(f"it cannot be read: {error}") from None
    check_manifest(found, remote.start_offset, remote.end_offset)
    return found


def check_manifest(manifest: RemoteManifest, start_offset: int, end_offset: int) -> None:
    """DamagedObject unless it lists all segments of a remote log. Whoever writes one asks, too: nobody could
    read what it lists otherwise."""
    segments = manifest.segments
    if not segments or len(segments) > SEGMENTS_MAX or segments[-1].end_offset != end_offset:
        raise DamagedObject("its segments are not those of this remote log")
    if segments[0].base_offset > start_offset:
        raise DamagedObject("its first segment begins behind the log's start")
    offset = segments[0].base_offset
    for one in segments:
        if not (
            one.base_offset == offset < one.end_offset
            and one.log_bytes > 0
            and 0 < one.footer_bytes <= FOOTER_BYTES_MAX
            and _EPOCH.fullmatch(one.name)
        ):
            raise DamagedObject(f"its segments do not follow each other at offset {offset}")
        offset = one.end_offset


def decode_footer(
    data: bytes, segment: RemoteSegment
) -> tuple[OffsetIndex, TimeIndex, tuple[AbortedTxn, ...]]:
    found = _decode(data, segment.footer_crc, SegmentFooter)
    offsets = OffsetIndex.decode(segment.base_offset, found.offset_index, segment.log_bytes)
    times = TimeIndex.decode(segment.base_offset, found.time_index)
    sane = all(
        0 <= one.producer_id < _INT64 and 0 <= one.first_offset <= one.last_offset < _INT64
        for one in found.aborted
    )
    if offsets is None or times is None or not sane:
        raise DamagedObject("its index is none of this segment")
    return offsets, times, found.aborted


def cluster_folder(cluster_id: str) -> str:
    """Where in the store everything of a cluster lies.

    An id may have characters that names of objects must not have, and any length. Two clusters must never
    share a folder: each would remove what the other has there.
    """
    readable = "".join(one if one.isalnum() and one.isascii() else "_" for one in cluster_id)[:40]
    data = cluster_id.encode()
    unique = data.hex() if len(data) <= ID_BYTES_MAX else sha256(data).hexdigest()
    return f"chronik-{_FORMAT}-{readable}-{unique}"


def segment_name(leader_epoch: int, base_offset: int, unique: str) -> str:
    return f"{leader_epoch:08x}-{base_offset:020d}-{unique}.segment"


def manifest_name(leader_epoch: int, end_offset: int, unique: str) -> str:
    return f"{leader_epoch:08x}-{end_offset:020d}-{unique}.manifest"


def epoch_in(name: str) -> int | None:
    """The leader epoch in which an object was written; None if the name is none of ours."""
    found = _EPOCH.fullmatch(name)
    return None if found is None else int(found[1], 16)


def remote_log(manifest: RemoteManifest, start_offset: int, name: str, data: bytes) -> RemoteLog:
    """The entry for the metadata log that makes this manifest count."""
    return RemoteLog(
        start_offset=start_offset,
        end_offset=manifest.segments[-1].end_offset,
        manifest=name,
        manifest_bytes=len(data),
        manifest_crc=crc32c(data),
        size_bytes=sum(one.size_bytes for one in manifest.segments),
    )


def joined_epochs(
    before: Sequence[tuple[int, int]], added: Sequence[tuple[int, int]]
) -> tuple[tuple[int, int], ...]:
    """The history of what was remote already, continued by that of a segment behind it."""
    joined: list[tuple[int, int]] = list(before)
    for epoch, first in added:
        if not joined or epoch > joined[-1][0]:
            joined.append((epoch, first))
    return tuple(joined)
