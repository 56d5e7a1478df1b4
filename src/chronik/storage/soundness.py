"""Whether a segment file is what was written: whole batches, right checksums, offsets in order.

Offsets and leader epochs stand outside a batch's CRC, so damage there shows only in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from chronik.model import RequestError
from chronik.records.batch import HEADER_BYTES, OVERHEAD_BYTES, BatchHeader, check_batch, read_header
from chronik.storage.segment import ReadAt, Segment

_CHUNK_BYTES: Final = 1024 * 1024


class SegmentFault(NamedTuple):
    """The first place of a segment that is not what was written."""

    position: int
    offset: int
    """The first offset that cannot be read from this file."""
    why: str


def _ignore(_position: int, _header: BatchHeader) -> None:
    pass


def find_fault(
    read_at: ReadAt,
    size: int,
    base_offset: int,
    end_offset: int,
    on_batch: Callable[[int, BatchHeader], None] = _ignore,
) -> SegmentFault | None:
    """Blocking: read `size` bytes of a segment whose offsets lie from `base_offset` up to `end_offset`.

    `on_batch` hears of each sound batch before the fault, with its position.
    """
    position, next_offset = 0, base_offset
    chunk, chunk_start = b"", 0
    while position < size:
        if size - position < HEADER_BYTES:
            return SegmentFault(position, next_offset, f"{size - position} bytes are too few for a batch")
        inside = position - chunk_start
        wanted = HEADER_BYTES
        if inside + HEADER_BYTES <= len(chunk):
            wanted = read_header(chunk, inside).batch_length + OVERHEAD_BYTES
        if inside + wanted > len(chunk) and wanted <= size - position:
            chunk, chunk_start, inside = read_at(position, max(_CHUNK_BYTES, wanted)), position, 0
            if len(chunk) < HEADER_BYTES:
                return SegmentFault(position, next_offset, "the file ends here")
            wanted = read_header(chunk).batch_length + OVERHEAD_BYTES
            if len(chunk) < wanted <= size - position:
                chunk = read_at(position, wanted)
        try:
            header = check_batch(chunk, inside)
        except RequestError as error:
            return SegmentFault(position, next_offset, str(error))
        if not next_offset <= header.base_offset <= header.last_offset < end_offset:
            return SegmentFault(position, next_offset, f"offset {header.base_offset} is out of order")
        on_batch(position, header)
        position += header.size_bytes
        next_offset = header.next_offset
    return None


def sound_until(segments: Sequence[Segment], damaged: Segment) -> int:
    """Blocking: where a log has to be cut so that nothing damaged is left: the start of a segment.

    The segment before the cut takes appends again, so it has to be sound itself.
    """
    place = next((at for at, one in enumerate(segments) if one.base_offset >= damaged.base_offset), 0)
    while place > 0:
        before, end_offset = segments[place - 1], segments[place].base_offset
        size = before.readable_bytes
        if size and find_fault(before.file.read_at, size, before.base_offset, end_offset) is None:
            break
        place -= 1
    return segments[place].base_offset if segments else 0
