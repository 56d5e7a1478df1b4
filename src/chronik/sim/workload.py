"""Clients that use a cluster through the Kafka protocol and write down what they saw.

Each load is a coroutine that runs in a process of its own until the recorder says stop. A failure is
recorded as "fail" only when the request certainly had no effect; everything else is "info".
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from chronik.check import Commit, Event, Poll, Send, Trim, Txn
from chronik.check.history import Outcome
from chronik.client import Admin, ClientOptions, Cluster, Consumer, Delivery, FetchOptions, Producer
from chronik.client.groups import Groups
from chronik.client.offsets import EARLIEST, LATEST, list_offsets
from chronik.client.retry import Unreachable
from chronik.client.transactional import Transaction
from chronik.model import ChronikError, ErrorCode, RequestError, TopicPartition
from chronik.sim.loop import EPOCH_MS, SimLoop

OPTIONS: Final = ClientOptions(
    deadline_ms=4_000,
    request_timeout_ms=2_000,
    connect_timeout_ms=1_000,
    retry_backoff_ms=20,
    retry_backoff_ms_max=300,
)
PATIENT: Final = ClientOptions(
    deadline_ms=60_000, request_timeout_ms=10_000, connect_timeout_ms=3_000, retry_backoff_ms_max=300
)
_DEFINITE: Final = frozenset({ErrorCode.message_too_large, ErrorCode.invalid_record})
"""Errors that every attempt gets. After another error an earlier attempt may have had an effect."""
_PAD: Final = b"."
_SHOWN_MAX: Final = 8


@dataclass(slots=True)
class Recorder:
    """The history of a run, and whether it is still going on."""

    loop: SimLoop
    bootstrap: str
    tps: Sequence[TopicPartition]
    events: list[Event] = field(default_factory=list)
    stopping: bool = False
    acked: int = 0
    acked_end: dict[TopicPartition, int] = field(default_factory=dict)
    """Offset behind the last record acknowledged with acks=all. The watermark must not be lower."""
    violations: list[str] = field(default_factory=list)
    """Answers that clients got and that no fault excuses."""

    def now_ms(self) -> int:
        return EPOCH_MS + int(self.loop.now * 1000)

    def record(self, event: Event, what: str) -> None:
        self.events.append(event)
        trace = self.loop.trace
        if trace.is_kept:
            trace.tell(event.process, what)

    def committed(
        self,
        process: str,
        group: str,
        tp: TopicPartition,
        offset: int,
        start: float,
        *,
        end: float | None = None,
        outcome: Outcome = "ok",
        is_read: bool = True,
    ) -> None:
        """A group's offset was committed, or read back."""
        event = Commit(
            process=process,
            start=start,
            end=self.loop.now if end is None else end,
            group=group,
            topic=tp.topic,
            partition=tp.partition,
            offset=offset,
            outcome=outcome,
            is_read=is_read,
        )
        self.record(event, f"{'reads' if is_read else 'commits'} {offset} of {tp} in {group}: {outcome}")

    def sent(self, event: Send) -> None:
        if event.outcome == "ok":
            self.acked += 1
            if event.acks == -1 and event.offset >= 0:
                tp = TopicPartition(event.topic, event.partition)
                self.acked_end[tp] = max(self.acked_end.get(tp, 0), event.offset + 1)
        self.record(
            event, f"send {event.value} to {event.topic}-{event.partition}: {event.outcome} {event.offset}"
        )


def encode(value: str, size: int) -> bytes:
    return value.encode().ljust(size, _PAD)


def decode(value: bytes | None) -> str:
    return (value or b"").rstrip(_PAD).decode()


def outcome_of(error: BaseException) -> Outcome:
    if isinstance(error, RequestError) and error.code in _DEFINITE:
        return "fail"
    return "fail" if isinstance(error, Unreachable) else "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPlan:
    acks: int = -1
    idempotent: bool = False
    burst_max: int = 3
    """Records handed over before their answers are waited for."""
    is_scattered: bool = False
    """Whether the records of a burst go to several partitions: many batches in one commit round."""
    is_to_one: bool = False
    """Whether all of it goes to the same partition."""
    size_max: int = 200
    pause_s: float = 0.05
    count_max: int = 100


async def produce(recorder: Recorder, name: str, rng: random.Random, plan: SendPlan) -> None:
    async with (
        Cluster(recorder.bootstrap, OPTIONS) as cluster,
        Producer(
            cluster,
            acks=plan.acks,
            idempotent=plan.idempotent,
            create_topics=False,
            now_ms=recorder.now_ms,
            batch_bytes_max=rng.choice((1_000, 100_000)),
        ) as producer,
    ):
        count = 0
        while not recorder.stopping and count < plan.count_max:
            burst = []
            tp = recorder.tps[0] if plan.is_to_one else rng.choice(recorder.tps)
            for _ in range(rng.randint(1, plan.burst_max)):
                count += 1
                if plan.is_scattered:
                    tp = rng.choice(recorder.tps)
                burst.append(_send(recorder, producer, tp, f"{name}.{count}", rng, plan))
            await asyncio.gather(*burst)
            await asyncio.sleep(rng.random() * plan.pause_s)


