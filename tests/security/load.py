"""Clients that go on writing while a test changes the cluster under them. Nothing that they send may fail."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError

from tests.security.nodes import until

PARTITIONS = 3
PAUSE_SECONDS = 0.005


class Load:
    """One producer with acks=all; with `transactional_id` each round of records is a transaction."""

    def __init__(self, name: str, topic: str, *, transactional_id: str | None = None, **client: Any) -> None:
        self.name = name
        self.acked: list[bytes] = []
        self.failures: list[BaseException] = []
        self._topic = topic
        self._client = client
        self._transactional_id = transactional_id
        self._is_stopping = False

    async def __aenter__(self) -> Load:
        self._producer = AIOKafkaProducer(
            acks="all",
            enable_idempotence=True,
            transactional_id=self._transactional_id,
            request_timeout_ms=60_000,
            **self._client,
        )
        await self._producer.start()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_stopping = True
        await self._task
        await self._producer.stop()

    async def _run(self) -> None:
        number = 0
        while not self._is_stopping:
            number += 1
            values = [f"{self.name} {number} {each}".encode() for each in range(PARTITIONS)]
            try:
                if self._transactional_id is None:
                    await self._send(values)
                else:
                    async with self._producer.transaction():
                        await self._send(values)
            except KafkaError as failure:
                self.failures.append(failure)
                return
            self.acked += values
            await asyncio.sleep(PAUSE_SECONDS)

    async def _send(self, values: list[bytes]) -> None:
        sent = [
            await self._producer.send(self._topic, value, partition=number)
            for number, value in enumerate(values)
        ]
        await asyncio.gather(*sent)

    async def goes_on(self) -> None:
        """Wait until something that is sent from now on is acknowledged."""
        before = len(self.acked)
        await until(lambda: len(self.acked) > before + PARTITIONS or bool(self.failures))
        assert not self.failures, self.failures


async def read_all(topic: str, count: int, **client: Any) -> list[bytes]:
    """The first `count` committed records."""
    consumer = AIOKafkaConsumer(
        topic, auto_offset_reset="earliest", isolation_level="read_committed", **client
    )
    async with consumer, asyncio.timeout(60):
        return [(await consumer.getone()).value for _ in range(count)]
