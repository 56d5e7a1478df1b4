"""Requests about groups and their offsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from chronik.wire.api import ApiKey
from tests.compat.differential.makers import (
    LONG_MS,
    Make,
    committed,
    join,
    offsets_of,
)
from tests.compat.differential.world import (
    GROUP,
    MISSING,
    TOPIC,
)

K = ApiKey


MADE: Final[Mapping[ApiKey, Mapping[str, Make]]] = {
    K.OFFSET_COMMIT: {
        "without members": committed(None, TOPIC, 3),
        "an unknown topic": committed(GROUP, MISSING, 3),
        "an unknown partition": committed(GROUP, TOPIC, 3, partition=9),
        "a negative offset": committed(GROUP, TOPIC, -5),
        "an unknown member": committed(GROUP, TOPIC, 3, member_id="nobody", generation_id_or_member_epoch=1),
        "an empty group id": committed("", TOPIC, 3),
        "long metadata": lambda w: {
            "group_id": GROUP,
            "generation_id_or_member_epoch": -1,
            "topics": [
                {
                    "name": TOPIC,
                    "topic_id": w.id_of(TOPIC),
                    "partitions": [
                        {"partition_index": 1, "committed_offset": 1, "committed_metadata": "x" * 5_000}
                    ],
                }
            ],
        },
    },
    K.OFFSET_FETCH: {
        "a committed offset": offsets_of(GROUP, [{"name": TOPIC, "partition_indexes": [0, 1, 9]}]),
        "all topics": offsets_of(GROUP, None),
        "no topics": offsets_of(GROUP, []),
        "an unknown group": offsets_of(None, [{"name": TOPIC, "partition_indexes": [0]}]),
        "an unknown topic": offsets_of(GROUP, [{"name": MISSING, "partition_indexes": [0]}]),
        "an unknown member": offsets_of(
            GROUP, [{"name": TOPIC, "partition_indexes": [0]}], member_id="nobody", member_epoch=3
        ),
        "a member of an unknown group": offsets_of(
            None, [{"name": TOPIC, "partition_indexes": [0]}], member_id="nobody", member_epoch=3
        ),
        "an empty group id": offsets_of("", [{"name": TOPIC, "partition_indexes": [0]}]),
        "stable": lambda w: {**offsets_of(GROUP, None)(w), "require_stable": True},
    },
    K.FIND_COORDINATOR: {
        "a group": lambda w: {"key": GROUP, "coordinator_keys": [GROUP, w.fresh]},
        "a transaction": lambda w: {"key": w.fresh, "key_type": 1, "coordinator_keys": [w.fresh]},
        "an unknown kind": lambda w: {"key": GROUP, "key_type": 9, "coordinator_keys": [GROUP]},
        "an empty key": lambda w: {"key": "", "coordinator_keys": [""]},
        "an empty transaction": lambda w: {"key": "", "key_type": 1, "coordinator_keys": [""]},
        "a share group": lambda w: {
            "key": "g:AAAAAAAAAAAAAAAAAAAAAQ:0",
            "key_type": 2,
            "coordinator_keys": ["g"],
        },
    },
    K.JOIN_GROUP: {
        "the first member": lambda w: join(w),
        "no group": lambda w: join(w, group_id=""),
        "an unknown member": lambda w: join(w, member_id="nobody"),
        "no protocols": lambda w: join(w, protocols=[]),
        "an empty protocol type": lambda w: join(w, protocol_type=""),
        "a session too short": lambda w: join(w, session_timeout=1),
        "a session too long": lambda w: join(w, session_timeout=LONG_MS),
        "a static member": lambda w: join(w, group_id=w.fresh + "-static", group_instance_id="one"),
    },
    K.SYNC_GROUP: {
        "an unknown group": lambda w: {"group_id": w.fresh, "generation_id": 1, "member_id": "m"},
        "an unknown member": lambda w: {"group_id": GROUP, "generation_id": 1, "member_id": "m"},
        "an empty group id": lambda w: {"group_id": "", "generation_id": 1, "member_id": "m"},
        "another protocol": lambda w: {
            "group_id": GROUP,
            "generation_id": 1,
            "member_id": "m",
            "protocol_type": "connect",
            "protocol_name": "x",
        },
    },
    K.HEARTBEAT: {
        "an unknown group": lambda w: {"group_id": w.fresh, "generation_id": 1, "member_id": "m"},
        "an unknown member": lambda w: {"group_id": GROUP, "generation_id": 1, "member_id": "m"},
        "an unknown static member": lambda w: {
            "group_id": GROUP,
            "generation_id": 1,
            "member_id": "m",
            "group_instance_id": "i",
        },
    },
    K.LEAVE_GROUP: {
        "an unknown group": lambda w: {
            "group_id": w.fresh,
            "member_id": "m",
            "members": [{"member_id": "m"}],
        },
        "an unknown member": lambda w: {"group_id": GROUP, "member_id": "m", "members": [{"member_id": "m"}]},
        "an unknown static member": lambda w: {
            "group_id": GROUP,
            "member_id": "m",
            "members": [{"member_id": "", "group_instance_id": "i"}],
        },
        "nobody": lambda w: {"group_id": GROUP, "member_id": "m", "members": []},
    },
    K.DESCRIBE_GROUPS: {
        "an empty group": lambda w: {"groups": [GROUP], "include_authorized_operations": True},
        "an unknown group": lambda w: {"groups": [w.fresh]},
        "an empty group id": lambda w: {"groups": [""]},
        "the same twice": lambda w: {"groups": [GROUP, GROUP]},
    },
    K.LIST_GROUPS: {
        "stable ones": lambda w: {"states_filter": ["Stable"]},
        "an unknown state": lambda w: {"states_filter": ["Sleepy"]},
        "an unknown type": lambda w: {"types_filter": ["nothing"]},
        "consumer groups": lambda w: {"types_filter": ["consumer"]},
    },
    K.DELETE_GROUPS: {
        "an unknown group": lambda w: {"groups_names": [w.fresh]},
        "an empty id": lambda w: {"groups_names": [""]},
        "the same twice": lambda w: {"groups_names": [MISSING, MISSING]},
    },
    K.OFFSET_DELETE: {
        "a committed offset": lambda w: {
            "group_id": GROUP,
            "topics": [{"name": TOPIC, "partitions": [{"partition_index": 1}]}],
        },
        "an unknown partition": lambda w: {
            "group_id": GROUP,
            "topics": [{"name": TOPIC, "partitions": [{"partition_index": 9}]}],
        },
        "an unknown topic": lambda w: {
            "group_id": GROUP,
            "topics": [{"name": MISSING, "partitions": [{"partition_index": 0}]}],
        },
        "an unknown group": lambda w: {
            "group_id": w.fresh,
            "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0}]}],
        },
    },
    K.CONSUMER_GROUP_HEARTBEAT: {
        "a first member": lambda w: {
            "group_id": w.fresh,
            "member_id": str(UUID(int=7)),
            "member_epoch": 0,
            "rebalance_timeout": 10_000,
            "subscribed_topic_names": [TOPIC],
            "topic_partitions": [],
        },
        "it leaves": lambda w: {"group_id": w.fresh, "member_id": str(UUID(int=7)), "member_epoch": -1},
        "an unknown group": lambda w: {"group_id": w.fresh + "-x", "member_id": "m", "member_epoch": 3},
        "a classic group": lambda w: {
            "group_id": GROUP,
            "member_id": "m",
            "member_epoch": 3,
        },
        "no topics": lambda w: {
            "group_id": w.fresh,
            "member_id": "m",
            "member_epoch": 0,
            "rebalance_timeout": 10_000,
            "topic_partitions": [],
        },
        "an unknown assignor": lambda w: {
            "group_id": w.fresh,
            "member_id": "m",
            "member_epoch": 0,
            "rebalance_timeout": 10_000,
            "subscribed_topic_names": [TOPIC],
            "topic_partitions": [],
            "server_assignor": "nothing",
        },
        "a bad pattern": lambda w: {
            "group_id": w.fresh + "-r",
            "member_id": "m",
            "member_epoch": 0,
            "rebalance_timeout": 10_000,
            "subscribed_topic_regex": "(",
            "subscribed_topic_names": [],
            "topic_partitions": [],
        },
        "an empty group id": lambda w: {
            "group_id": "",
            "member_id": "m",
            "member_epoch": 0,
            "rebalance_timeout": 1,
            "subscribed_topic_names": [TOPIC],
            "topic_partitions": [],
        },
        "an empty member id": lambda w: {"group_id": w.fresh, "member_id": "", "member_epoch": 5},
        "an empty rack": lambda w: {
            "group_id": w.fresh,
            "member_id": "m",
            "member_epoch": 0,
            "rack_id": "",
            "rebalance_timeout": 10_000,
            "subscribed_topic_names": [TOPIC],
            "topic_partitions": [],
        },
    },
    K.CONSUMER_GROUP_DESCRIBE: {
        "a classic group": lambda w: {"group_ids": [GROUP]},
        "an unknown group": lambda w: {"group_ids": [w.fresh]},
        "an empty id": lambda w: {"group_ids": [""]},
    },
}
