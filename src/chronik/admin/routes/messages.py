"""Looking at a topic's records, and writing one to try something out."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import msgspec

from chronik.admin.context import AdminContext
from chronik.admin.endpoint import HttpAccess, HttpCall, endpoint
from chronik.admin.errors import HttpError
from chronik.admin.needs import on_topic
from chronik.admin.routes.topics import known_topic
from chronik.client import Consumer, FetchOptions
from chronik.client.offsets import EARLIEST, LATEST, list_offsets
from chronik.model import ErrorCode, Int32, Int64, RequestError, TopicPartition, Unavailable
from chronik.records.reader import Record
from chronik.security.acls import Operation
from chronik.security.quotas import CONSUMER_RATE, PRODUCER_RATE

MESSAGES_MAX = 1_000
VALUE_BYTES_MAX = 256 * 1024
SCANNED_MAX = 200_000
SCAN_SECONDS = 5.0
SLACK_SECONDS = 1.0


class MessagesQuery(msgspec.Struct, frozen=True, kw_only=True):
    partition: Int32 | None = None
    """Only this partition; by default all, newest first."""
    offset: Int64 | None = None
    """First offset to read; a negative one counts back from the end. Needs `partition` unless negative."""
    timestamp: Int64 | None = None
    """Begin at the first record at or after this time, in milliseconds."""
    key: str | None = None
    """Only records with this key."""
    limit: Int32 = 50


class Message(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    offset: int
    timestamp_ms: int
    key: str | None
    value: str | None
    encoding: str
    """utf-8, or base64 where key or value are not text."""
    json: Any
    """The value decoded, if it is JSON; else null."""
    is_json: bool
    size_bytes: int
    is_cut: bool
    """The value is longer than what is shown."""
    headers: list[tuple[str, str | None]]
    error: str | None = None
    """Set instead of key and value if this entry stands for a whole batch that cannot be read: says why."""


class Messages(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    messages: list[Message]
    ends: dict[str, int]
    """Where to go on reading, per partition."""
    scanned: int
    is_complete: bool
    """False if the search for a key hit its limits before the end, or not all could be read in time."""


class NewMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    value: str | None
    key: str | None = None
    partition: Int32 | None = None
    headers: dict[str, str] = {}


class Produced(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    offset: int


@endpoint(
    "GET",
    "/admin/topics/{name}/messages",
    needs=on_topic(Operation.READ),
    summary="Records of a topic",
    query=MessagesQuery,
    answer=Messages,
    access=HttpAccess.DATA,
    quota=CONSUMER_RATE,
)
async def messages(call: HttpCall) -> Messages:
    """The newest ones, unless an offset, a time or a key is given."""
    query: MessagesQuery = call.query
    if not 1 <= query.limit <= MESSAGES_MAX:
        raise HttpError(400, "invalid_query", f"limit is 1 to {MESSAGES_MAX}.")
    topic = known_topic(call.context, call.path["name"])
    numbers = [one.partition for one in topic.partitions]
    if query.partition is not None:
        if query.partition not in numbers:
            raise RequestError(
                ErrorCode.unknown_topic_or_partition, f"{topic.name} has no partition {query.partition}."
            )
        numbers = [query.partition]
    elif query.offset is not None and query.offset >= 0:
        raise HttpError(400, "invalid_query", "An offset means something in one partition only: name it.")
    tps = [TopicPartition(topic.name, number) for number in numbers]
    starts, ends = await _span(call.context, tps, query)
    found, scanned, positions, complete = await _read(call.context, starts, ends, query)
    newest_first = query.offset is None and query.timestamp is None
    found.sort(key=lambda one: (one.timestamp_ms, one.offset), reverse=newest_first)
    return Messages(
        topic=topic.name,
        messages=found[: query.limit],
        ends={str(tp.partition): position for tp, position in positions.items()},
        scanned=scanned,
        is_complete=complete,
    )


@endpoint(
    "POST",
    "/admin/topics/{name}/messages",
    needs=on_topic(Operation.WRITE),
    summary="Write a record",
    body=NewMessage,
    answer=Produced,
    access=HttpAccess.CHANGE,
    quota=PRODUCER_RATE,
)
async def produce_message(call: HttpCall) -> Produced:
    """It is written with acks=all; the answer has its offset."""
    topic = known_topic(call.context, call.path["name"])
    wanted: NewMessage = call.body
    delivery = await call.context.loopback.producer().send(
        topic.name,
        None if wanted.value is None else wanted.value.encode(),
        key=None if wanted.key is None else wanted.key.encode(),
        headers=[(name, value.encode()) for name, value in wanted.headers.items()],
        partition=wanted.partition,
    )
    return Produced(topic.name, delivery.tp.partition, await delivery)


async def newest_values(context: AdminContext, topic: str, limit: int) -> list[bytes]:
    """The last records of a topic of one partition, newest first; nothing if there is no such topic."""
    if topic not in context.state.topics:
        return []
    query = MessagesQuery(limit=limit)
    starts, ends = await _span(context, [TopicPartition(topic, 0)], query)
    found, _, _, _ = await _read(context, starts, ends, query)
    return [one.value.encode() for one in reversed(found) if one.value is not None]


async def _span(
    context: AdminContext, tps: list[TopicPartition], query: MessagesQuery
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Where to start and stop reading in each partition."""
    cluster = context.loopback.cluster()
    low, high = await asyncio.gather(
        list_offsets(cluster, dict.fromkeys(tps, EARLIEST)), list_offsets(cluster, dict.fromkeys(tps, LATEST))
    )
    ends = {tp: at.offset for tp, at in high.items()}
    if query.timestamp is not None:
        at_time = await list_offsets(cluster, dict.fromkeys(tps, query.timestamp))
        starts = {tp: at.offset if at.offset >= 0 else ends[tp] for tp, at in at_time.items()}
    elif query.offset is not None and query.offset >= 0:
        starts = dict.fromkeys(tps, query.offset)
    else:
        back = -query.offset if query.offset is not None else query.limit
        if query.key is not None:
            back = SCANNED_MAX // len(tps)
        starts = {tp: ends[tp] - back for tp in tps}
    return {tp: max(low[tp].offset, min(start, ends[tp])) for tp, start in starts.items()}, ends


