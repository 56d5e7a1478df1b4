"""A batch stays opaque on its way in (L01): nobody decodes or encodes its records, and the WAL and the memory
of the log take the bytes where they were received."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from chronik.model import ErrorCode
from chronik.records import body, compression, editing, reader, writer
from chronik.records.batch import LEADER_EPOCH_OFFSET, LENGTH_OFFSET, MAGIC_OFFSET
from chronik.records.compression import Compression
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.storage.log_parts import COPIED_BYTES_MAX
from chronik.wire.api import ApiKey
from chronik.wire.schema import encode_request
from tests.unit.server.live import live
from tests.unit.server.test_known_requests import Wire
from tests.unit.server.test_large_batches import at, fields
from tests.unit.storage.support import DiskSpy

LOOKING = {str(module.__file__) for module in (body, compression, editing, reader, writer)}
"""Modules whose functions take records apart or put them together."""
VERSION = 12


@pytest.fixture
def looks() -> Iterator[list[str]]:
    """Calls of functions of those modules, in every thread that begins from now on."""
    seen: list[str] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename in LOOKING:
            seen.append(frame.f_code.co_qualname)

    threading.setprofile(profile)
    sys.setprofile(profile)
    yield seen
    sys.setprofile(None)
    threading.setprofile(None)


def request(size: int, codec: Compression) -> tuple[bytes, bytes]:
    """A request and the batch in it, which is about so large and not easily compressed."""
    value = b"".join((number * 2_654_435_761 & 0xFFFFFFFF).to_bytes(4, "big") for number in range(size // 4))
    batch = build_batch([Record(key=b"k", value=value, timestamp_ms=1)] * 2, compression=codec)
    return encode_request(ApiKey.PRODUCE, VERSION, 1, "tester", fields("t", batch)), bytes(batch)


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("size", [400, 10 * COPIED_BYTES_MAX], ids=["small", "large"])
async def test_what_is_stored_is_what_was_sent(
    tmp_path: Path, looks: list[str], size: int, codec: Compression
) -> None:
    disk = DiskSpy(asyncio.get_running_loop())
    async with live(tmp_path, disk=disk) as node:
        await node.topic("t")
        wire = Wire(node)
        for offset in (0, 2):  # the second request is one that the connection knows
            frame, batch = request(size, codec)
            looks.clear()
            wire.send(frame)
            _, answer = await wire.answer(VERSION)
            assert (answer.error_code, answer.base_offset) == (ErrorCode.none, offset)
            assert looks == []
            stored = at(node, "t").log.tail[-1].view
            assert stored[:LENGTH_OFFSET] == offset.to_bytes(8, "big")
            assert stored[LENGTH_OFFSET:LEADER_EPOCH_OFFSET] == batch[LENGTH_OFFSET:LEADER_EPOCH_OFFSET]
            assert stored[MAGIC_OFFSET:] == batch[MAGIC_OFFSET:]
            (payload,) = (data for _, data in disk.written if bytes(data) == bytes(stored))
            assert isinstance(payload, memoryview), "no copy was made for the WAL"
            if size > COPIED_BYTES_MAX:
                assert isinstance(stored, memoryview)
                assert stored.obj is payload.obj, "nor for the memory of the log"
            disk.written.clear()
    disk.close()
