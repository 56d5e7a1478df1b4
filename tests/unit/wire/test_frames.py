"""Frames are cut out of a stream wherever its pieces end, and large ones of one size are not copied."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.model import PeerError
from chronik.wire.frames import GUESSED_BYTES_MAX, READ_BUFFER_BYTES, FrameDecoder

FRAME_BYTES_MAX = 1_000_000
LARGE = 64_000
SIZES = st.one_of(
    st.integers(1, 40),
    st.integers(READ_BUFFER_BYTES - 10, READ_BUFFER_BYTES + 10),
    st.sampled_from([LARGE, LARGE - 1, LARGE + 1, GUESSED_BYTES_MAX - 4, GUESSED_BYTES_MAX]),
)
PIECES = st.one_of(st.integers(1, 20), st.sampled_from([LARGE + 4, 10_000, 1_000_000]))


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def feed(decoder: FrameDecoder, data: bytes, piece: int) -> tuple[list[memoryview], int]:
    """One read of at most `piece` bytes: the frames that it gave, and how many bytes it took."""
    space = decoder.space()
    count = min(len(space), piece, len(data))
    space[:count] = data[:count]
    return decoder.received(count), count


@given(st.lists(SIZES, min_size=1, max_size=8), st.lists(PIECES, min_size=1, max_size=30), st.booleans())
def test_the_same_frames_wherever_the_stream_is_cut(sizes: list[int], pieces: list[int], rests: bool) -> None:
    bodies = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    decoder, data, found, turn = FrameDecoder(FRAME_BYTES_MAX), framed(*bodies), [], 0
    while data:
        # The tail of the list repeats; small pieces alone would take for ever.
        frames, count = feed(decoder, data, pieces[turn] if turn < len(pieces) else 1_000_000)
        found += frames
        data, turn = data[count:], turn + 1
        if rests:
            decoder.rest()
    assert [bytes(frame) for frame in found] == bodies
    assert decoder.held_bytes == 0


def test_a_frame_like_the_one_before_is_received_in_its_own_buffer() -> None:
    decoder = FrameDecoder(FRAME_BYTES_MAX)
    first = framed(b"1" * LARGE)
    while first:
        first = first[feed(decoder, first, len(first))[1] :]
    second = framed(b"2" * LARGE)
    space = decoder.space()
    space[:] = second
    (frame,) = decoder.received(len(space))
    assert frame.obj is space.obj
    assert bytes(frame) == b"2" * LARGE


def test_after_a_frame_of_another_size_nothing_large_is_kept_ready() -> None:
    decoder = FrameDecoder(FRAME_BYTES_MAX)
    data = framed(b"1" * LARGE)
    while data:
        data = data[feed(decoder, data, len(data))[1] :]
    assert len(decoder.space()) == LARGE + 4
    frames, _ = feed(decoder, framed(b"small"), 100)
    assert [bytes(frame) for frame in frames] == [b"small"]
    assert len(decoder.space()) == READ_BUFFER_BYTES


def test_an_idle_connection_keeps_no_buffer_for_a_frame_that_may_come() -> None:
    decoder = FrameDecoder(FRAME_BYTES_MAX)
    data = framed(b"1" * LARGE)
    while data:
        data = data[feed(decoder, data, len(data))[1] :]
    ready = decoder.space().obj
    decoder.rest()
    assert decoder._guess is None
    assert decoder.space().obj is not ready


def test_a_length_that_is_not_accepted_is_refused_where_another_frame_was_expected() -> None:
    decoder = FrameDecoder(FRAME_BYTES_MAX)
    data = framed(b"1" * LARGE)
    while data:
        data = data[feed(decoder, data, len(data))[1] :]
    with pytest.raises(PeerError, match="was announced"):
        feed(decoder, struct.pack(">i", FRAME_BYTES_MAX + 1), 4)
    decoder = FrameDecoder(FRAME_BYTES_MAX)
    data = framed(b"1" * LARGE)
    while data:
        data = data[feed(decoder, data, len(data))[1] :]
    decoder.allow(100)
    with pytest.raises(PeerError, match="was announced"):
        feed(decoder, framed(b"1" * LARGE), 100_000)
