"""What clients tell about themselves (KIP-714): who is asked for which metrics, and what was sent.

A client asks for its subscription and is told which metrics to push, how often, and under which subscription
id. Pushes are checked and counted. Of the clients that pushed last, the values of the last push are kept in
memory for whoever looks, see `last_pushes`.

An instance id is drawn at random, so that nobody can push in another's name or use up another's turn.
Instances are bounded in number; the one that was quiet longest is forgotten. A forgotten client loses nothing
but its turn: the next push makes it known again.

A client can make up instance ids, so no limit rests on them alone: a connection pushes once a second, what is
pushed is read one push at a time, and of the last pushes a principal keeps its share.
"""

from __future__ import annotations

import asyncio
import uuid
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from chronik.client_state import Share
from chronik.metadata.client_metrics import ALL_METRICS, INTERVAL_MS, MetricsSubscription
from chronik.metrics import clock
from chronik.model import ErrorCode, RequestError
from chronik.records.compression import EXPANSION_ALLOWED, Compression, DecompressedTooLarge, decompress
from chronik.server.last_pushes import LastPush, LastPushes
from chronik.server.otlp import PackedPoints, read_metrics

__all__ = [
    "ACCEPTED",
    "INSTANCES_MAX",
    "TELEMETRY_BYTES_MAX",
    "Instance",
    "Telemetry",
    "check_metrics",
]

INSTANCES_MAX: Final = 16_384
"""Clients that are remembered, as in Kafka."""
TELEMETRY_BYTES_MAX: Final = 1_048_576
"""Bytes of one push before they are decompressed: Kafka's telemetry.max.bytes, which is fixed here."""
ACCEPTED: Final = (Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY)
"""Codecs in the order in which clients are to prefer them."""
_KNOWN_CODECS: Final = frozenset({Compression.NONE, *ACCEPTED})
_ASK_AGAIN: Final = (ErrorCode.unknown_subscription_id, ErrorCode.unsupported_compression_type)
"""Errors that a client answers by asking for its subscription at once."""
PUSH_MS: Final = 1_000
"""How long after each other pushes of one connection are taken, unless a subscription wants them sooner."""
PUSHES_AT_ONCE: Final = 20
"""A client that ends pushes once more, however short ago its last one was; several may share a connection."""
READS_WAITING_MAX: Final = 16
"""Pushes that wait to be read, each up to `TELEMETRY_BYTES_MAX`."""
_RESERVED: Final = (uuid.UUID(int=0), uuid.UUID(int=1))


class Wanted(NamedTuple):
    """What a client is asked for."""

    metrics: tuple[str, ...]
    interval_ms: int


@dataclass(slots=True)
class Instance:
    instance_id: uuid.UUID
    subscription_id: int
    wanted: Wanted
    asked_ms: int | None = None
    """When it last asked for its subscription; None: never."""
    has_asked: bool = False
    """Since its last push. Times alone cannot tell: both may be in one millisecond."""
    pushed_ms: int | None = None
    last_error: ErrorCode = ErrorCode.none
    is_terminating: bool = False

    def may_ask(self, now_ms: int) -> bool:
        last = max((at for at in (self.asked_ms, self.pushed_ms) if at is not None), default=None)
        return last is None or now_ms - last >= self.wanted.interval_ms or self.last_error in _ASK_AGAIN

    def may_push(self, now_ms: int) -> bool:
        """The first push after an answer may come at any time: clients spread theirs by chance."""
        if self.pushed_ms is None or self.has_asked:
            return True
        return now_ms - self.pushed_ms >= self.wanted.interval_ms


