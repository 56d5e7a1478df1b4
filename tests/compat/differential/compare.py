"""What counts as the same answer: ids, times and addresses only have to be there, the rest is equal."""

from __future__ import annotations

import dataclasses
import datetime
import re
import time
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple
from uuid import UUID

from chronik.records.batch import (
    CONTROL_MASK,
    CRC_OFFSET,
    MAX_TIMESTAMP_OFFSET,
    NO_PRODUCER_ID,
    TIMESTAMP_TYPE_MASK,
    headers,
)

BASE_TIMESTAMP_OFFSET: Final = 27
PRODUCER_ID_OFFSET: Final = 43
Leaves = dict[str, Any]
"""Path within the answer → plain value."""

KEYS: Final = (
    *(
        "api_key",
        "name",
        "topic_name",
        "topic",
        "topic_id",
        "group_id",
        "partition_index",
        "index",
        "partition",
    ),
    *(
        "partition_id",
        "node_id",
        "broker_id",
        "transactional_id",
        "key",
        "resource_name",
        "group_instance_id",
        "entity_type",
    ),
)
"""By the first of these that it has, an element of an array is found on the other side."""
UUID_TEXT = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
IGNORED: Final = frozenset({"throttle_time", "documentation", "config_docs"})
MESSAGES: Final = frozenset({"error_message", "batch_index_error_message", "error_string", "error"})
PRESENT: Final = frozenset(
    {
        *(
            "host",
            "port",
            "cluster_id",
            "log_dir",
            "producer_id",
            "session_id",
            "total_bytes",
            "usable_bytes",
        ),
        *("last_fetch_timestamp", "last_caught_up_timestamp", "finalized_features_epoch", "partition_size"),
        *("client_instance_id", "subscription_id"),
    }
)
"""Differ by nature: only whether there is a value is compared."""
CLOCK_MS: Final = 600_000
"""A record's timestamp so close to now was given by the broker's clock: no request names one."""


NULLABLE_ARRAYS: Final = frozenset({"aborted_transactions", "configs"})


class Difference(NamedTuple):
    api: str
    version: int
    case: str
    path: str
    kafka: Any
    chronik: Any


def leaves(answer: Any, topic_ids: Mapping[UUID, str]) -> Leaves:
    return dict(_walk(answer, "", "", topic_ids))


def _walk(value: Any, path: str, name: str, topic_ids: Mapping[UUID, str]) -> Iterator[tuple[str, Any]]:
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            if field.name not in IGNORED:
                inner = f"{path}.{field.name}" if path else field.name
                yield from _walk(getattr(value, field.name), inner, field.name, topic_ids)
    elif value is None and name in NULLABLE_ARRAYS:
        yield f"{path}.count", None
    elif isinstance(value, tuple) and (not value or dataclasses.is_dataclass(value[0])):
        yield f"{path}.count", len(value)
        seen: dict[str, int] = {}
        for item in value:
            key = _key(item, topic_ids)
            seen[key] = seen.get(key, 0) + 1
            label = key if seen[key] == 1 else f"{key}#{seen[key]}"
            yield f"{path}[{label}]", "<present>"
            yield from _walk(item, f"{path}[{label}]", "", topic_ids)
    elif isinstance(value, tuple):
        yield path, sorted((_plain(one, name, topic_ids) for one in value), key=repr)
    else:
        yield path, _plain(value, name, topic_ids)


def _inside(path: str, parents: set[str]) -> bool:
    return any(
        path.startswith(parent) and path[len(parent) : len(parent) + 1] in (".", "[") for parent in parents
    )


def _key(item: Any, topic_ids: Mapping[UUID, str]) -> str:
    if hasattr(item, "permission_type"):
        # An ACL is its whole content, and they come in no order.
        return "/".join(
            str(int(value) if isinstance(value, IntEnum) else value)
            for field in dataclasses.fields(item)
            if not field.name.startswith("error_")
            for value in (getattr(item, field.name),)
        )
    for name in KEYS:
        if hasattr(item, name):
            return str(_plain(getattr(item, name), name, topic_ids))
    return ""


def _plain(value: Any, name: str, topic_ids: Mapping[UUID, str]) -> Any:
    if isinstance(value, UUID):
        return topic_ids.get(value, "<new id>" if value.int > 0xFFFF else str(value.int))
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, datetime.datetime):
        return "<time>"
    if name == "timestamp" and isinstance(value, int) and abs(value - time.time() * 1000) < CLOCK_MS:
        return "<now>"
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if name in MESSAGES:
        return "<text>" if value else value
    if name in PRESENT:
        return value if value in ("", -1) or (name, value) == ("session_id", 0) else f"<{name}>"
    if isinstance(value, str):
        return UUID_TEXT.sub("<uuid>", value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return (_without_chance(value) if name == "records" else bytes(value)).hex()
    return int(value) if isinstance(value, IntEnum) else value


def _without_chance(data: bytes | bytearray | memoryview) -> bytes:
    """Batches without what a broker's clock and counter of producers gave them, and then without the CRC."""
    batches = bytearray(data)
    for position, header in headers(batches):
        spans = []
        if header.attributes & CONTROL_MASK:
            spans += [(BASE_TIMESTAMP_OFFSET, 8), (MAX_TIMESTAMP_OFFSET, 8)]
        if header.attributes & TIMESTAMP_TYPE_MASK:
            spans.append((MAX_TIMESTAMP_OFFSET, 8))
        if header.producer_id != NO_PRODUCER_ID:
            spans.append((PRODUCER_ID_OFFSET, 8))
        for offset, size in (*spans, (CRC_OFFSET, 4)) if spans else ():
            batches[position + offset : position + offset + size] = bytes(size)
    return bytes(batches)


def compare(kafka: Leaves, chronik: Leaves) -> Iterator[tuple[str, Any, Any]]:
    """Paths whose values are not the same; "<absent>" stands for a path that one side lacks.

    An element, a struct or an array that one side lacks is one difference, whatever it holds.
    """
    lacking: set[str] = set()
    for path in sorted(
        kafka.keys() | chronik.keys(), key=lambda path: (path.count("[") + path.count("."), path)
    ):
        theirs, ours = kafka.get(path, "<absent>"), chronik.get(path, "<absent>")
        if theirs != ours and not _inside(path, lacking):
            yield path, theirs, ours
            if "<absent>" in (theirs, ours):
                lacking.add(path.removesuffix(".count"))
