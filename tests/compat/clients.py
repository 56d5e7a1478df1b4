"""Three client libraries behind one small face, so that one test can be run with each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import aiokafka.errors
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic

DEADLINE_S = 60


@dataclass(frozen=True)
class Record:
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


class Client(Protocol):
    """Everything goes to and comes from partition 0 unless said otherwise."""

    def __init__(self, bootstrap: str) -> None: ...
    def create(self, topic: str, partitions: int = 1) -> None: ...
    def delete(self, topic: str) -> None: ...
    def topics(self) -> set[str]: ...
    def partitions(self, topic: str) -> int: ...
    def produce(
        self, topic: str, records: Sequence[Record], compression: str | None = None, acks: int | str = "all"
    ) -> list[int]:
        """Returns the offsets of the records."""

    def consume(self, topic: str, count: int, offset: int = 0) -> list[Record]:
        """Exactly `count` records from `offset` on."""


class KafkaPython:
    def __init__(self, bootstrap: str) -> None:
        self.servers = bootstrap

    def _admin(self) -> kafka.KafkaAdminClient:
        return kafka.KafkaAdminClient(bootstrap_servers=self.servers)

    def create(self, topic: str, partitions: int = 1) -> None:
        admin = self._admin()
        admin.create_topics([kafka.admin.NewTopic(topic, partitions, 1)])
        admin.close()

    def delete(self, topic: str) -> None:
        admin = self._admin()
        admin.delete_topics([topic])
        admin.close()

    def topics(self) -> set[str]:
        admin = self._admin()
        found = set(admin.list_topics())
        admin.close()
        return found

    def partitions(self, topic: str) -> int:
        consumer = kafka.KafkaConsumer(bootstrap_servers=self.servers)
        found = consumer.partitions_for_topic(topic)
        consumer.close()
        return len(found or ())

    def produce(
        self, topic: str, records: Sequence[Record], compression: str | None = None, acks: int | str = "all"
    ) -> list[int]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.servers,
            compression_type=compression,
            acks=acks,
            max_request_size=4 * 1024 * 1024,
            enable_idempotence=False,
        )
        sent = [
            producer.send(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=0,
                timestamp_ms=record.timestamp_ms,
            )
            for record in records
        ]
        offsets = [future.get(DEADLINE_S).offset for future in sent]
        producer.close()
        return offsets

    def consume(self, topic: str, count: int, offset: int = 0) -> list[Record]:
        consumer = kafka.KafkaConsumer(bootstrap_servers=self.servers, consumer_timeout_ms=DEADLINE_S * 1000)
        partition = kafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, offset)
        found = []
        for message in consumer:
            found.append(
                Record(
                    message.value, message.key, tuple((k, v) for k, v in message.headers), message.timestamp
                )
            )
            if len(found) == count:
                break
        consumer.close()
        return found


class AioKafka:
    def __init__(self, bootstrap: str) -> None:
        self.servers = bootstrap

    def create(self, topic: str, partitions: int = 1) -> None:
        async def call(admin: AIOKafkaAdminClient) -> None:
            answer = await admin.create_topics([AioNewTopic(topic, partitions, 1)])
            if (code := answer.topic_errors[0][1]) != 0:
                raise aiokafka.errors.for_code(code)(f"[{code}]")

        asyncio.run(self._with_admin(call))

    def delete(self, topic: str) -> None:
        async def call(admin: AIOKafkaAdminClient) -> None:
            answer = await admin.delete_topics([topic])
            assert [error[1] for error in answer.topic_error_codes] == [0]

        asyncio.run(self._with_admin(call))

    def topics(self) -> set[str]:
        async def call(admin: AIOKafkaAdminClient) -> set[str]:
            return set(await admin.list_topics())

        return asyncio.run(self._with_admin(call))

    async def _with_admin(self, call):  # type: ignore[no-untyped-def]
        admin = AIOKafkaAdminClient(bootstrap_servers=self.servers)
        await admin.start()
        try:
            return await call(admin)
        finally:
            await admin.close()

    def partitions(self, topic: str) -> int:
        async def call(admin: AIOKafkaAdminClient) -> int:
            (described,) = await admin.describe_topics([topic])
            return len(described["partitions"])

        return asyncio.run(self._with_admin(call))

    def produce(
        self, topic: str, records: Sequence[Record], compression: str | None = None, acks: int | str = "all"
    ) -> list[int]:
        async def call() -> list[int]:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.servers,
                compression_type=compression,
                acks=acks,
                max_request_size=4 * 1024 * 1024,
            )
            await producer.start()
            try:
                sent = [
                    await producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        headers=list(record.headers),
                        partition=0,
                        timestamp_ms=record.timestamp_ms,
                    )
                    for record in records
                ]
                async with asyncio.timeout(DEADLINE_S):
                    return [-1 if (done := await future) is None else done.offset for future in sent]
            finally:
                await producer.stop()

        return asyncio.run(call())

    def consume(self, topic: str, count: int, offset: int = 0) -> list[Record]:
        async def call() -> list[Record]:
            consumer = AIOKafkaConsumer(bootstrap_servers=self.servers)
            await consumer.start()
            try:
                partition = AioTopicPartition(topic, 0)
                consumer.assign([partition])
                consumer.seek(partition, offset)
                async with asyncio.timeout(DEADLINE_S):
                    messages = [await consumer.getone() for _ in range(count)]
                return [Record(m.value, m.key, tuple(m.headers), m.timestamp) for m in messages]
            finally:
                await consumer.stop()

        return asyncio.run(call())


class Confluent:
    def __init__(self, bootstrap: str) -> None:
        self.servers: dict[str, str | int] = {"bootstrap.servers": bootstrap, "log_level": 0}
        self.admin = confluent_kafka.admin.AdminClient(self.servers)

    def create(self, topic: str, partitions: int = 1) -> None:
        made = self.admin.create_topics([confluent_kafka.admin.NewTopic(topic, partitions, 1)])
        made[topic].result(DEADLINE_S)

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(DEADLINE_S)

    def topics(self) -> set[str]:
        return set(self.admin.list_topics(timeout=DEADLINE_S).topics)

    def partitions(self, topic: str) -> int:
        return len(self.admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions)

    def produce(
        self, topic: str, records: Sequence[Record], compression: str | None = None, acks: int | str = "all"
    ) -> list[int]:
        producer = confluent_kafka.Producer(
            {
                **self.servers,
                "compression.type": compression or "none",
                "acks": acks,
                "message.max.bytes": 4 * 1024 * 1024,
            }
        )
        offsets: list[int] = []

        def delivered(error: object, message: confluent_kafka.Message) -> None:
            assert error is None, error
            offsets.append(message.offset())

        for record in records:
            timestamp = {} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=0,
                on_delivery=delivered,
                **timestamp,
            )
        assert producer.flush(DEADLINE_S) == 0
        return offsets

    def consume(self, topic: str, count: int, offset: int = 0) -> list[Record]:
        consumer = confluent_kafka.Consumer(
            {
                **self.servers,
                "group.id": "unused",
                "enable.auto.commit": False,
                "fetch.message.max.bytes": 4194304,
            }
        )
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, offset)])
        found: list[Record] = []
        while len(found) < count:
            messages = consumer.consume(count - len(found), timeout=DEADLINE_S)
            assert messages, f"{len(found)} of {count} records came"
            for message in messages:
                assert message.error() is None, message.error()
                headers = tuple((name, value) for name, value in message.headers() or ())
                found.append(Record(message.value(), message.key(), headers, message.timestamp()[1]))
        consumer.close()
        return found


CLIENTS: dict[str, type[Client]] = {
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
    "confluent-kafka": Confluent,
}
