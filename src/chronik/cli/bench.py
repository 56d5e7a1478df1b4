"""`chronik bench`: how fast a Kafka-compatible cluster is, as a client on this machine sees it."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from chronik.cli.client import AsJson, Bootstrap, CommandFailed, Timeout, partition_numbers, print_json, run
from chronik.cli.latencies import Latencies
from chronik.cli.pacing import closed_loop, open_loop
from chronik.cli.produce import acks_and_codec
from chronik.model import TopicPartition
from chronik.words import human_bytes

if TYPE_CHECKING:
    from chronik.client import Cluster, Producer

_DUE: Final = struct.Struct(">8sd")
"""How a record of `latency` begins: a mark of this run, and when it was due."""
_SETTLE_SECONDS: Final = 10.0
"""How long `latency` waits for records that were sent and have not come back."""

Topic: TypeAlias = Annotated[str, typer.Argument(help="topic to use", show_default=False)]
Seconds: TypeAlias = Annotated[
    float, typer.Option("--seconds", "-s", min=0.1, metavar="N", help="how long to send")
]
Size: TypeAlias = Annotated[int, typer.Option("--size", min=0, metavar="BYTES", help="of each value")]
Acks: TypeAlias = Annotated[str, typer.Option("--acks", metavar="0|1|all", help="who must have a record")]
Codec: TypeAlias = Annotated[str, typer.Option("--compression", "-z", metavar="CODEC")]


@dataclass(slots=True)
class BenchRun:
    """What a benchmark has seen so far."""

    what: str
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    records: int = 0
    size_bytes: int = 0
    latencies: Latencies = field(default_factory=Latencies)

    def report(self, **facts: object) -> dict[str, Any]:
        seconds = self.seconds or 1e-9
        found: dict[str, Any] = {
            "bench": self.what,
            **facts,
            "seconds": round(self.seconds, 3),
            "records": self.records,
            "records_per_second": round(self.records / seconds, 1),
            "bytes_per_second": round(self.size_bytes / seconds),
        }
        if self.latencies.count:
            found["latency_ms"] = self.latencies.summary_ms()
            found["histogram_ms"] = [[upper / 1000, count] for upper, count in self.latencies.buckets()]
        return found


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Measure a cluster.", no_args_is_help=True)
    for command in (produce, consume, latency):
        group.command()(command)
    app.add_typer(group, name="bench")


def produce(
    topic: Topic,
    seconds: Seconds = 10.0,
    rate: Annotated[
        float | None,
        typer.Option("--rate", "-r", min=0.1, metavar="N", help="records a second (open loop)"),
    ] = None,
    under_way: Annotated[
        int, typer.Option("--under-way", "-u", min=1, metavar="N", help="without --rate: records at once")
    ] = 1000,
    size: Size = 100,
    acks: Acks = "all",
    compression: Codec = "none",
    as_json: AsJson = False,
    timeout: Timeout = 30.0,
    servers: Bootstrap = None,
) -> None:
    """Write records and measure how long their acknowledgements take.

    With --rate records are sent on time whatever the cluster does, and each latency counts from when the
    record was due. Without, as many as possible are sent, --under-way at a time.

    Examples:

      chronik bench produce load --rate 1000 --seconds 30

      chronik bench produce load --under-way 5000 --size 1000 --acks 1
    """
    acks_number, codec = acks_and_codec(acks, compression)

    async def work(cluster: Cluster) -> BenchRun:
        from chronik.client import Producer

        found = BenchRun("produce")
        value = b"x" * size
        async with _shown(found), Producer(cluster, acks=acks_number, compression=codec) as producer:
            await producer.flush()
            found.started = time.monotonic()
            sending = _Sending(producer, topic, value, found)
            if rate is None:
                await closed_loop(sending.wait, workers=under_way, seconds=seconds, now=time.monotonic)
            else:
                await sending.at_rate(rate, seconds)
            found.seconds = time.monotonic() - found.started
        return found

    found = run(servers, work, timeout=timeout)
    loop = {"loop": "closed", "under_way": under_way} if rate is None else {"loop": "open", "rate": rate}
    _tell(found.report(topic=topic, size=size, acks=acks, compression=compression, **loop), as_json)


def consume(
    topic: Topic,
    seconds: Seconds = 10.0,
    as_json: AsJson = False,
    timeout: Timeout = 30.0,
    servers: Bootstrap = None,
) -> None:
    """Read a topic from its beginning to its present end, or for a given time, and measure how fast.

    Examples:

      chronik bench consume load
    """

    async def work(cluster: Cluster) -> BenchRun:
        from chronik.client import Admin, Consumer
        from chronik.client.offsets import EARLIEST, LATEST

        tps = [TopicPartition(topic, number) for number in await partition_numbers(cluster, topic)]
        admin, found = Admin(cluster), BenchRun("consume")
        starts = {tp: at.offset for tp, at in (await admin.offsets(dict.fromkeys(tps, EARLIEST))).items()}
        ends = {tp: at.offset for tp, at in (await admin.offsets(dict.fromkeys(tps, LATEST))).items()}
        async with _shown(found), Consumer(cluster) as consumer:
            consumer.assign(starts)
            found.started = time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    async for part in consumer.batches(until=ends):
                        found.records += part.next_offset - part.fetch_offset
                        found.size_bytes += len(part.data)
            found.seconds = time.monotonic() - found.started
        return found

    _tell(run(servers, work, timeout=timeout).report(topic=topic), as_json)


def latency(
    topic: Topic,
    seconds: Seconds = 10.0,
    rate: Annotated[
        float, typer.Option("--rate", "-r", min=0.1, metavar="N", help="records a second")
    ] = 1000,
    size: Size = 100,
    acks: Acks = "all",
    as_json: AsJson = False,
    timeout: Timeout = 30.0,
    servers: Bootstrap = None,
) -> None:
    """Write at a fixed rate, read at the tail, and measure from when a record was due to when it was read.

    Examples:

      chronik bench latency pings --rate 1000 --seconds 30
    """
    acks_number, _ = acks_and_codec(acks, "none")

    async def work(cluster: Cluster) -> BenchRun:
        from chronik.client import Admin, Consumer, Producer
        from chronik.client.offsets import LATEST

        there = sorted(await cluster.partitions(topic, create=True))
        tps = [TopicPartition(topic, number) for number in there]
        ends = {
            tp: at.offset for tp, at in (await Admin(cluster).offsets(dict.fromkeys(tps, LATEST))).items()
        }
        found, mark = BenchRun("latency"), struct.pack(">q", time.time_ns())
        padding = b"x" * max(0, size - _DUE.size)
        async with (
            _shown(found),
            Producer(cluster, acks=acks_number) as producer,
            Consumer(cluster) as consumer,
        ):
            consumer.assign(ends)
            reading = asyncio.ensure_future(_read_back(consumer, found, mark))

            async def send(due: float) -> None:
                await producer.send(topic, _DUE.pack(mark, due) + padding)

            found.started = time.monotonic()
            sent = await open_loop(send, rate=rate, seconds=seconds, now=time.monotonic, sleep=asyncio.sleep)
            found.seconds = time.monotonic() - found.started
            await producer.flush()
            deadline = time.monotonic() + _SETTLE_SECONDS
            while found.records < sent and not reading.done() and time.monotonic() < deadline:
                await asyncio.wait((reading,), timeout=0.02)
            reading.cancel()
            if found.records < sent:
                raise CommandFailed(f"{sent - found.records} of {sent} records did not come back")
        return found

    found = run(servers, work, timeout=timeout)
    _tell(found.report(topic=topic, size=size, acks=acks, loop="open", rate=rate), as_json)


async def _read_back(consumer: Any, found: BenchRun, mark: bytes) -> None:
    while True:
        for part in await consumer.poll(1000):
            now = time.monotonic()
            for _, _, _, value, _ in part.rows():
                if value is not None and len(value) >= _DUE.size and value[:8] == mark:
                    due = _DUE.unpack_from(value)[1]
                    found.latencies.observe(int((now - due) * 1_000_000))
                    found.records += 1
                    found.size_bytes += len(value)


@dataclass(slots=True)
class _Sending:
    producer: Producer
    topic: str
    value: bytes
    run: BenchRun

    async def wait(self, due: float) -> None:
        delivery = await self.producer.send(self.topic, self.value)
        await delivery
        self._done(due)

    async def at_rate(self, rate: float, seconds: float) -> None:
        try:
            async with asyncio.TaskGroup() as deliveries:

                async def hand_over(due: float) -> None:
                    deliveries.create_task(self.wait(due))

                clock = time.monotonic
                await open_loop(hand_over, rate=rate, seconds=seconds, now=clock, sleep=asyncio.sleep)
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None  # the others failed for the same reason, or were ended

    def _done(self, due: float) -> None:
        self.run.latencies.observe(int((time.monotonic() - due) * 1_000_000))
        self.run.records += 1
        self.run.size_bytes += len(self.value)


@contextlib.asynccontextmanager
async def _shown(found: BenchRun) -> AsyncIterator[None]:
    """A line on stderr that says each second how it goes, if somebody looks."""

    async def show() -> None:
        last = 0
        while True:
            await asyncio.sleep(1.0)
            done, last = found.records - last, found.records
            p99 = f", p99 {found.latencies.quantile_us(0.99) / 1000:.2f} ms" if found.latencies.count else ""
            print(f"\r{found.records:,} records, {done:,}/s{p99}   ", end="", file=sys.stderr, flush=True)

    if not sys.stderr.isatty():
        yield
        return
    showing = asyncio.ensure_future(show())
    try:
        yield
    finally:
        showing.cancel()
        print("\r\x1b[K", end="", file=sys.stderr)


def _tell(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    rate = human_bytes(report["bytes_per_second"])
    print(
        f"{report['records']:,} records in {report['seconds']:.1f} s: "
        f"{report['records_per_second']:,.0f} records/s, {rate}/s"
    )
    if "latency_ms" in report:
        print(", ".join(f"{name} {value:.2f}" for name, value in report["latency_ms"].items()) + " (ms)")
        for line in _drawn(report["histogram_ms"]):
            print(line)
        if report.get("loop") == "closed":
            print("Closed loop: a load that does not wait for answers sees more; --rate measures that.")


def _drawn(histogram: list[list[float]]) -> Iterator[str]:
    """One line for each doubling of the latency."""
    rows: dict[float, int] = {}
    for upper_ms, count in histogram:
        bound = 0.25
        while bound < upper_ms:
            bound *= 2
        rows[bound] = rows.get(bound, 0) + int(count)
    most = max(rows.values())
    for bound, count in sorted(rows.items()):
        yield f"  up to {bound:>10,.2f} ms {count:>10,}  {'█' * max(1, round(40 * count / most))}"
