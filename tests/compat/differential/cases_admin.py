"""Requests about topics, configs and the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chronik.wire.api import ApiKey
from tests.compat.differential.makers import (
    Make,
    configs,
    create,
    of_topics,
    one_config,
    partitions_of,
    topic,
)
from tests.compat.differential.world import (
    COMPACTED,
    GROUP,
    MISSING,
    NO_TOPIC_ID,
    TOPIC,
)

K = ApiKey


CONFIG_CHANGES: Final[Mapping[str, Make]] = {
    "a topic's config": configs(2, TOPIC, **one_config("retention.ms", "-1")),
    "a value that is no number": configs(2, TOPIC, **one_config("retention.ms", "soon")),
    "a value out of range": configs(2, TOPIC, **one_config("min.insync.replicas", "0")),
    "an unknown config": configs(2, TOPIC, **one_config("no.such.config", "1")),
    "an unknown topic": configs(2, MISSING, **one_config("retention.ms", "-1")),
    "a null value": configs(2, TOPIC, **one_config("retention.ms", None)),
    "an unknown broker": configs(4, "77", **one_config("log.cleaner.threads", "1")),
    "a broker that is no number": configs(4, "x", **one_config("log.cleaner.threads", "1")),
    "a broker's read-only config": configs(4, "1", **one_config("broker.id", "2")),
    "an unknown resource": configs(3, "x", **one_config("a", "1")),
    "only checked": lambda world: {
        **configs(2, TOPIC, **one_config("retention.ms", "7"))(world),
        "validate_only": True,
    },
    "a group": configs(32, GROUP, **one_config("consumer.session.timeout.ms", "45000")),
    "a group's time too short": configs(32, GROUP, **one_config("consumer.session.timeout.ms", "1")),
}

MADE: Final[Mapping[ApiKey, Mapping[str, Make]]] = {
    K.API_VERSIONS: {
        "a client without a name": lambda w: {"client_software_name": "", "client_software_version": ""},
        "a strange name": lambda w: {"client_software_name": "a b!", "client_software_version": "1"},
    },
    K.CREATE_TOPICS: {
        "a topic": create(),
        "the same again": create(),
        "by the defaults": lambda w: {
            "topics": [{"name": w.fresh + "-d", "num_partitions": -1, "replication_factor": -1}],
            "timeout": 10_000,
        },
        "only checked": lambda w: {
            "topics": [topic(w, name=w.fresh + "-v")],
            "timeout": 10_000,
            "validate_only": True,
        },
        "twice in one request": lambda w: {
            "topics": [topic(w, name=w.fresh + "-2"), topic(w, name=w.fresh + "-2")],
            "timeout": 10_000,
        },
        "an invalid name": create(name="a/b"),
        "a dot": create(name="."),
        "an empty name": create(name=""),
        "a name too long": create(name="x" * 250),
        "no partitions": create(num_partitions=0),
        "fewer than no partitions": create(num_partitions=-2),
        "no replicas": create(replication_factor=0),
        "too many replicas": create(replication_factor=3),
        "an unknown config": create(configs=[{"name": "no.such.config", "value": "1"}]),
        "a bad value": create(configs=[{"name": "retention.ms", "value": "soon"}]),
        "a null value": create(configs=[{"name": "retention.ms", "value": None}]),
        "assignments": create(
            name="diff-assigned-unknown",
            num_partitions=-1,
            replication_factor=-1,
            assignments=[{"partition_index": 0, "broker_ids": [7]}],
        ),
        "assignments and a number": create(assignments=[{"partition_index": 0, "broker_ids": [1]}]),
        "assignments with a gap": create(
            num_partitions=-1, replication_factor=-1, assignments=[{"partition_index": 1, "broker_ids": [1]}]
        ),
        "an internal name": create(name="__consumer_offsets"),
        "a name that collides": lambda w: {
            "topics": [topic(w, name=w.fresh + ".a"), topic(w, name=w.fresh + "_a")],
            "timeout": 10_000,
        },
    },
    K.DELETE_TOPICS: {
        "an unknown topic": lambda w: {
            "topics": [{"name": w.fresh}],
            "topic_names": [w.fresh],
            "timeout": 10_000,
        },
        "an unknown id": lambda w: {
            "topics": [{"name": None, "topic_id": NO_TOPIC_ID}],
            "topic_names": [w.fresh],
            "timeout": 10_000,
        },
        "name and id": lambda w: {
            "topics": [{"name": MISSING, "topic_id": NO_TOPIC_ID}],
            "topic_names": [MISSING],
            "timeout": 10_000,
        },
        "a time-out of 0": lambda w: {"topics": [{"name": w.fresh}], "topic_names": [w.fresh], "timeout": 0},
        "the same twice": lambda w: {
            "topics": [{"name": MISSING}] * 2,
            "topic_names": [MISSING] * 2,
            "timeout": 10_000,
        },
    },
    K.DESCRIBE_CONFIGS: {
        "a topic": configs(2, TOPIC, configuration_keys=None),
        "a topic with synonyms": lambda w: {
            **configs(2, TOPIC)(w),
            "include_synonyms": True,
            "include_documentation": True,
        },
        "one config": configs(2, TOPIC, configuration_keys=["retention.ms", "no.such.config"]),
        "no config": configs(2, TOPIC, configuration_keys=[]),
        "an unknown topic": configs(2, MISSING),
        "an invalid topic": configs(2, "a/b"),
        "an unknown broker": configs(4, "77"),
        "a broker that is no number": configs(4, "x"),
        "a config of a broker": configs(4, "1", configuration_keys=["log.retention.ms", "num.partitions"]),
        "all of a broker": configs(4, "1", configuration_keys=None),
        "all of a broker with synonyms": lambda w: {
            **configs(4, "1", configuration_keys=None)(w),
            "include_synonyms": True,
        },
        "all brokers' defaults": configs(4, "", configuration_keys=["log.cleaner.threads"]),
        "an unknown resource": configs(3, "x"),
        "a group": configs(32, GROUP),
        "a client metrics subscription": configs(16, "diff-metrics"),
        "loggers of an unknown broker": configs(8, "77"),
    },
    K.ALTER_CONFIGS: CONFIG_CHANGES,
    K.INCREMENTAL_ALTER_CONFIGS: {
        **CONFIG_CHANGES,
        "the same resource twice": lambda _world: {
            "resources": [{"resource_type": 2, "resource_name": TOPIC, **one_config("retention.ms", "-1")}]
            * 2
        },
        "removed": configs(2, TOPIC, **one_config("segment.ms", None, 1)),
        "appended": configs(2, COMPACTED, **one_config("cleanup.policy", "compact", 2)),
        "appended to what is no list": configs(2, TOPIC, **one_config("segment.ms", "5", 2)),
        "an unknown operation": configs(2, TOPIC, **one_config("segment.ms", "5", 9)),
        "the same config twice": configs(
            2,
            TOPIC,
            configs=[
                {"name": "segment.ms", "value": "7", "config_operation": 0},
                {"name": "segment.ms", "value": "8", "config_operation": 0},
            ],
        ),
        "nothing": configs(2, TOPIC, configs=[]),
    },
    K.DESCRIBE_LOG_DIRS: {
        "a topic": of_topics(partitions_of(TOPIC, 0, 1)),
        "an unknown partition": of_topics(partitions_of(TOPIC, 9)),
    },
    K.CREATE_PARTITIONS: {
        "fewer": lambda w: {"topics": [{"name": TOPIC, "count": 1, "assignments": None}], "timeout": 10_000},
        "as many": lambda w: {
            "topics": [{"name": TOPIC, "count": 2, "assignments": None}],
            "timeout": 10_000,
        },
        "only checked": lambda w: {
            "topics": [{"name": TOPIC, "count": 3, "assignments": None}],
            "timeout": 10_000,
            "validate_only": True,
        },
        "an unknown topic": lambda w: {
            "topics": [{"name": MISSING, "count": 3, "assignments": None}],
            "timeout": 10_000,
        },
        "an unknown broker": lambda w: {
            "topics": [{"name": TOPIC, "count": 3, "assignments": [{"broker_ids": [7]}]}],
            "timeout": 10_000,
        },
        "too many assignments": lambda w: {
            "topics": [
                {"name": TOPIC, "count": 3, "assignments": [{"broker_ids": [1]}, {"broker_ids": [1]}]}
            ],
            "timeout": 10_000,
        },
        "the same twice": lambda w: {
            "topics": [{"name": TOPIC, "count": 3, "assignments": None}] * 2,
            "timeout": 10_000,
        },
        "a time-out of 0": lambda w: {
            "topics": [{"name": MISSING, "count": 3, "assignments": None}],
            "timeout": 0,
        },
    },
    K.ELECT_LEADERS: {
        "preferred": of_topics(partitions_of(TOPIC, 0), election_type=0),
        "unclean": of_topics(partitions_of(TOPIC, 0), election_type=1),
        "an unknown partition": of_topics(partitions_of(TOPIC, 9), election_type=0),
        "an unknown election": of_topics(partitions_of(TOPIC, 0), election_type=7),
    },
    K.ALTER_PARTITION_REASSIGNMENTS: {
        "nothing to cancel": of_topics(
            {"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": None}]}
        ),
        "where it is": of_topics({"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": [1]}]}),
        "an unknown broker": of_topics(
            {"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": [7]}]}
        ),
        "no replicas": of_topics({"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": []}]}),
        "a replica twice": of_topics(
            {"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": [1, 1]}]}
        ),
        "an unknown topic": of_topics(
            {"name": MISSING, "partitions": [{"partition_index": 0, "replicas": [1]}]}
        ),
        "a negative broker": of_topics(
            {"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": [-1]}]}
        ),
    },
    K.LIST_PARTITION_REASSIGNMENTS: {
        "all": lambda w: {"topics": None, "timeout": 10_000},
        "a topic": of_topics(partitions_of(TOPIC, 0, 9)),
    },
    K.DESCRIBE_QUORUM: {
        "the metadata log": of_topics(
            {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
        ),
        "another topic": of_topics({"topic_name": TOPIC, "partitions": [{"partition_index": 0}]}),
    },
    K.DESCRIBE_CLUSTER: {
        "brokers": lambda w: {"endpoint_type": 1, "include_cluster_authorized_operations": True},
        "controllers": lambda w: {"endpoint_type": 2},
        "an unknown endpoint": lambda w: {"endpoint_type": 9},
    },
    K.DESCRIBE_TOPIC_PARTITIONS: {
        "a topic": lambda w: {"topics": [{"name": TOPIC}], "response_partition_limit": 2000},
        "one partition at a time": lambda w: {"topics": [{"name": TOPIC}], "response_partition_limit": 1},
        "from a cursor": lambda w: {
            "topics": [{"name": TOPIC}],
            "response_partition_limit": 10,
            "cursor": {"topic_name": TOPIC, "partition_index": 1},
        },
        "a cursor of nothing": lambda w: {
            "topics": [{"name": TOPIC}],
            "response_partition_limit": 10,
            "cursor": {"topic_name": MISSING, "partition_index": -1},
        },
        "an unknown topic": lambda w: {"topics": [{"name": MISSING}], "response_partition_limit": 10},
    },
}
