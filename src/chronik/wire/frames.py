"""Cuts a byte stream into request frames without copying large ones.

The bytes of a socket are received straight into what `space()` hands out. Small frames are copied out of a
shared buffer; a frame that does not fit gets a buffer of its own, which grows only as its bytes really
arrive, so that a peer cannot make the node allocate by announcing.

A producer in bulk sends frames of the same size one after the other. After a large frame the next bytes go
straight into a buffer for one more like it: where the guess is right, no byte is copied.
"""

from __future__ import annotations

import struct
from typing import Final

from chronik.model import PeerError

READ_BUFFER_BYTES: Final = 32 * 1024
FIRST_ALLOCATION_BYTES: Final = 128 * 1024
GUESSED_BYTES_MAX: Final = 256 * 1024
"""Largest frame after which another one of its size is expected."""
_SIZE: Final = struct.Struct(">i")


class FrameDecoder:
    __slots__ = (
        "_frame",
        "_frame_bytes",
        "_frame_have",
        "_frame_start",
        "_guess",
        "_guessed_bytes",
        "_have",
        "_max",
        "_shared",
        "_view",
        "held_bytes",
    )

    def __init__(self, frame_bytes_max: int) -> None:
        self._max = frame_bytes_max
        self._shared: bytearray | None = None
        """Allocated when bytes come; an idle connection has none."""
        self._view = memoryview(b"")
        self._have = 0
        self._frame: bytearray | None = None
        self._frame_bytes = 0
        self._frame_have = 0
        self._frame_start = 0
        """4 in a buffer that has the frame's length too."""
        self._guess: bytearray | None = None
        self._guessed_bytes = 0
        """Length and bytes of the last frame, if the next one may be as large; else 0."""
        self.held_bytes = 0
        """Memory bound by a frame that is still coming in."""

    def allow(self, frame_bytes_max: int) -> None:
        """Accept frames up to this size from now on."""
        self._max = frame_bytes_max

    def space(self, _sizehint: int = -1) -> memoryview:
        """Where the next bytes go. Serves as `get_buffer` of the protocols that own a decoder."""
        if self._frame is not None:
            if self._frame_have == len(self._frame):
                self._grow()
            return memoryview(self._frame)[self._frame_have :]
        if self._guessed_bytes and not self._have:
            if self._guess is None:
                self._guess = bytearray(self._guessed_bytes)
            return memoryview(self._guess)
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
        """Take in the bytes that were put into `space()`. Returns the frames that are complete now, without
        their lengths. What is left of a frame goes to the start of the shared buffer, or begins a buffer of
        its own."""
        if self._frame is not None:
            self._frame_have += count
            if self._frame_have < self._frame_bytes:
                return []
            frame, self._frame = self._frame, None
            self.held_bytes = 0
            size = self._frame_bytes - self._frame_start
            self._guessed_bytes = size + 4 if size + 4 <= GUESSED_BYTES_MAX else 0
            return [memoryview(frame)[self._frame_start :]]
        buffer, view, have = self._shared, self._view, self._have + count
        if self._guess is not None:
            guess, self._guess = self._guess, None
            if count >= 4 and _SIZE.unpack_from(guess)[0] == len(guess) - 4 <= self._max:
                return self._guessed(guess, count)
            self._guessed_bytes = 0
            buffer, view, have = guess, memoryview(guess), count
        assert buffer is not None
        frames: list[memoryview] = []
        start = 0
        while have - start >= 4:
            (size,) = _SIZE.unpack_from(buffer, start)
            if not 0 < size <= self._max:
                raise PeerError(f"a frame of {size} bytes was announced; 1 to {self._max} are accepted")
            end = start + 4 + size
            if end > have:
                if size > READ_BUFFER_BYTES - 4:
                    self._begin_large(view[start + 4 : have], size)
                    return frames
                break
            if size > READ_BUFFER_BYTES - 4:  # the buffer is not shared, and hardly larger
                frames.append(view[start + 4 : end])
                self._guessed_bytes = size + 4
            else:
                frames.append(memoryview(bytearray(view[start + 4 : end])))
            start = end
        rest = have - start
        if rest and (start or buffer is not self._shared):
            if self._shared is None:
                self._shared = bytearray(READ_BUFFER_BYTES)
                self._view = memoryview(self._shared)
            self._shared[:rest] = buffer[start:have]
        self._have = rest
        return frames

    def _guessed(self, guess: bytearray, count: int) -> list[memoryview]:
        """Take in bytes of the expected frame that are in its buffer."""
        if count == len(guess):
            return [memoryview(guess)[4:]]
        self._frame, self._frame_start = guess, 4
        self._frame_bytes, self._frame_have = len(guess), count
        self.held_bytes = len(guess)
        return []

    def _begin_large(self, begun: memoryview, size: int) -> None:
        have = len(begun)
        self._frame = bytearray(min(size, max(FIRST_ALLOCATION_BYTES, have)))
        self._frame[:have] = begun
        self.held_bytes = len(self._frame)
        self._frame_bytes = size
        self._frame_have = have
        self._frame_start = 0
        self._have = 0

    def rest(self) -> None:
        """The connection is idle: give the shared buffer back."""
        self._guess = None
        if not self._have:
            self._shared = None
            self._view = memoryview(b"")
