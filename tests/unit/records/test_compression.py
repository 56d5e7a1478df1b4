"""Decompression that stops where its limit is (R01)."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import cramjam
import pytest

from chronik.model import ErrorCode, Limits, RequestError
from chronik.records.compression import (
    Compression,
    DecompressedTooLarge,
    compress,
    decompress,
    decompressed_bytes_allowed,
)

CODECS = (Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD)
MIB = 1024 * 1024


def raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 1, 1000, MIB - 1, MIB, MIB + 1, 3 * MIB])
def test_what_fits_comes_back_whole(codec: Compression, size: int) -> None:
    data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    compressed = compress(codec, data)
    assert decompress(codec, compressed) == data
    assert decompress(codec, memoryview(compressed), limit=max(size, 1)) == data


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("limit", [10, 100_000, MIB, 2 * MIB])
def test_one_byte_more_than_the_limit_is_refused(codec: Compression, limit: int) -> None:
    compressed = compress(codec, bytes(limit + 1))
    with pytest.raises(DecompressedTooLarge) as refused:
        decompress(codec, compressed, limit=limit)
    assert refused.value.code is ErrorCode.message_too_large
    assert f"{len(compressed)} compressed bytes" in str(refused.value)
    assert len(decompress(codec, compressed, limit=limit + 1)) == limit + 1


def test_a_raw_snappy_block_is_refused_by_the_length_it_declares() -> None:
    with pytest.raises(DecompressedTooLarge):
        decompress(Compression.SNAPPY, raw_snappy(bytes(2000)), limit=1999)
    assert decompress(Compression.SNAPPY, raw_snappy(bytes(2000)), limit=2000) == bytes(2000)


def test_snappy_blocks_count_together() -> None:
    block = raw_snappy(bytes(1000))
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + 3 * (struct.pack(">i", len(block)) + block)
    assert decompress(Compression.SNAPPY, framed, limit=3000) == bytes(3000)
    with pytest.raises(DecompressedTooLarge):
        decompress(Compression.SNAPPY, framed, limit=2999)


@pytest.mark.parametrize("codec", CODECS)
def test_nonsense_is_corrupt_and_not_too_large(codec: Compression) -> None:
    cut = compress(codec, b"some records" * 100)[:-5]
    for data in (b"nonsense", cut):
        with pytest.raises(RequestError) as refused:
            decompress(codec, data)
        assert refused.value.code is ErrorCode.corrupt_message


def test_large_batches_may_always_expand_a_little() -> None:
    assert decompressed_bytes_allowed(1000) == Limits().decompressed_bytes_max
    assert decompressed_bytes_allowed(100 * MIB) == 800 * MIB


_BOMB = """
import resource, sys, cramjam
from chronik.model import RequestError
from chronik.records.compression import Compression, DecompressedTooLarge, decompress
compressor = getattr(cramjam, sys.argv[1]).Compressor()
chunk = bytes(1 << 20)
for _ in range(1024):
    compressor.compress(chunk)
bomb = bytes(compressor.finish())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompress(Compression[sys.argv[1].upper()], bomb, 32 << 20)
except DecompressedTooLarge:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_a_gigabyte_in_a_few_kilobytes_takes_no_more_memory_than_the_limit(codec: str) -> None:
    done = subprocess.run([sys.executable, "-c", _BOMB, codec], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64, "MiB"


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_an_error_that_is_kept_does_not_keep_what_was_decompressed(codec: Compression) -> None:
    """An exception holds its frames: a reader that remembered some bombs held 64 MiB for each."""
    limit = 32 * 1024 * 1024
    compressed = compress(codec, bytes(limit + 1))
    before = resident_bytes()
    kept = []
    for _ in range(4):
        with pytest.raises(DecompressedTooLarge) as refused:
            decompress(codec, compressed, limit)
        kept.append(refused)
    assert resident_bytes() - before < limit


def resident_bytes() -> int:
    (line,) = (
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:")
    )
    return int(line.split()[1]) * 1024
