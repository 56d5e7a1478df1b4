"""The checkpoint file: how far segments are synced, and thus where WAL replay has to begin."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec
from crc32c import crc32c

from chronik.model import refuse_newer
from chronik.storage.disk import Disk, read_whole, write_atomically
from chronik.storage.lost_checkpoint import refusal

log = logging.getLogger(__name__)

FILE_NAME: Final = "checkpoint"
FORMER_NAME: Final = "checkpoint.former"
_VERSION: Final = 1


class LogState(msgspec.Struct, array_like=True, frozen=True):
    """What is known of one log at the checkpoint."""

    topic_id: bytes
    partition: int
    topic: str
    log_start_offset: int
    log_end_offset: int
    active_base_offset: int
    active_bytes: int
    epochs: list[tuple[int, int]]
    producers: bytes = b""


class _Version(msgspec.Struct, array_like=True, frozen=True):
    """The start of a checkpoint of any version: the rest may have another shape."""

    version: int


class Checkpoint(msgspec.Struct, array_like=True, frozen=True):
    version: int
    sequence: int
    """WAL entries before this one are in synced segments."""
    clean: bool
    """Written by a graceful stop: nothing follows in the WAL."""
    hard_state: bytes
    logs: list[LogState]


EMPTY: Final = Checkpoint(version=_VERSION, sequence=0, clean=False, hard_state=b"", logs=[])


def save(disk: Disk, directory: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; the one before it is kept beside it."""
    body = msgspec.msgpack.encode(checkpoint)
    if disk.exists(directory / FILE_NAME):
        disk.rename(directory / FILE_NAME, directory / FORMER_NAME)
    write_atomically(disk, directory / FILE_NAME, crc32c(body).to_bytes(4, "big") + body)


def make(*, sequence: int, clean: bool, hard_state: bytes, logs: list[LogState]) -> Checkpoint:
    return Checkpoint(version=_VERSION, sequence=sequence, clean=clean, hard_state=hard_state, logs=logs)


def load(disk: Disk, directory: Path) -> Checkpoint:
    """The newest checkpoint that can be read."""
    damaged = False
    for name in (FILE_NAME, FORMER_NAME):
        data = read_whole(disk, directory / name)
        if data is None:
            continue
        found = decode(data)
        if found is not None:
            if damaged:
                log.error("%s is damaged; recovery starts from the one before it", directory / FILE_NAME)
            return found
        damaged = True
    if damaged:
        raise refusal(directory, "no checkpoint can be read")
    return EMPTY


def drop_damaged(disk: Disk, directory: Path) -> None:
    """Remove the newer checkpoint if it is damaged: the next `save` would put it in the place of the former
    one, the only one that can be read, and a crash in that moment would leave none."""
    data = read_whole(disk, directory / FILE_NAME)
    if data is not None and decode(data) is None:
        disk.remove(directory / FILE_NAME)


def decode(data: bytes) -> Checkpoint | None:
    """What a checkpoint's file says; None if it is damaged. Raises TooNew."""
    if len(data) < 5 or crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
        return None
    try:
        refuse_newer("the checkpoint", msgspec.msgpack.decode(data[4:], type=_Version).version, _VERSION)
        return msgspec.msgpack.decode(data[4:], type=Checkpoint)
    except ValueError:
        return None
