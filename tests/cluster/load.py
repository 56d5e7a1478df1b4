"""A producer that never stops, and a checker that knows what it was promised.

The producer is idempotent and waits for all in-sync replicas; records carry their partition and a number that
goes up by one in each. So the log of a partition must hold every acknowledged number once, at the offset that
was told, in order; a record whose delivery failed may be there or not.
"""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass, field

import confluent_kafka

from tests.crash.load import read_partition

QUIET = {"log_level": 0}
FLUSH_S = 60


@dataclass(frozen=True)
class Ack:
    sent_at: float
    acked_at: float
    offset: int | None
    """None if none was told: what the client was about to send again counts as acknowledged when a later
    record is (librdkafka's implicit acknowledgement)."""


@dataclass
class Sent:
    """What became of the records of one partition, by number."""

    count: int = 0
    acks: dict[int, Ack] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)


class Load:
    """`rate` records a second over all partitions of a topic, until the `with` ends."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, *, rate: float = 400, **config: object
    ) -> None:
        self.topic = topic
        self.bootstrap = bootstrap
        self.sent = {number: Sent() for number in range(partitions)}
        self._pause_s = partitions / rate
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "message.timeout.ms": 120_000,
                "socket.timeout.ms": 3_000,  # a frozen node answers nobody: do not wait a minute for it
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 200,  # nor ten seconds for one that is back
                **QUIET,
                **config,
            }
        )
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._enough.set()
        self._thread.join()
        left = self._producer.flush(FLUSH_S)
        if exception == (None, None, None):
            assert left == 0, f"{left} records were neither acknowledged nor refused within {FLUSH_S} s"

    def _run(self) -> None:
        next_at = time.monotonic()
        while not self._enough.is_set():
            for partition in self.sent:
                self._send(partition)
            next_at += self._pause_s
            self._producer.poll(max(0.0, next_at - time.monotonic()))
            while (left := next_at - time.monotonic()) > 0 and not self._enough.is_set():
                self._producer.poll(left)

    def _send(self, partition: int) -> None:
        sent = self.sent[partition]
        number, sent_at = sent.count, time.monotonic()

        def delivered(error: object, message: confluent_kafka.Message) -> None:
            if error is None:
                sent.acks[number] = Ack(sent_at, time.monotonic(), message.offset())
            else:
                sent.failures[number] = str(error)

        try:
            self._producer.produce(
                self.topic, b"%d %d" % (partition, number), partition=partition, on_delivery=delivered
            )
            sent.count += 1
        except BufferError:
            pass  # the queue is full during a long pause: the next round tries again

    # --- what happened -----------------------------------------------------------------------------

    @property
    def acked(self) -> int:
        return sum(len(sent.acks) for sent in self.sent.values())

    @property
    def failures(self) -> list[str]:
        return [
            f"{partition} {number}: {why}"
            for partition, sent in self.sent.items()
            for number, why in sent.failures.items()
        ]

    def wait_acked(self, count: int, *, timeout_s: float = 60) -> None:
        """Until so many more records are acknowledged in every partition, sent from now on."""
        starts = {partition: sent.count for partition, sent in self.sent.items()}
        deadline = time.monotonic() + timeout_s
        while True:
            behind = [
                partition
                for partition, sent in self.sent.items()
                if starts[partition] + count - 1 not in sent.acks
            ]
            if not behind:
                return
            if time.monotonic() > deadline:
                state = {
                    partition: (self.sent[partition].count, len(self.sent[partition].acks))
                    for partition in behind
                }
                raise AssertionError(f"no acknowledgement within {timeout_s} s (sent, acked): {state}")
            time.sleep(0.01)

    def pause_after(self, moment: float, partition: int) -> float:
        """Seconds from `moment` until a record sent later was acknowledged."""
        acks = [ack.acked_at for ack in list(self.sent[partition].acks.values()) if ack.sent_at >= moment]
        assert acks, f"nothing sent to partition {partition} after that was acknowledged"
        return min(acks) - moment

    def longest_pause(self) -> float:
        """The longest time in which a partition acknowledged nothing."""
        moments = [sorted(ack.acked_at for ack in sent.acks.values()) for sent in self.sent.values()]
        return max(later - earlier for times in moments for earlier, later in itertools.pairwise(times))

    def check(self) -> None:
        """Nothing acknowledged is lost, nothing is there twice or out of order."""
        wrong: list[str] = []
        for partition in self.sent:
            wrong += self._check_partition(partition, read_partition(self.bootstrap, self.topic, partition))
        assert not wrong, f"{len(wrong)} records are wrong: {wrong[:10]}"

    def _check_partition(self, partition: int, log: list[tuple[int, bytes]]) -> list[str]:
        sent, wrong = self.sent[partition], []
        numbers: dict[int, int] = {}
        last = -1
        for offset, value in log:
            home, number = (int(part) for part in value.split())
            if home != partition:
                wrong.append(f"partition {partition} holds {value!r}")
            if number in numbers:
                wrong.append(f"{partition} {number}: twice, at {numbers[number]} and {offset}")
            elif number < last:
                wrong.append(f"{partition} {number}: behind {last}")
            numbers[number] = offset
            last = number
        for number, ack in sent.acks.items():
            if number not in numbers:
                wrong.append(f"{partition} {number}: acknowledged at {ack.offset}, lost")
            elif ack.offset is not None and ack.offset != numbers[number]:
                wrong.append(
                    f"{partition} {number}: acknowledged at {ack.offset}, but it is at {numbers[number]}"
                )
        return wrong
