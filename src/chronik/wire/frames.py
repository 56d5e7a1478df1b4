"""Cuts a byte stream into request frames without copying large ones.

The bytes of a socket are received straight into what `space()` hands out. Small frames are copied out of a
shared buffer; a frame that does not fit gets a buffer of its own, which grows only as its bytes really
arrive, so that a peer cannot make the node allocate by announcing.
"""

from __future__ import annotations

import struct
from typing import Final

from chronik.model import PeerError

READ_BUFFER_BYTES: Final = 32 * 1024
FIRST_ALLOCATION_BYTES: Final = 128 * 1024
_SIZE: Final = struct.Struct(">i")


class FrameDecoder:
    __slots__ = ("_frame", "_frame_bytes", "_frame_have", "_have", "_max", "_shared", "_view", "held_bytes")

    def __init__(self, frame_bytes_max: int) -> None:
        self._max = frame_bytes_max
        self._shared: bytearray | None = None
        """Allocated when bytes come; an idle connection has none."""
        self._view = memoryview(b"")
        self._have = 0
        self._frame: bytearray | None = None
        self._frame_bytes = 0
        self._frame_have = 0
        self.held_bytes = 0
        """Memory bound by a frame that is still coming in."""

    def allow(self, frame_bytes_max: int) -> None:
        """From now on accept frames up to this size."""
        self._max = frame_bytes_max

    def space(self, _sizehint: int = -1) -> memoryview:
        """Where the next bytes go. Serves as `get_buffer` of the protocols that own a decoder."""
        if self._frame is not None:
            if self._frame_have == len(self._frame):
                self._grow()
            return memoryview(self._frame)[self._frame_have :]
        if self._shared is None:
            self._shared = bytearray(READ_BUFFER_BYTES)
            self._view = memoryview(self._shared)
        return self._view[self._have :] if self._have else self._view

    def _grow(self) -> None:
        assert self._frame is not None
        larger = bytearray(min(self._frame_bytes, len(self._frame) * 4))
        larger[: self._frame_have] = self._frame
        self._frame = larger
        self.held_bytes = len(larger)

    def received(self, count: int) -> list[memoryview]:
        """So many bytes were put into `space()`: the frames that are complete now, without their lengths."""
        if self._frame is not None:
            self._frame_have += count
            if self._frame_have < self._frame_bytes:
                return []
            frame, self._frame = self._frame, None
            self.held_bytes = 0
            return [memoryview(frame)]
        assert self._shared is not None
        self._have += count
        frames: list[memoryview] = []
        start = 0
        while self._have - start >= 4:
            (size,) = _SIZE.unpack_from(self._shared, start)
            if not 0 < size <= self._max:
                raise PeerError(f"a frame of {size} bytes was announced; 1 to {self._max} are accepted")
            end = start + 4 + size
            if end > self._have:
                if size > READ_BUFFER_BYTES - 4:
                    self._begin_large(start + 4, size)
                    return frames
                break
            frames.append(memoryview(bytearray(self._view[start + 4 : end])))
            start = end
        rest = self._have - start
        if rest and start:
            self._shared[:rest] = self._shared[start : self._have]
        self._have = rest
        return frames

    def _begin_large(self, start: int, size: int) -> None:
        have = self._have - start
        self._frame = bytearray(min(size, max(FIRST_ALLOCATION_BYTES, have)))
        self._frame[:have] = self._view[start : self._have]
        self.held_bytes = len(self._frame)
        self._frame_bytes = size
        self._frame_have = have
        self._have = 0

    def rest(self) -> None:
        """The connection is idle: give the shared buffer back."""
        if not self._have:
            self._shared = None
            self._view = memoryview(b"")
