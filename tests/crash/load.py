"""Writers that know exactly what they were promised.

Each writer sends numbered records, several requests ahead of the answers, and never sends one twice. A record
is acknowledged (its offset is known) or, when the connection broke first, in doubt: it may be there or not.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

import confluent_kafka

from chronik.records.reader import Record
from chronik.records.writer import build_batch
from tests.process import HOST

REQUESTS_AHEAD = 8
ACKS_ALL = -1
READ_DEADLINE_S = 60


@dataclass
class Ledger:
    """What the writers of one topic were told."""

    topic: str
    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """(partition, offset) -> value"""
    in_doubt: set[bytes] = field(default_factory=set)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def value(self, writer: int) -> bytes:
        return b"writer %d record %d" % (writer, next(self.numbers))


def produce_frame(correlation: int, topic: str, partition: int, batch: bytes, acks: int = ACKS_ALL) -> bytes:
    """Produce, version 7, one batch."""
    name = topic.encode()
    body = (
        struct.pack(">hhih", 0, 7, correlation, -1)
        + struct.pack(">hhii", -1, acks, 10_000, 1)
        + struct.pack(">h", len(name))
        + name
        + struct.pack(">iii", 1, partition, len(batch))
        + batch
    )
    return struct.pack(">i", len(body)) + body


def produce_answer(frame: bytes, topic: str) -> tuple[int, int, int]:
    """Correlation id, error code, base offset."""
    (correlation,) = struct.unpack_from(">i", frame)
    position = 4 + 4 + 2 + len(topic.encode()) + 4 + 4
    code, offset = struct.unpack_from(">hq", frame, position)
    return correlation, code, offset


async def write(
    ledger: Ledger, port: int, writer: int, partition: int, enough: Callable[[], bool], size: int = 0
) -> int:
    """Write until `enough` or until the connection breaks; returns an error code if the broker answered one.

    Batches hold one to three records each, padded to `size` bytes.
    """
    reader, sender = await asyncio.open_connection(HOST, port)
    waiting: dict[int, list[bytes]] = {}
    try:
        for correlation in itertools.count():
            while len(waiting) >= REQUESTS_AHEAD or (waiting and enough()):
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                answered, code, offset = produce_answer(await reader.readexactly(length), ledger.topic)
                if code:
                    return code
                for index, value in enumerate(waiting.pop(answered)):
                    ledger.acknowledged[partition, offset + index] = value
            if enough():
                return 0
            values = [ledger.value(writer).ljust(size, b".") for _ in range(1 + correlation % 3)]
            batch = build_batch([Record(key=None, value=value, timestamp_ms=1) for value in values])
            waiting[correlation] = values
            sender.write(produce_frame(correlation, ledger.topic, partition, bytes(batch)))
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        ledger.in_doubt.update(value for values in waiting.values() for value in values)
        sender.close()
    return 0


def read_partition(bootstrap: str, topic: str, partition: int) -> list[tuple[int, bytes]]:
    """Everything that the partition holds: offset and value, in order."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, confluent_kafka.OFFSET_BEGINNING)])
    found: list[tuple[int, bytes]] = []
    try:
        while True:
            message = consumer.poll(READ_DEADLINE_S)
            assert message is not None, f"{topic}-{partition}: nothing came after {len(found)} records"
            error = message.error()
            if error is None:
                found.append((message.offset() or 0, message.value() or b""))
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                return found
            else:
                raise AssertionError(f"{topic}-{partition}: {error}")
    finally:
        consumer.close()


def lost_records(ledger: Ledger, log: dict[int, list[tuple[int, bytes]]]) -> list[str]:
    """Acknowledged, but not there or not where it was promised."""
    there = {(partition, offset): value for partition, rows in log.items() for offset, value in rows}
    return [
        f"{partition} at {offset}: {value!r} was promised, {there.get((partition, offset))!r} is there"
        for (partition, offset), value in ledger.acknowledged.items()
        if there.get((partition, offset)) != value
    ]


def strange_records(ledger: Ledger, log: dict[int, list[tuple[int, bytes]]]) -> list[str]:
    """There twice, out of a writer's order, or never sent."""
    known = set(ledger.acknowledged.values()) | ledger.in_doubt
    found = []
    for partition, rows in log.items():
        last: dict[bytes, int] = {}
        for offset, value in rows:
            writer, _, number = value.rstrip(b".").partition(b" record ")
            if value not in known:
                found.append(f"partition {partition} offset {offset}: {value!r} was never sent")
            if int(number) <= last.get(writer, -1):
                found.append(
                    f"partition {partition} offset {offset}: {value!r} is out of order or there twice"
                )
            last[writer] = int(number)
    return found