async def _send(
    recorder: Recorder, producer: Producer, tp: TopicPartition, value: str, rng: random.Random, plan: SendPlan
) -> None:
    process = value.partition(".")[0]
    data = encode(value, rng.randint(len(value), max(plan.size_max, len(value))))
    start = recorder.loop.now
    offset, outcome = -1, "ok"
    try:
        delivery = await producer.send(tp.topic, data, partition=tp.partition)
        offset = await delivery
    except (ChronikError, TimeoutError) as error:
        # Waiting for a place in the buffer or for metadata sends nothing; beyond that nobody knows.
        outcome = outcome_of(error)
    recorder.sent(
        Send(
            process=process,
            start=start,
            end=recorder.loop.now,
            topic=tp.topic,
            partition=tp.partition,
            value=value,
            outcome=outcome,  # type: ignore[arg-type]
            offset=offset,
            acks=plan.acks,
            idempotent=plan.idempotent,
        )
    )


async def transact(recorder: Recorder, name: str, rng: random.Random, pause_s: float) -> None:
    """Transactions over several partitions, committed or aborted; a new producer after each failure."""
    count = 0
    while not recorder.stopping:
        with contextlib.suppress(ChronikError, TimeoutError):
            async with Cluster(recorder.bootstrap, OPTIONS) as cluster:
                transaction = Transaction(cluster, f"id-{name}", timeout_ms=5_000)
                async with Producer(
                    cluster, transaction=transaction, create_topics=False, now_ms=recorder.now_ms
                ) as producer:
                    while not recorder.stopping:
                        count += 1
                        await _transaction(recorder, transaction, producer, f"{name}-t{count}", name, rng)
                        await asyncio.sleep(rng.random() * pause_s)
        await asyncio.sleep(0.1)


async def _transaction(
    recorder: Recorder, transaction: Transaction, producer: Producer, txn: str, name: str, rng: random.Random
) -> None:
    await transaction.begin()
    start = recorder.loop.now
    sends: list[tuple[TopicPartition, str, float, Delivery | None]] = []
    outcome: Outcome = "info"
    commit = rng.random() < 0.7
    try:
        for number in range(rng.randint(1, 4)):
            tp = rng.choice(recorder.tps)
            value = f"{name}.{txn}.{number}"
            begun = recorder.loop.now
            sends.append((tp, value, begun, None))
            data = encode(value, rng.randint(len(value), 100))
            sends[-1] = (tp, value, begun, await producer.send(tp.topic, data, partition=tp.partition))
        if commit:
            await transaction.commit(producer)
        else:
            await transaction.abort(producer)
        outcome = "ok"
    finally:
        for tp, value, begun, delivery in sends:
            offset = await _settled(delivery)
            recorder.sent(
                Send(
                    process=name,
                    start=begun,
                    end=recorder.loop.now,
                    topic=tp.topic,
                    partition=tp.partition,
                    value=value,
                    outcome="info" if offset is None else "ok",
                    offset=-1 if offset is None else offset,
                    idempotent=True,
                    txn=txn,
                )
            )
        event = Txn(
            process=name, start=start, end=recorder.loop.now, txn=txn, committed=commit, outcome=outcome
        )
        recorder.record(event, f"{'commit' if commit else 'abort'} {txn}: {outcome}")


async def _settled(delivery: Delivery | None) -> int | None:
    if delivery is None:
        return None
    try:
        return await delivery
    except (ChronikError, TimeoutError):
        return None


async def consume(recorder: Recorder, name: str, rng: random.Random, *, read_committed: bool) -> None:
    """Read every partition from its start; when a consumer fails, another one starts."""
    number = 0
    while not recorder.stopping:
        number += 1
        with contextlib.suppress(ChronikError, TimeoutError):
            async with Cluster(recorder.bootstrap, OPTIONS) as cluster:
                await _consume(recorder, f"{name}#{number}", cluster, rng, read_committed)
        await asyncio.sleep(0.05)


async def _consume(
    recorder: Recorder, process: str, cluster: Cluster, rng: random.Random, read_committed: bool
) -> None:
    options = FetchOptions(
        read_committed=read_committed,
        max_wait_ms=rng.choice((200, 500)),
        partition_max_bytes=rng.choice((100, 1_000, 1_000_000)),
    )
    positions = await list_offsets(cluster, dict.fromkeys(recorder.tps, EARLIEST))
    expected = {tp: found.offset for tp, found in positions.items()}
    async with Consumer(cluster, options, on_out_of_range="earliest") as consumer:
        consumer.assign(dict(expected))
        while not recorder.stopping:
            for part in await consumer.poll(timeout_ms=300):
                records = [(record.offset, decode(record.value)) for record in part.records()]
                event = Poll(
                    process=process,
                    start=recorder.loop.now,
                    end=recorder.loop.now,
                    topic=part.tp.topic,
                    partition=part.tp.partition,
                    position=part.fetch_offset,
                    next_position=part.next_offset,
                    records=records,
                    read_committed=read_committed,
                    # A trim may have moved the log's start past us: the client then starts over there.
                    sought=part.fetch_offset > expected[part.tp],
                )
                expected[part.tp] = part.next_offset
                recorder.record(event, _shown(event))


