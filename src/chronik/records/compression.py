"""The four codecs of Kafka, by the number in a batch's attributes.

A few kilobytes can be compressed from gigabytes. Decompression therefore writes into a buffer of bounded size
and stops where that is full, whatever the compressed bytes promise.
"""

from __future__ import annotations

import enum
import mmap
import struct
from collections.abc import Callable
from typing import Any, Final

import cramjam

from chronik.model import ErrorCode, Limits, RequestError

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
_XERIAL_BLOCK_BYTES: Final = 32 * 1024

EXPANSION_ALLOWED: Final = 8
"""A batch may always expand by this factor: memory then grows only with the bytes that were really sent."""
_LIKELY_BYTES: Final = 64 * 1024
"""Most small batches become no larger. A larger one becomes no more than EXPANSION_ALLOWED times as large."""
_GROWTH: Final = 4
_PLAIN_BYTES_MAX: Final = 4 * 1024 * 1024
_PIECE_BYTES: Final = 1024 * 1024
_SNAPPY_EXPANSION_MAX: Final = 32
"""More than the format can express: three bytes copy 64."""
_BUFFER_IS_FULL: Final = "failed to write whole buffer"
"""What cramjam's error says when the output does not fit."""


class Compression(enum.IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def named(cls, name: str) -> Compression:
        return cls["NONE" if name == "uncompressed" else name.upper()]


def compress(codec: int, data: bytes | bytearray) -> bytes:
    match codec:
        case Compression.NONE:
            return bytes(data)
        case Compression.GZIP:
            return bytes(cramjam.gzip.compress(data))
        case Compression.SNAPPY:
            return _compress_xerial(bytes(data))
        case Compression.LZ4:
            return _compress_lz4(data)
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(data))
    raise RequestError(ErrorCode.unsupported_compression_type, f"no codec has the number {codec}")


class DecompressedTooLarge(RequestError):
    """Decompression was stopped: the records take more bytes than may be held."""

    def __init__(self, compressed_bytes: int, limit: int) -> None:
        super().__init__(
            ErrorCode.message_too_large,
            f"{compressed_bytes} compressed bytes hold more than the {limit} bytes that may be decompressed",
        )


class _Process:
    decompressed_bytes_max = Limits().decompressed_bytes_max


def limit_decompression(bytes_max: int) -> None:
    """Set this process's limit for the decompressed records of one batch. Called once, at start."""
    _Process.decompressed_bytes_max = bytes_max


def decompressed_bytes_allowed(compressed_bytes: int) -> int:
    """How large the decompressed records of a batch of this size may be."""
    return max(_Process.decompressed_bytes_max, EXPANSION_ALLOWED * compressed_bytes)


def decompress(codec: int, data: bytes | memoryview, limit: int | None = None) -> bytes:
    """The records of a batch; DecompressedTooLarge if they are larger than `limit`.

    Without a limit of the caller's, `decompressed_bytes_allowed` is the limit. Raises
    RequestError(corrupt_message) for bytes that the codec cannot read.
    """
    if limit is None:
        limit = decompressed_bytes_allowed(len(data))
    try:
        match codec:
            case Compression.NONE:
                return bytes(data)
            case Compression.GZIP:
                return _decompress_into(cramjam.gzip.decompress_into, data, limit)
            case Compression.SNAPPY:
                return _decompress_snappy(bytes(data), limit)
            case Compression.LZ4:
                return _decompress_into(cramjam.lz4.decompress_into, data, limit)
            case Compression.ZSTD:
                return _decompress_into(cramjam.zstd.decompress_into, data, limit)
    except (cramjam.DecompressionError, struct.error, ValueError) as error:
        raise RequestError(
            ErrorCode.corrupt_message, f"compressed records cannot be read: {error}"
        ) from error
    raise RequestError(ErrorCode.unsupported_compression_type, f"no codec has the number {codec}")


def _decompress_into(codec_into: Callable[[Any, Any], int], data: bytes | memoryview, limit: int) -> bytes:
    """Decompress into a buffer of a likely size; if that is full, again into a larger one, at last into one
    as large as the limit."""
    size = max(_LIKELY_BYTES, EXPANSION_ALLOWED * len(data))
    while True:
        size = min(size, limit)
        try:
            return _decompress_once(codec_into, data, size)
        except cramjam.DecompressionError as error:
            if str(error) != _BUFFER_IS_FULL:
                raise
        if size == limit:
            raise DecompressedTooLarge(len(data), limit)
        size *= _GROWTH


def _decompress_once(codec_into: Callable[[Any, Any], int], data: bytes | memoryview, size: int) -> bytes:
    if size <= _PLAIN_BYTES_MAX:
        plain = bytearray(size)
        return bytes(memoryview(plain)[: codec_into(data, plain)])
    # Pages of a mapping cost memory only once they are written to, but more time than plain memory. It is
    # private, so that the process's limits count it, and closed here: who keeps the error keeps this frame.
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as room:
        end = codec_into(data, room)
        # One copy would hold the interpreter's lock, and with it the event loop, until its end. Between two
        # pieces others can have the lock, and while bytes are joined they have it.
        pieces = [room[at : min(at + _PIECE_BYTES, end)] for at in range(0, end, _PIECE_BYTES)]
    return b"".join(pieces)


def _compress_lz4(data: bytes | bytearray) -> bytes:
    """An LZ4 frame of independent blocks: the Java clients refuse any other."""
    compressor = cramjam.lz4.Compressor(block_linked=False)
    compressor.compress(bytes(data))
    return bytes(compressor.finish())


def _compress_xerial(data: bytes) -> bytes:
    """Snappy in the block framing of the Java clients; every client reads it."""
    parts = [_XERIAL_MAGIC, struct.pack(">ii", 1, 1)]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: bytes, limit: int) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return _decompress_raw(data, limit, len(data), limit)
    blocks = []
    position, left = _XERIAL_HEADER_BYTES, limit
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        if size < 0 or position + 4 + size > len(data):
            raise ValueError("a snappy block is longer than its data")
        position += 4
        block = _decompress_raw(data[position : position + size], left, len(data), limit)
        blocks.append(block)
        left -= len(block)
        position += size
    return b"".join(blocks)


def _decompress_raw(block: bytes, left: int, data_bytes: int, limit: int) -> bytes:
    """A snappy block says first how long it becomes, and the codec holds it to that."""
    declared = cramjam.snappy.decompress_raw_len(block)
    if declared > _SNAPPY_EXPANSION_MAX * len(block):
        raise ValueError(f"a snappy block of {len(block)} bytes cannot hold {declared}")
    if declared > left:
        raise DecompressedTooLarge(data_bytes, limit)
    return bytes(cramjam.snappy.decompress_raw(block))
