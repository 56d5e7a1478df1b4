"""What the node and its child say to each other: frames of msgpack on a pair of pipes."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Final

import msgspec

from chronik.model import ChronikError

__all__ = [
    "Answer",
    "Assignment",
    "Progress",
    "QueryError",
    "Question",
    "read_frame",
    "write_frame",
]

FRAME_BYTES_MAX: Final = 256 * 1024 * 1024
_LENGTH: Final = struct.Struct(">I")


class QueryError(ChronikError):
    """A question that cannot be answered; status and code are what an HTTP client gets."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class Question(msgspec.Struct, frozen=True, kw_only=True, tag="question"):
    id: int
    method: str
    body: Any


class Assignment(msgspec.Struct, frozen=True, kw_only=True, tag="assignment"):
    """The searchable partitions that the node leads, by topic and topic id."""

    topics: dict[str, tuple[str, list[int]]]


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    id: int
    body: Any = None
    status: int = 200
    code: str = ""
    message: str = ""


class PartitionProgress(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    next_offset: int
    """Everything before can be found."""
    documents: int


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    partitions: list[PartitionProgress]


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """None when the other side is gone."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(4))
        return await reader.readexactly(length) if length <= FRAME_BYTES_MAX else None
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def write_frame(writer: asyncio.StreamWriter, message: msgspec.Struct) -> None:
    data = msgspec.msgpack.encode(message)
    writer.write(_LENGTH.pack(len(data)) + data)