def _shown(event: Poll) -> str:
    values = " ".join(f"{offset}:{value}" for offset, value in event.records[:_SHOWN_MAX])
    if len(event.records) > _SHOWN_MAX:
        values += f" … {len(event.records)} records"
    kind = "final poll" if event.final else "poll"
    return f"{kind} {event.topic}-{event.partition} {event.position}..{event.next_position}: {values}"


async def trim(recorder: Recorder, name: str, rng: random.Random, pause_s: float) -> None:
    """Delete the heads of logs now and then."""
    async with Cluster(recorder.bootstrap, OPTIONS) as cluster:
        while not recorder.stopping:
            await asyncio.sleep(rng.random() * pause_s)
            tp = rng.choice(recorder.tps)
            offset = rng.randint(0, recorder.acked_end.get(tp, 0))
            start = recorder.loop.now
            outcome: Outcome = "ok"
            try:
                await Admin(cluster).delete_records({tp: offset})
            except (ChronikError, TimeoutError) as error:
                is_refusal = isinstance(error, RequestError) and error.code == ErrorCode.offset_out_of_range
                outcome = "fail" if is_refusal else "info"
            event = Trim(
                process=name,
                start=start,
                end=recorder.loop.now,
                topic=tp.topic,
                partition=tp.partition,
                offset=offset,
                outcome=outcome,
            )
            recorder.record(event, f"trim {tp} to {offset}: {outcome}")


async def commit_offsets(recorder: Recorder, name: str, rng: random.Random, pause_s: float) -> None:
    """Commit a group's offsets and read them back; nobody is a member of the group."""
    async with Cluster(recorder.bootstrap, OPTIONS) as cluster:
        groups = Groups(cluster)
        offset = 0
        while not recorder.stopping:
            await asyncio.sleep(rng.random() * pause_s)
            tp = rng.choice(recorder.tps)
            is_read = rng.random() < 0.4
            start, seen = recorder.loop.now, -1
            outcome: Outcome = "ok"
            try:
                if is_read:
                    found = (await groups.offsets(f"group-{name}")).get(tp)
                    seen = found.offset if found is not None else -1
                else:
                    offset += 1
                    seen = offset
                    await groups.commit(f"group-{name}", {tp: offset})
            except (ChronikError, TimeoutError):
                outcome = "info"
            recorder.committed(name, f"group-{name}", tp, seen, start, outcome=outcome, is_read=is_read)


async def read_everything(recorder: Recorder, name: str, *, read_committed: bool) -> None:
    """The final read: every partition from start to end, after all faults have ended."""
    options = FetchOptions(read_committed=read_committed, max_wait_ms=50)
    async with Cluster(recorder.bootstrap, PATIENT) as cluster:
        tps = list(recorder.tps)
        starts = await list_offsets(cluster, dict.fromkeys(tps, EARLIEST))
        ends = await list_offsets(cluster, dict.fromkeys(tps, LATEST), read_committed=read_committed)
        async with Consumer(cluster, options) as consumer:
            consumer.assign({tp: starts[tp].offset for tp in tps})
            for tp in tps:
                start = starts[tp].offset
                _final(recorder, name, tp, start, start, [], read_committed, start)
            async for part in consumer.batches({tp: ends[tp].offset for tp in tps}):
                records = [(record.offset, decode(record.value)) for record in part.records()]
                _final(
                    recorder,
                    name,
                    part.tp,
                    part.fetch_offset,
                    part.next_offset,
                    records,
                    read_committed,
                    starts[part.tp].offset,
                )


def _final(
    recorder: Recorder,
    name: str,
    tp: TopicPartition,
    position: int,
    next_position: int,
    records: list[tuple[int, str]],
    read_committed: bool,
    log_start: int,
) -> None:
    event = Poll(
        process=name,
        start=recorder.loop.now,
        end=recorder.loop.now,
        topic=tp.topic,
        partition=tp.partition,
        position=position,
        next_position=next_position,
        records=records,
        read_committed=read_committed,
        final=True,
        log_start=log_start,
    )
    recorder.record(event, _shown(event))


async def read_offsets(recorder: Recorder, name: str, groups: Sequence[str]) -> None:
    """The final committed offsets of each group."""
    async with Cluster(recorder.bootstrap, PATIENT) as cluster:
        for group in groups:
            start = recorder.loop.now
            found = await Groups(cluster).offsets(group)
            for tp in recorder.tps:
                recorder.committed(name, group, tp, found[tp].offset if tp in found else -1, start)