class Telemetry:
    def __init__(
        self,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
        instances_max: int = INSTANCES_MAX,
        share: Share | None = None,
    ) -> None:
        """`share` is the memory for the values of last pushes."""
        self._new_id = new_id
        self._instances_max = instances_max
        self._instances: OrderedDict[uuid.UUID, Instance] = OrderedDict()
        self._configs: dict[str, dict[str, str]] = {}
        self._subscriptions: list[MetricsSubscription] = []
        self.pushes: Counter[ErrorCode] = Counter()
        """How many pushes came, by how they were answered."""
        self._last_pushes = LastPushes(share)
        self.unreadable = 0
        """Pushes that were taken although their metrics are in no format that is known here."""
        self.pushed_bytes = 0
        """Metrics that were taken, before they were decompressed."""
        self._reading = asyncio.Lock()
        self._to_read = 0

    def __len__(self) -> int:
        return len(self._instances)

    def subscribe(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """The subscriptions of the cluster, by their names. Called before anything is asked."""
        if configs != self._configs:
            self._configs = {name: dict(values) for name, values in configs.items()}
            self._subscriptions = [
                MetricsSubscription.parse(name, values) for name, values in configs.items()
            ]

    def ask(self, instance_id: uuid.UUID | None, client: Mapping[str, str], *, now_ms: int) -> Instance:
        """The subscription of a client; RequestError if it asks too often."""
        instance = self._instance(instance_id or self._new_id(), client)
        if not instance.may_ask(now_ms):
            raise RequestError(
                ErrorCode.throttling_quota_exceeded, "Asked again before the push interval was over."
            )
        instance.asked_ms, instance.has_asked = now_ms, True
        instance.last_error = ErrorCode.none
        return instance

    def pace(
        self, until_ms: int, instance_id: uuid.UUID | None, client: Mapping[str, str], now_ms: int
    ) -> int:
        """Account for one more push. Returns until when the connection's pushes are accounted for;
        RequestError if it came too soon."""
        wanted = self._wanted({**client, "client_instance_id": str(instance_id)})
        every_ms = min(PUSH_MS, wanted.interval_ms)
        if not now_ms <= until_ms <= now_ms + PUSHES_AT_ONCE * PUSH_MS:
            until_ms = now_ms  # long ago, or the clock was set back
        if until_ms - now_ms > (PUSHES_AT_ONCE - 1) * every_ms:
            raise RequestError(ErrorCode.throttling_quota_exceeded, "This connection pushes too often.")
        return until_ms + every_ms

    def admit(
        self,
        instance_id: uuid.UUID | None,
        client: Mapping[str, str],
        *,
        subscription_id: int,
        is_terminating: bool,
        codec: int,
        size: int,
        now_ms: int,
    ) -> None:
        """Whether a push may be taken; RequestError, as in Kafka, if not."""
        if instance_id is None or instance_id in _RESERVED:
            raise RequestError(ErrorCode.invalid_request, "The push names no client instance.")
        instance = self._instance(instance_id, client)
        if instance.is_terminating:
            raise RequestError(ErrorCode.invalid_request, "The client instance has said that it ends.")
        on_time = instance.may_push(now_ms)
        if on_time:
            instance.pushed_ms, instance.has_asked = now_ms, False
        elif not is_terminating:
            instance.last_error = ErrorCode.throttling_quota_exceeded
            raise RequestError(instance.last_error, "Pushed again before the push interval was over.")
        instance.last_error = _refusal(instance, subscription_id, codec, size)
        if instance.last_error is not ErrorCode.none:
            raise RequestError(instance.last_error)
        instance.is_terminating = is_terminating

    async def read(self, codec: int, data: bytes, worked: Callable[[float], None]) -> PackedPoints | None:
        """What an admitted push says, see `check_metrics`; RequestError if too many wait to be read.

        `worked` is told how many seconds it took.
        """
        if self._to_read >= READS_WAITING_MAX:
            raise RequestError(ErrorCode.throttling_quota_exceeded, "Too many pushes wait to be read.")
        self._to_read += 1
        try:
            async with self._reading:
                began = clock()
                try:
                    return await asyncio.to_thread(check_metrics, codec, data)
                finally:
                    worked(clock() - began)
        finally:
            self._to_read -= 1

    def keep(
        self,
        instance_id: uuid.UUID,
        principal: str,
        client: Mapping[str, str],
        points: PackedPoints | None,
        *,
        size_bytes: int,
        now_ms: int,
    ) -> None:
        """Remember what an admitted push said, in the place of the client's last one."""
        self.unreadable += points is None
        instance = self._instance(instance_id, client)
        self._last_pushes.keep(
            LastPush.of(
                instance_id,
                principal,
                client,
                points,
                pushed_ms=now_ms,
                interval_ms=instance.wanted.interval_ms,
                size_bytes=size_bytes,
            )
        )

    def recent(self) -> list[LastPush]:
        """The last push of each client that is remembered, the newest first."""
        return self._last_pushes.newest_first()

    def _instance(self, instance_id: uuid.UUID, client: Mapping[str, str]) -> Instance:
        wanted = self._wanted({**client, "client_instance_id": str(instance_id)})
        subscription_id = _subscription_id(instance_id, wanted)
        instance = self._instances.get(instance_id)
        if instance is None:
            while len(self._instances) >= self._instances_max:
                self._instances.popitem(last=False)
            instance = self._instances[instance_id] = Instance(instance_id, subscription_id, wanted)
        elif instance.subscription_id != subscription_id:
            # Subscriptions were changed: a push under the old id is refused, which makes the client ask.
            instance.subscription_id, instance.wanted = subscription_id, wanted
        self._instances.move_to_end(instance_id)
        return instance

    def _wanted(self, client: Mapping[str, str]) -> Wanted:
        matching = [one for one in self._subscriptions if one.is_for(client)]
        metrics = sorted({metric for one in matching for metric in one.metrics})
        interval_ms = min((one.interval_ms for one in matching), default=INTERVAL_MS)
        return Wanted((ALL_METRICS,) if ALL_METRICS in metrics else tuple(metrics), interval_ms)


def _refusal(instance: Instance, subscription_id: int, codec: int, size: int) -> ErrorCode:
    if subscription_id != instance.subscription_id or not instance.wanted.metrics:
        return ErrorCode.unknown_subscription_id
    if codec not in _KNOWN_CODECS:
        return ErrorCode.unsupported_compression_type
    return ErrorCode.telemetry_too_large if size > TELEMETRY_BYTES_MAX else ErrorCode.none


def _subscription_id(instance_id: uuid.UUID, wanted: Wanted) -> int:
    """The same on every node: a client may push to any broker."""
    crc = zlib.crc32(repr(wanted).encode(), zlib.crc32(instance_id.bytes))
    return crc - 2**32 if crc >= 2**31 else crc


def check_metrics(codec: int, data: bytes) -> PackedPoints | None:
    """What a push says; None if that cannot be read. Not for the loop.

    RequestError if it cannot be decompressed into a bounded number of bytes.
    """
    try:
        plain = decompress(codec, data, EXPANSION_ALLOWED * TELEMETRY_BYTES_MAX)
    except DecompressedTooLarge as error:
        raise RequestError(ErrorCode.telemetry_too_large, error.message) from None
    except RequestError as error:
        raise RequestError(ErrorCode.invalid_record, error.message) from None
    try:
        return read_metrics(plain)
    except ValueError:
        return None
