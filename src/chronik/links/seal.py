"""Authenticates the frames of a link without TLS: each ends in a tag over its bytes and its number.

Frames are numbered in each direction. The number is not sent; both ends count. If a frame was changed,
repeated, dropped, reordered or sent back to its sender, its tag is wrong, and the receiver closes the link.

The tag is Poly1305 with a key that is used for one frame only: BLAKE2b of the frame's number, keyed with the
session's key. Poly1305 is several times as fast on large frames as the keyed hashes of the standard library
(docs/decisions/0046-links-between-nodes.md).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.poly1305 import Poly1305

from chronik.model import PeerError
from chronik.records.batch import Buffer

TAG_BYTES: Final = 16
_number: Final = struct.Struct(">Q").pack


class Seal:
    """One direction of one link."""

    __slots__ = ("_count", "_key")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0
        """Frames so far, which is the number of the next one."""

    def tag(self, head: Buffer, body: Sequence[Buffer] = ()) -> bytes:
        """The tag of the next frame."""
        mac = Poly1305(blake2b(_number(self._count), key=self._key, digest_size=32).digest())
        self._count += 1
        mac.update(head)
        for part in body:
            mac.update(part)
        return mac.finalize()

    def opened(self, frame: memoryview) -> memoryview:
        """The content of the next frame that arrived. PeerError if its tag is wrong."""
        content, tag = frame[:-TAG_BYTES], frame[-TAG_BYTES:].tobytes()
        if not content:
            raise PeerError("a frame is shorter than its tag")
        key = blake2b(_number(self._count), key=self._key, digest_size=32).digest()
        self._count += 1
        try:
            Poly1305.verify_tag(key, content, tag)
        except InvalidSignature:
            raise PeerError("a frame was changed, repeated or left out on its way") from None
        return content
