"""Topics for tests: made, filled and read by chronik's own client."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TypeVar

from chronik.client import Cluster, Consumer, FetchOptions, Producer
from chronik.client.admin import Admin, NewTopic
from chronik.client.offsets import LATEST, list_offsets
from chronik.client.producer import Delivery
from chronik.client.transactional import Transaction
from chronik.model import TopicPartition
from chronik.records.reader import Record

T = TypeVar("T")


class Topics:
    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._names = (f"t-{uuid.uuid4().hex[:8]}-{number}" for number in itertools.count())
        self._runner = asyncio.Runner()

    def __enter__(self) -> Topics:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.close()

    def run(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        async def main() -> T:
            async with Cluster(self.bootstrap) as cluster:
                return await work(cluster)

        return self._runner.run(main())

    def create(self, partitions: int = 1, name: str | None = None, **configs: str) -> str:
        made = name or next(self._names)

        async def work(cluster: Cluster) -> None:
            settings = {key.replace("_", "."): value for key, value in configs.items()}
            topic = NewTopic(name=made, partitions=partitions, replication_factor=1, configs=settings)
            for result in await Admin(cluster).create_topics([topic]):
                if isinstance(result, Exception):
                    raise result

        self.run(work)
        return made

    def delete(self, name: str) -> None:
        async def work(cluster: Cluster) -> None:
            for error in await Admin(cluster).delete_topics([name]):
                if error is not None:
                    raise error

        self.run(work)

    def fill(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        partition: int | None = None,
        abort: bool | None = None,
    ) -> None:
        """Write values; in a transaction that is committed or aborted if `abort` says so."""

        async def work(cluster: Cluster) -> None:
            transaction = Transaction(cluster, f"fill-{topic}") if abort is not None else None
            async with Producer(cluster, transaction=transaction) as producer:
                if transaction is not None:
                    await transaction.begin()
                sent: list[Delivery] = []
                for number, value in enumerate(values):
                    key = keys[number] if keys is not None else None
                    sent.append(await producer.send(topic, value, key=key, partition=partition))
                await asyncio.gather(*sent)
                if transaction is not None:
                    await (transaction.abort(producer) if abort else transaction.commit(producer))

        self.run(work)

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        self.run(lambda c: Admin(c).delete_records({TopicPartition(topic, partition): before}))

    def records(self, topic: str, partitions: int = 1) -> list[list[Record]]:
        """Everything committed, by partition."""

        async def work(cluster: Cluster) -> list[list[Record]]:
            tps = [TopicPartition(topic, number) for number in range(partitions)]
            ends = await list_offsets(cluster, dict.fromkeys(tps, LATEST), read_committed=True)
            found: list[list[Record]] = []
            for tp in tps:
                records: list[Record] = []
                async with Consumer(cluster, FetchOptions(read_committed=True)) as consumer:
                    consumer.assign({tp: 0})
                    if ends[tp].offset > 0:
                        async for fetched in consumer.batches({tp: ends[tp].offset}):
                            records += fetched.records()
                found.append(records)
            return found

        return self.run(work)
