"""Indexes and lists of remote segments, as bytes."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from chronik.storage.index import TimeIndex
from chronik.storage.producer_state import AbortedTxn
from chronik.tiering.manifest import (
    DamagedObject,
    RemoteSegment,
    SegmentFooter,
    decode_footer,
    encode,
)


def test_a_forged_footer_is_damaged() -> None:
    """A checksum of 32 bits keeps out what is broken, not who means harm."""
    index = SegmentFooter(b"", TimeIndex(0).encode(), ())
    for footer in (
        SegmentFooter(b"", struct.pack(">qi", 5, -1), ()),
        SegmentFooter(struct.pack(">ii", 5, 100), b"", ()),
        SegmentFooter(b"", b"", (AbortedTxn(1, 0, 2**63, 0),)),
        SegmentFooter(b"", b"", (AbortedTxn(-1, 0, 5, 0),)),
        index,
    ):
        data = encode(footer)
        segment = RemoteSegment("x", 0, 10, 100, len(data), crc32c(data), 5)
        if footer is index:
            assert decode_footer(data, segment)[2] == ()
        else:
            with pytest.raises(DamagedObject):
                decode_footer(data, segment)
