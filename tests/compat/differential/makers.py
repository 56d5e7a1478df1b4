"""Short ways to write the requests down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from tests.compat.differential.world import (
    MISSING,
    NO_TOPIC_ID,
    World,
    commit,
    produce,
    records,
)
from tests.wire import Fields

Make: TypeAlias = Callable[[World], Fields]
"""Makes the fields of a request, for the side that it goes to."""
LONG_MS: Final = 2**31 - 1


def fetch(world: World, name: str, offset: int, *, partition: int = 0, **more: Any) -> Fields:
    topic_id = next((known for known, one in world.topic_ids.items() if one == name), NO_TOPIC_ID)
    wanted = {
        "partition": partition,
        "fetch_offset": offset,
        "partition_max_bytes": 1 << 20,
        "current_leader_epoch": -1,
    }
    return {
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
        "topics": [
            {"topic": name, "topic_id": topic_id, "partitions": [{**wanted, **more.pop("wanted", {})}]}
        ],
        **more,
    }


def list_offsets(name: str, timestamp: int, partition: int = 0, **more: Any) -> Make:
    wanted = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": -1}
    return lambda _world: {"replica_id": -1, "topics": [{"name": name, "partitions": [wanted]}], **more}


def join(world: World, **more: Any) -> Fields:
    return {
        "group_id": world.fresh,
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
        **more,
    }


def topic(world: World, **more: Any) -> Fields:
    return {"name": world.fresh, "num_partitions": 1, "replication_factor": 1, **more}


def create(**more: Any) -> Make:
    return lambda world: {"topics": [topic(world, **more)], "timeout": 10_000}


def configs(kind: int, name: str | None, **more: Any) -> Make:
    return lambda world: {
        "resources": [{"resource_type": kind, "resource_name": world.fresh if name is None else name, **more}]
    }


def one_config(name: str, value: str | None, operation: int = 0) -> Fields:
    return {"configs": [{"name": name, "value": value, "config_operation": operation}]}


def transaction(world: World, **more: Any) -> Fields:
    return {"transactional_id": MISSING, "producer_id": 4242, "producer_epoch": 0, **more}


def offsets_of(name: str | None, topics: Any, **more: Any) -> Make:
    def make(world: World) -> Fields:
        group = world.fresh if name is None else name
        with_ids = topics and [
            {
                **one,
                "topic_id": next((i for i, n in world.topic_ids.items() if n == one["name"]), NO_TOPIC_ID),
            }
            for one in topics
        ]
        return {
            "group_id": group,
            "topics": topics,
            "groups": [{"group_id": group, "topics": with_ids, "member_epoch": -1, **more}],
        }

    return make


def committed(name: str | None, topic_name: str, offset: int, **more: Any) -> Make:
    def make(world: World) -> Fields:
        fields = commit(world.fresh if name is None else name, topic_name, offset, **more)
        topic_id = next((i for i, n in world.topic_ids.items() if n == topic_name), NO_TOPIC_ID)
        return {**fields, "topics": [{**one, "topic_id": topic_id} for one in fields["topics"]]}

    return make


def produced(name: str, make_data: Callable[[], bytes | None], **more: Any) -> Make:
    def make(world: World) -> Fields:
        fields = produce(name, make_data(), **more)
        topic_id = next((i for i, n in world.topic_ids.items() if n == name), NO_TOPIC_ID)
        return {**fields, "topic_data": [{**one, "topic_id": topic_id} for one in fields["topic_data"]]}

    return make


def produced_by(world: World, name: str, data: bytes, **more: Any) -> Fields:
    return produced(name, lambda: data, **more)(world)


def damaged() -> bytes:
    data = bytearray(records(2))
    data[-1] ^= 0xFF
    return bytes(data)


def partitions_of(name: str, *numbers: int) -> Fields:
    return {
        "name": name,
        "topic": name,
        "topic_name": name,
        "partitions": list(numbers),
        "partition_indexes": list(numbers),
    }


def of_topics(*wanted: Fields, **more: Any) -> Make:
    return lambda _world: {
        "topics": list(wanted),
        "topic_partitions": list(wanted),
        "timeout": 10_000,
        **more,
    }
