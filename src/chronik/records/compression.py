"""The four codecs of Kafka, by the number in a batch's attributes."""

from __future__ import annotations

import enum
import struct
from typing import Final

import cramjam

from chronik.model import ErrorCode, RequestError

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
_XERIAL_BLOCK_BYTES: Final = 32 * 1024


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


def decompress(codec: int, data: bytes | memoryview) -> bytes:
    try:
        match codec:
            case Compression.NONE:
                return bytes(data)
            case Compression.GZIP:
                return bytes(cramjam.gzip.decompress(data))
            case Compression.SNAPPY:
                return _decompress_snappy(bytes(data))
            case Compression.LZ4:
                return bytes(cramjam.lz4.decompress(data))
            case Compression.ZSTD:
                return bytes(cramjam.zstd.decompress(data))
    except (cramjam.DecompressionError, struct.error, ValueError) as error:
        raise RequestError(
            ErrorCode.corrupt_message, f"compressed records cannot be read: {error}"
        ) from error
    raise RequestError(ErrorCode.unsupported_compression_type, f"no codec has the number {codec}")


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


def _decompress_snappy(data: bytes) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return bytes(cramjam.snappy.decompress_raw(data))
    blocks = []
    position = _XERIAL_HEADER_BYTES
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        if size < 0 or position + 4 + size > len(data):
            raise ValueError("a snappy block is longer than its data")
        position += 4
        blocks.append(bytes(cramjam.snappy.decompress_raw(data[position : position + size])))
        position += size
    return b"".join(blocks)
