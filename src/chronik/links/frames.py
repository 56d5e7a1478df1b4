"""The replication frames: what leader and follower tell each other about partitions, as bytes.

Leader to follower: OPEN asks where the follower's log stands, START tells from where it is fed, DATA carries
batches, WATERMARK only the watermark and where the log starts. Follower to leader: STATE answers OPEN, ACK
tells what is on its disk, REFUSE says that what came does not fit (an old epoch, a gap): then the leader
sends OPEN again.
A WATERMARK may end in a number that the follower sends back at once, at the end of an ACK: so the leader
measures by its own clock how long its watermark took.
Every frame names topic id, partition and leader epoch, so that frames of other epochs are recognised. OPEN
names the partition epoch too: a replica that moves away and back within one leader epoch has lost its log.
"""

from __future__ import annotations

import enum
import struct
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from chronik.model import PeerError


class FrameType(enum.IntEnum):
    """Each frame is a `Head`, then what its type brings along."""

    OPEN = 1
    """Leader to follower: where does your log stand? Brings the partition epoch (int32)."""
    STATE = 2
    """Follower to leader, the answer to OPEN: a `LogPosition` in msgpack."""
    START = 3
    """Leader to follower: you are fed from this offset on. Brings `Start`."""
    DATA = 4
    """Leader to follower: `Data`, then record batches."""
    WATERMARK = 5
    """Leader to follower, when there are no batches to send: `LogBounds`, as far as the log is committed. May
    end in a sample number (int64), which the follower sends back in an ACK at once."""
    ACK = 6
    """Follower to leader: `LogBounds`, as far as the log is on the follower's disk. Ends in the sample number
    (int64) of a WATERMARK if that had one."""
    REFUSE = 7
    """Follower to leader: what came does not fit (an old epoch, a gap). The leader then sends OPEN again."""


class Head(NamedTuple):
    """What every frame begins with."""

    type: int
    """One byte: a `FrameType`."""
    topic_id: bytes
    """The 16 bytes of its UUID."""
    partition: int
    """int32."""
    leader_epoch: int
    """int32, of the leader that feeds; the follower repeats it."""

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
_HEAD_AND_DATA: Final = struct.Struct(">B16siiqqq")
_HEAD_AND_BOUNDS: Final = struct.Struct(">B16siiqq")
_NUMBER: Final = struct.Struct(">q")
_new: Final = tuple.__new__
"""A named tuple's own constructor is one more call of Python."""
HEAD_BYTES: Final = _HEAD.size
DATA_BYTES: Final = _HEAD.size + _DATA.size
BOUNDS_BYTES: Final = _HEAD.size + _BOUNDS.size


class LogPosition(msgspec.Struct, frozen=True, array_like=True):
    """Where a follower's log stands (STATE)."""

    log_start_offset: int
    log_end_offset: int
    epochs: list[tuple[int, int]]
    """Each leader epoch in the log, with its first offset."""


class Start(NamedTuple):
    """Says from which offset a follower is fed (START)."""

    offset: int
    """int64. The follower's log ends here from now on: what it has beyond is cut off."""
    is_reset: bool
    """One byte. 1: the follower's log cannot be continued: it is emptied and starts at `offset`."""


class Data(NamedTuple):
    """What stands before the batches (DATA)."""

    prev_end_offset: int
    """int64. Where the follower's log must end for these batches to continue it."""
    high_watermark: int
    """int64. The leader's."""
    log_start_offset: int
    """int64. The leader's: the follower deletes what is before it."""


class LogBounds(NamedTuple):
    """What the sender's log holds: in WATERMARK as far as it is committed, in ACK as far as it is on disk."""

    end_offset: int
    """int64."""
    log_start_offset: int
    """int64."""


def head(type_: FrameType, topic_id: bytes, partition: int, leader_epoch: int) -> bytes:
    return _HEAD.pack(type_, topic_id, partition, leader_epoch)


def read(frame: memoryview) -> tuple[Head, Data | LogBounds | None]:
    """Head and body. The body is read here if it is of a kind that comes all the time; else it is None."""
    try:
        match frame[0]:
            case FrameType.ACK | FrameType.WATERMARK:
                fields = _HEAD_AND_BOUNDS.unpack_from(frame)
                return _new(Head, fields[:4]), _new(LogBounds, fields[4:])
            case FrameType.DATA:
                fields = _HEAD_AND_DATA.unpack_from(frame)
                return _new(Head, fields[:4]), _new(Data, fields[4:])
            case _:
                return _new(Head, _HEAD.unpack_from(frame)), None
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


def data_frame(
    topic_id: bytes,
    partition: int,
    leader_epoch: int,
    prev_end_offset: int,
    high_watermark: int,
    log_start_offset: int,
) -> bytes:
    """A DATA frame up to its batches."""
    return _HEAD_AND_DATA.pack(
        FrameType.DATA, topic_id, partition, leader_epoch, prev_end_offset, high_watermark, log_start_offset
    )


def bounds_frame(
    type_: FrameType,
    topic_id: bytes,
    partition: int,
    leader_epoch: int,
    end_offset: int,
    log_start_offset: int,
    sample: int = 0,
) -> bytes:
    """A whole WATERMARK or ACK."""
    frame = _HEAD_AND_BOUNDS.pack(type_, topic_id, partition, leader_epoch, end_offset, log_start_offset)
    return frame + _NUMBER.pack(sample) if sample else frame


def decode_sample(frame: memoryview) -> int:
    """The number at the end of a WATERMARK or an ACK; 0 if there is none."""
    if len(frame) < BOUNDS_BYTES + _NUMBER.size:
        return 0
    (sample,) = _NUMBER.unpack_from(frame, BOUNDS_BYTES)
    return int(sample)


def encode_position(position: LogPosition) -> bytes:
    return msgspec.msgpack.encode(position)


def decode_position(frame: memoryview) -> LogPosition:
    try:
        return msgspec.msgpack.decode(frame[HEAD_BYTES:], type=LogPosition)
    except ValueError as error:
        raise PeerError("a follower's position cannot be read") from error