async def _read(
    context: AdminContext,
    starts: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
    query: MessagesQuery,
) -> tuple[list[Message], int, dict[TopicPartition, int], bool]:
    positions = dict(starts)
    open_ends = {tp: end for tp, end in ends.items() if starts[tp] < end}
    found: list[Message] = []
    per_partition: dict[TopicPartition, int] = {}
    scanned, complete = 0, True
    key = None if query.key is None else query.key.encode()
    if not open_ends:
        return found, scanned, positions, complete
    options = FetchOptions(max_wait_ms=100, partition_max_bytes=512 * 1024, max_bytes=4 * 1024 * 1024)
    async with (
        context.message_reads,
        Consumer(context.loopback.cluster(), options, on_out_of_range="earliest") as consumer,
    ):
        deadline = context.loop_time() + SCAN_SECONDS
        consumer.assign({tp: starts[tp] for tp in open_ends})
        try:
            # A partition that cannot be read now is asked again and again until then.
            async with asyncio.timeout(SCAN_SECONDS + SLACK_SECONDS):
                async for one in consumer.records(open_ends):
                    tp, record = one.tp, one.record
                    scanned += 1
                    if per_partition.get(tp, 0) < query.limit:
                        positions[tp] = record.offset + 1
                        if key is None or record.key == key:
                            found.append(message(tp.partition, record))
                            per_partition[tp] = per_partition.get(tp, 0) + 1
                    if all(per_partition.get(tp, 0) >= query.limit for tp in open_ends):
                        break
                    if scanned >= SCANNED_MAX or (scanned % 256 == 0 and context.loop_time() > deadline):
                        complete = False
                        break
        except TimeoutError:
            if not scanned:
                raise Unavailable("These records cannot be read now; the node's log may say why.") from None
            complete = False
    return found, scanned, positions, complete


def message(partition: int, record: Record) -> Message:
    if (batch := record.unreadable) is not None:
        return Message(
            partition=partition,
            offset=record.offset,
            timestamp_ms=record.timestamp_ms,
            key=None,
            value=None,
            encoding="utf-8",
            json=None,
            is_json=False,
            size_bytes=batch.size_bytes,
            is_cut=False,
            headers=[],
            error=str(batch),
        )
    size = len(record.value or b"")
    value = record.value if size <= VALUE_BYTES_MAX else (record.value or b"")[:VALUE_BYTES_MAX]
    encoding = "utf-8"
    try:
        key_text = None if record.key is None else record.key.decode()
        value_text = (
            None if value is None else value.decode("utf-8", "strict" if size == len(value) else "ignore")
        )
    except UnicodeDecodeError:
        encoding = "base64"
        key_text = None if record.key is None else base64.b64encode(record.key).decode()
        value_text = None if value is None else base64.b64encode(value).decode()
    decoded, is_json = None, False
    if record.value and size <= VALUE_BYTES_MAX and record.value[:1] in b'{["-0123456789tfn':
        try:
            decoded, is_json = msgspec.json.decode(record.value), True
        except (msgspec.DecodeError, RecursionError, ValueError):
            pass
    return Message(
        partition=partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        key=key_text,
        value=value_text,
        encoding=encoding,
        json=decoded,
        is_json=is_json,
        size_bytes=size,
        is_cut=size > VALUE_BYTES_MAX,
        headers=[
            (name, None if content is None else content.decode("utf-8", "replace"))
            for name, content in record.headers
        ],
    )
