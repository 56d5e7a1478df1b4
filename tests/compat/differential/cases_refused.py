"""Requests that a single broker mostly refuses: log directories, features, members, share groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from chronik.wire.api import ApiKey
from tests.compat.differential.makers import Make
from tests.compat.differential.world import MISSING, NO_TOPIC_ID, TOPIC, World
from tests.wire import Fields

K = ApiKey
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
RESOURCE_TYPES: Final = {"topics": 2, "brokers": 4, "loggers": 8, "client metrics": 16, "groups": 32}
MEMBER: Final = str(UUID(int=7))


def moved(path: str, *topics: tuple[str, int]) -> Make:
    wanted = [{"name": name, "partitions": [partition]} for name, partition in topics]
    return lambda _world: {"dirs": [{"path": path, "topics": wanted}]}


def feature(name: str, level: int, kind: int = UPGRADE, **more: object) -> Make:
    """Only checked where the version can say so; what could change anything is never sent without."""
    update = {
        "feature": name,
        "max_version_level": level,
        "upgrade_type": kind,
        "allow_downgrade": kind != UPGRADE,
    }
    return lambda _world: {
        "timeout": 10_000,
        "feature_updates": [update],
        "validate_only": True,
        **more,
    }


def share_fetch(world: World, **more: object) -> Fields:
    partitions = [{"partition_index": 0, "partition_max_bytes": 1000, "acknowledgement_batches": []}]
    return {
        "group_id": world.fresh,
        "member_id": MEMBER,
        "share_session_epoch": 0,
        "max_wait": 0,
        "max_bytes": 1000,
        "max_records": 10,
        "batch_size": 10,
        "topics": [{"topic_id": world.id_of(TOPIC), "partitions": partitions}],
        **more,
    }


def acknowledged(world: World, first: int, last: int, *kinds: int, **more: object) -> Fields:
    batch = {"first_offset": first, "last_offset": last, "acknowledge_types": list(kinds)}
    partitions = [{"partition_index": 0, "acknowledgement_batches": [batch]}]
    topics = [{"topic_id": world.id_of(TOPIC), "partitions": partitions}]
    return share_fetch(world, **{"topics": topics, "share_session_epoch": 1, **more})


MADE: Final[Mapping[ApiKey, Mapping[str, Make]]] = {
    K.ALTER_REPLICA_LOG_DIRS: {
        "a directory that is not there": moved("/no/such/directory", (TOPIC, 0)),
        "no path": moved("", (TOPIC, 0)),
        "a path that is not absolute": moved("data", (TOPIC, 0)),
        "an unknown topic": moved("/no/such/directory", (MISSING, 0)),
        "an unknown partition": moved("/no/such/directory", (TOPIC, 9)),
        "a negative partition": moved("/no/such/directory", (TOPIC, -1)),
        "two topics": moved("/no/such/directory", (TOPIC, 0), (MISSING, 0)),
        "no directory": lambda w: {"dirs": []},
        "no topic": moved("/no/such/directory"),
    },
    K.LIST_CONFIG_RESOURCES: {
        **{
            f"all {name}": lambda _world, kind=kind: {"resource_types": [kind]}
            for name, kind in RESOURCE_TYPES.items()
        },
        "an unknown type": lambda w: {"resource_types": [99]},
        "a known and an unknown type": lambda w: {"resource_types": [16, 99]},
        "a type twice": lambda w: {"resource_types": [16, 16]},
        "a negative type": lambda w: {"resource_types": [-1]},
    },
    K.UPDATE_FEATURES: {
        "an unknown feature": feature("no.such.feature", 1),
        "no feature": lambda w: {"timeout": 10_000, "feature_updates": []},
        "no name": feature("", 1),
        "the same level": feature("group.version", 1),
        "a level too high": feature("group.version", 99),
        "a metadata version too high": feature("metadata.version", 999),
        "a metadata version of 0": feature("metadata.version", 0, SAFE_DOWNGRADE),
        "a negative level": feature("group.version", -1),
        "lower, but no downgrade": feature("transaction.version", 0),
        "an unknown way": feature("group.version", 1, 9),
        "the same feature twice": lambda w: {
            "timeout": 10_000,
            "feature_updates": [
                {"feature": "no.such.feature", "max_version_level": 1, "upgrade_type": UPGRADE},
            ]
            * 2,
        },
    },
    # Never 1: that is the broker.
    K.UNREGISTER_BROKER: {
        "an unknown broker": lambda w: {"broker_id": 77},
        "a negative broker": lambda w: {"broker_id": -1},
        "the largest broker": lambda w: {"broker_id": 2**31 - 1},
    },
    K.SHARE_GROUP_HEARTBEAT: {
        "a first member": lambda w: {
            "group_id": w.fresh,
            "member_id": MEMBER,
            "member_epoch": 0,
            "subscribed_topic_names": [TOPIC],
        },
        "it leaves": lambda w: {"group_id": w.fresh, "member_id": MEMBER, "member_epoch": -1},
        "an unknown member": lambda w: {"group_id": w.fresh, "member_id": "m", "member_epoch": 3},
        "an empty group id": lambda w: {"group_id": "", "member_id": MEMBER, "member_epoch": 0},
        "an empty member id": lambda w: {"group_id": w.fresh, "member_id": "", "member_epoch": 0},
    },
    K.SHARE_FETCH: {
        "a new session": lambda w: share_fetch(w),
        "an unknown session": lambda w: share_fetch(w, share_session_epoch=5),
        "a session closed": lambda w: share_fetch(w, share_session_epoch=-1),
        "no group": lambda w: share_fetch(w, group_id=None),
        "no member": lambda w: share_fetch(w, member_id=None),
        "an unknown topic": lambda w: share_fetch(
            w, topics=[{"topic_id": NO_TOPIC_ID, "partitions": [{"partition_index": 0}]}]
        ),
    },
    K.SHARE_ACKNOWLEDGE: {
        "a record": lambda w: acknowledged(w, 0, 0, 1),
        "an unknown kind": lambda w: acknowledged(w, 0, 0, 9),
        "backwards": lambda w: acknowledged(w, 5, 1, 1),
        "the first of a session": lambda w: acknowledged(w, 0, 0, 1, share_session_epoch=0),
        "no member": lambda w: acknowledged(w, 0, 0, 1, member_id=None),
    },
}
