"""What remembering how produce requests begin saves: `python -m bench.known_requests`.

One node in this process, requests handed to its connection without a socket, the data directory in memory
where there is a /dev/shm. So this counts the work of connection, dispatcher, handler, log and WAL queue; a
real client adds sockets and a real disk, which cost the same either way. Rounds of the three ways alternate;
their ratio is the median over neighbouring rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import uvloop

from chronik.config import Settings
from chronik.metadata.commands import CreateTopic
from chronik.node import Node
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.server.call import Call
from chronik.server.connection import KafkaConnection
from chronik.server.handlers import produce
from chronik.server.known_requests import KnownRequests
from chronik.server.listener import Door
from chronik.wire.api import ApiKey
from chronik.wire.produce import ProduceRequest
from chronik.wire.schema import encode_request

TOPIC = "bench"
VERSION = 12
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


class Wire:
    """A client's end of a connection to the node: what it sends is there at once."""

    def __init__(self, node: Node) -> None:
        self.connection = KafkaConnection(node.parts.listener, Door())
        self._received = 0
        self._expected = 0
        self._answered = asyncio.Event()
        self.connection.connection_made(self)  # type: ignore[arg-type]  # as much of a transport as it needs

    async def ask(self, frames: list[bytes]) -> None:
        """Send the requests, and wait until all are answered."""
        self._received, self._expected = 0, len(frames)
        self._answered.clear()
        data = memoryview(b"".join(frames))
        while data:
            space = self.connection.get_buffer(-1)
            size = min(len(space), len(data))
            space[:size] = data[:size]
            self.connection.buffer_updated(size)
            data = data[size:]
        await self._answered.wait()

    def write(self, data: bytes) -> None:
        while data:
            self._received += 1
            data = data[4 + int.from_bytes(data[:4], "big") :]
        if self._received >= self._expected:
            self._answered.set()

    def writelines(self, buffers: list[bytes]) -> None:
        self.write(b"".join(buffers))

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        self.connection.connection_lost(None)

    abort = close


def _nothing(*_: object) -> None:
    """Not a `Mock`: those cost more than what is measured."""


def _all_of_it(call: Call[ProduceRequest]) -> None:
    produce._PendingProduce(call).append_all()


@contextmanager
def forgetting() -> Iterator[None]:
    """Every request is decoded, and answered without a template."""
    with (
        mock.patch.object(KnownRequests, "recall", _nothing),
        mock.patch.object(KnownRequests, "remember", _nothing),
    ):
        yield


def requests(acks: int, count: int, value_bytes: int) -> list[bytes]:
    made = []
    for number in range(count):
        batch = bytes(build_batch([Record(key=None, value=bytes(value_bytes), timestamp_ms=1)]))
        data = {"index": 0, "records": batch}
        fields = {
            "transactional_id": None,
            "acks": acks,
            "timeout": 60_000,
            "topic_data": [{"name": TOPIC, "partition_data": [data]}],
        }
        made.append(bytes(encode_request(ApiKey.PRODUCE, VERSION, number, "bench", fields)))
    return made


@contextmanager
def the_long_way() -> Iterator[None]:
    """Known requests are not decoded again, and from then on go the way of all others."""
    with mock.patch.object(produce._PendingBatch, "append", _all_of_it):
        yield


WAYS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "known": nullcontext,
    "known, the long way": the_long_way,
    "read each time": forgetting,
}


async def timed(wire: Wire, frames: list[bytes], in_flight: int) -> tuple[float, float]:
    """Requests per second; processor time of the loop per request in microseconds."""
    began, worked = time.perf_counter(), time.thread_time()
    for first in range(0, len(frames), in_flight):
        part = frames[first : first + in_flight]
        await wire.ask(part)
    count = len(frames)
    return count / (time.perf_counter() - began), (time.thread_time() - worked) / count * 1e6


async def compared(node: Node, acks: int, rounds: int, count: int, in_flight: int) -> None:
    created = CreateTopic(
        name=TOPIC, topic_id=node.parts.services.new_uuid(), assignments=((node.settings.node_id,),)
    )
    await node.parts.metadata.submit(created)
    frames = requests(acks, count, 100)
    wire = Wire(node)
    await timed(wire, frames, in_flight)
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, made in WAYS.items():
            with made():
                wire.connection.peer.known.forget()
                found[way].append(await timed(wire, frames, in_flight))
    wire.close()
    print(f"acks={acks}, {in_flight} in flight")
    for way, measured in found.items():
        rate, loop_us = (statistics.median(one[place] for one in measured) for place in (0, 1))
        share = statistics.median(
            one[0] / read[0] for one, read in zip(measured, found["read each time"], strict=True)
        )
        print(f"  {way}: {rate:,.0f} requests/s, {share:.2f} of those read; loop {loop_us:.1f} us each")


async def run(rounds: int, count: int, in_flight: int) -> None:
    for acks in (-1, 1):
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            node = Node(Settings(data_dir=Path(folder), kafka_port=0, http_port=0, wal_port=0, raft_port=0))
            await node.start()
            try:
                await compared(node, acks, rounds, count, in_flight)
            finally:
                await node.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--count", type=int, default=4_000)
    parser.add_argument("--in-flight", type=int, default=32)
    given = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(given.rounds, given.count, given.in_flight))


if __name__ == "__main__":
    main()
