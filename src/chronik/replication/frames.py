"""What leader and follower say to each other about partitions, as bytes.

Leader to follower: OPEN asks where the follower's log stands, START tells from where it is fed, DATA carries
batches, WATERMARK only the watermark and where the log starts. Follower to leader: STATE answers OPEN, ACK
tells what is on its disk, REFUSE says that what came does not fit (an old epoch, a gap): the leader opens the
partition anew.
A WATERMARK may end in a number that the follower sends back at once, behind an ACK: so the leader learns how
long its watermark took, by its own clock.
Every frame names topic id, partition and leader epoch, so a frame of another epoch is never mistaken. OPEN
names the partition epoch too: a replica that moves away and back within a leader epoch is another one then.
"""

from __future__ import annotations

import enum
import struct
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from chronik.model import PeerError


class FrameType(enum.IntEnum):
    OPEN = 1
    STATE = 2
    START = 3
    DATA = 4
    WATERMARK = 5
    ACK = 6
    REFUSE = 7


class Head(NamedTuple):
    """What every frame begins with."""

    type: int
    topic_id: bytes
    partition: int
    leader_epoch: int

    @property
    def key(self) -> tuple[bytes, int]:
        return self.topic_id, self.partition

    def __str__(self) -> str:
        return f"{UUID(bytes=self.topic_id)}-{self.partition} epoch {self.leader_epoch}"


_HEAD: Final = struct.Struct(">B16sii")
_OPEN: Final = struct.Struct(">i")
_START: Final = struct.Struct(">qB")
_DATA: Final = struct.Struct(">qqq")
_BOUNDS: Final = struct.Struct(">qq")
_NUMBER: Final = struct.Struct(">q")
HEAD_BYTES: Final = _HEAD.size
DATA_BYTES: Final = _HEAD.size + _DATA.size
_BOUNDS_BYTES: Final = _HEAD.size + _BOUNDS.size


class LogPosition(msgspec.Struct, frozen=True, array_like=True):
    """Where a follower's log stands (STATE)."""

    log_start_offset: int
    log_end_offset: int
    epochs: list[tuple[int, int]]


class Start(NamedTuple):
    offset: int
    is_reset: bool
    """The follower's log is of no use: it begins anew at `offset`."""


class Data(NamedTuple):
    prev_end_offset: int
    """Where the follower's log must end for these batches to continue it."""
    high_watermark: int
    log_start_offset: int


class Bounds(NamedTuple):
    """What the sender's log holds: in WATERMARK as far as it is committed, in ACK as far as it is on disk."""

    end_offset: int
    log_start_offset: int


def head(type_: FrameType, topic_id: bytes, partition: int, leader_epoch: int) -> bytes:
    return _HEAD.pack(type_, topic_id, partition, leader_epoch)


def read_head(frame: memoryview) -> Head:
    try:
        return tuple.__new__(Head, _HEAD.unpack_from(frame))
    except struct.error:
        raise PeerError("a replication frame is cut short") from None


def _unpack(layout: struct.Struct, frame: memoryview) -> tuple[int, ...]:
    try:
        return layout.unpack_from(frame, HEAD_BYTES)
    except struct.error:
        raise PeerError("a replication frame is cut short") from None


def encode_opening(partition_epoch: int) -> bytes:
    return _OPEN.pack(partition_epoch)


def decode_opening(frame: memoryview) -> int:
    (partition_epoch,) = _unpack(_OPEN, frame)
    return partition_epoch


def encode_start(start: Start) -> bytes:
    return _START.pack(start.offset, start.is_reset)


def decode_start(frame: memoryview) -> Start:
    offset, is_reset = _unpack(_START, frame)
    return Start(offset, bool(is_reset))


def encode_data(data: Data) -> bytes:
    return _DATA.pack(*data)


def decode_data(frame: memoryview) -> Data:
    return tuple.__new__(Data, _unpack(_DATA, frame))


def encode_bounds(bounds: Bounds, sample: int = 0) -> bytes:
    return _BOUNDS.pack(*bounds) + (_NUMBER.pack(sample) if sample else b"")


def decode_bounds(frame: memoryview) -> Bounds:
    return tuple.__new__(Bounds, _unpack(_BOUNDS, frame))


def decode_sample(frame: memoryview) -> int:
    """The number at the end of a WATERMARK or an ACK; 0 if there is none."""
    if len(frame) < _BOUNDS_BYTES + _NUMBER.size:
        return 0
    (sample,) = _NUMBER.unpack_from(frame, _BOUNDS_BYTES)
    return int(sample)


def encode_position(position: LogPosition) -> bytes:
    return msgspec.msgpack.encode(position)


def decode_position(frame: memoryview) -> LogPosition:
    try:
        return msgspec.msgpack.decode(frame[HEAD_BYTES:], type=LogPosition)
    except msgspec.DecodeError as error:
        raise PeerError("a follower's position cannot be read") from error
