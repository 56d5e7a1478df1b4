"""Requests about records and transactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chronik.wire.api import ApiKey
from tests.compat.differential.makers import (
    LONG_MS,
    Make,
    damaged,
    fetch,
    list_offsets,
    of_topics,
    partitions_of,
    produced,
    transaction,
)
from tests.compat.differential.world import (
    COMPACTED,
    GROUP,
    MISSING,
    NO_TOPIC_ID,
    RECORDS,
    TOPIC,
    commit,
    records,
)

K = ApiKey


MADE: Final[Mapping[ApiKey, Mapping[str, Make]]] = {
    K.PRODUCE: {
        "five records": produced(TOPIC, lambda: records(RECORDS), partition=1),
        "an unknown topic": produced(MISSING, lambda: records(1)),
        "an unknown partition": produced(TOPIC, lambda: records(1), partition=9),
        "a negative partition": produced(TOPIC, lambda: records(1), partition=-1),
        "a damaged batch": produced(TOPIC, damaged),
        "no records": produced(TOPIC, lambda: b""),
        "acks of 2": produced(TOPIC, lambda: records(1), acks=2),
        "a time-out of 0": produced(TOPIC, lambda: records(1), partition=1, timeout=0),
        "no key in a compacted topic": produced(COMPACTED, lambda: records(3, keys=False)),
        "an idempotent producer that nobody knows": produced(
            TOPIC, lambda: records(1, producer_id=99_999, producer_epoch=0, base_sequence=7), partition=1
        ),
        "transactional without a transaction": produced(
            TOPIC,
            lambda: records(1, producer_id=99_999, producer_epoch=0, base_sequence=0, is_transactional=True),
        ),
        "two batches in one": produced(TOPIC, lambda: records(1) + records(1), partition=1),
    },
    K.FETCH: {
        "from the start": lambda w: fetch(w, TOPIC, 0),
        "from the middle": lambda w: fetch(w, TOPIC, 2),
        "beyond the end": lambda w: fetch(w, TOPIC, 1_000_000),
        "a negative offset": lambda w: fetch(w, TOPIC, -1),
        "an unknown topic": lambda w: fetch(w, MISSING, 0),
        "an unknown partition": lambda w: fetch(w, TOPIC, 0, partition=9),
        "one byte": lambda w: fetch(w, TOPIC, 0, max_bytes=1),
        "no bytes": lambda w: fetch(w, TOPIC, 0, wanted={"partition_max_bytes": 0}),
        "negative bytes": lambda w: fetch(w, TOPIC, 0, max_bytes=-1),
        "an epoch of the future": lambda w: fetch(w, TOPIC, 0, wanted={"current_leader_epoch": 1_000}),
        "an unknown session": lambda w: fetch(w, TOPIC, 0, session_id=12_345, session_epoch=3),
        "committed only": lambda w: fetch(w, TOPIC, 0, isolation_level=1),
        "an unknown isolation": lambda w: fetch(w, TOPIC, 0, isolation_level=9),
        "diverged in an old epoch": lambda w: fetch(w, TOPIC, 2, wanted={"last_fetched_epoch": 1_000}),
    },
    K.LIST_OFFSETS: {
        "the end": list_offsets(TOPIC, -1),
        "the start": list_offsets(TOPIC, -2),
        "the largest time": list_offsets(TOPIC, -3),
        "the local start": list_offsets(TOPIC, -4),
        "the tiered end": list_offsets(TOPIC, -5),
        "the pending upload": list_offsets(TOPIC, -6),
        "a time that means nothing": list_offsets(TOPIC, -99),
        "a time": list_offsets(TOPIC, 1_700_000_000_002),
        "a time in the future": list_offsets(TOPIC, 2**62),
        "an unknown topic": list_offsets(MISSING, -1),
        "an unknown partition": list_offsets(TOPIC, -1, 9),
        "committed only": list_offsets(TOPIC, -1, isolation_level=1),
        "as a replica": list_offsets(TOPIC, -1, replica_id=1),
    },
    K.METADATA: {
        "a topic": lambda w: {"topics": [{"name": TOPIC}]},
        "an unknown topic": lambda w: {"topics": [{"name": MISSING}], "allow_auto_topic_creation": False},
        "an invalid name": lambda w: {"topics": [{"name": "a/b"}], "allow_auto_topic_creation": True},
        "an empty name": lambda w: {"topics": [{"name": ""}], "allow_auto_topic_creation": False},
        "rights": lambda w: {
            "topics": [{"name": TOPIC}],
            "include_topic_authorized_operations": True,
            "include_cluster_authorized_operations": True,
        },
        "by an unknown id": lambda w: {"topics": [{"topic_id": NO_TOPIC_ID, "name": None}]},
        "by id": lambda w: {"topics": [{"topic_id": w.id_of(TOPIC), "name": None}]},
        "the same twice": lambda w: {"topics": [{"name": TOPIC}, {"name": TOPIC}]},
    },
    K.DELETE_RECORDS: {
        "up to 1": of_topics({"name": TOPIC, "partitions": [{"partition_index": 0, "offset": 1}]}),
        "a time-out of 0": of_topics(
            {"name": TOPIC, "partitions": [{"partition_index": 0, "offset": 1}]}, timeout=0
        ),
        "beyond the end": of_topics(
            {"name": TOPIC, "partitions": [{"partition_index": 0, "offset": 1_000_000}]}
        ),
        "a negative offset": of_topics({"name": TOPIC, "partitions": [{"partition_index": 0, "offset": -5}]}),
        "an unknown topic": of_topics({"name": MISSING, "partitions": [{"partition_index": 0, "offset": 1}]}),
        "an unknown partition": of_topics(
            {"name": TOPIC, "partitions": [{"partition_index": 9, "offset": 1}]}
        ),
        "a compacted topic": of_topics(
            {"name": COMPACTED, "partitions": [{"partition_index": 0, "offset": 0}]}
        ),
    },
    K.OFFSET_FOR_LEADER_EPOCH: {
        "the current epoch": of_topics(
            {"topic": TOPIC, "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]}
        ),
        "an epoch of the future": of_topics(
            {"topic": TOPIC, "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 99}]}
        ),
        "a leader of the future": of_topics(
            {"topic": TOPIC, "partitions": [{"partition": 0, "current_leader_epoch": 99, "leader_epoch": 0}]}
        ),
        "an unknown topic": of_topics(
            {
                "topic": MISSING,
                "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}],
            }
        ),
        "an unknown partition": of_topics(
            {"topic": TOPIC, "partitions": [{"partition": 9, "current_leader_epoch": -1, "leader_epoch": 0}]}
        ),
    },
    K.INIT_PRODUCER_ID: {
        "idempotent": lambda w: {
            "transactional_id": None,
            "transaction_timeout": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
        },
        "transactional": lambda w: {
            "transactional_id": w.fresh,
            "transaction_timeout": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
        },
        "again": lambda w: {
            "transactional_id": w.fresh,
            "transaction_timeout": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
        },
        "an empty transaction": lambda w: {
            "transactional_id": "",
            "transaction_timeout": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
        },
        "a time-out of 0": lambda w: {
            "transactional_id": w.fresh,
            "transaction_timeout": 0,
            "producer_id": -1,
            "producer_epoch": -1,
        },
        "a time-out too long": lambda w: {
            "transactional_id": w.fresh,
            "transaction_timeout": LONG_MS,
            "producer_id": -1,
            "producer_epoch": -1,
        },
        "an id without an epoch": lambda w: {
            "transactional_id": w.fresh,
            "transaction_timeout": 60_000,
            "producer_id": 5,
            "producer_epoch": -1,
        },
        "somebody else's id": lambda w: {
            "transactional_id": w.fresh,
            "transaction_timeout": 60_000,
            "producer_id": 987_654,
            "producer_epoch": 4,
        },
        "two-phase commit": lambda w: {
            "transactional_id": w.fresh,
            "transaction_timeout": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
            "enable2_pc": True,
        },
        "kept prepared": lambda w: {
            "transactional_id": w.fresh,
            "transaction_timeout": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
            "keep_prepared_txn": True,
        },
    },
    K.ADD_PARTITIONS_TO_TXN: {
        "an unknown transaction": lambda w: {
            "v3_and_below_transactional_id": MISSING,
            "v3_and_below_producer_id": 4242,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [{"name": TOPIC, "partitions": [0]}],
            "transactions": [transaction(w, topics=[{"name": TOPIC, "partitions": [0]}])],
        },
        "an unknown topic": lambda w: {
            "v3_and_below_transactional_id": MISSING,
            "v3_and_below_producer_id": 4242,
            "v3_and_below_topics": [{"name": MISSING, "partitions": [0]}],
            "transactions": [transaction(w, topics=[{"name": MISSING, "partitions": [0]}])],
        },
        "only verified": lambda w: {
            "v3_and_below_transactional_id": MISSING,
            "transactions": [transaction(w, verify_only=True, topics=[{"name": TOPIC, "partitions": [0]}])],
        },
    },
    K.ADD_OFFSETS_TO_TXN: {
        "an unknown transaction": lambda w: transaction(w, group_id=GROUP),
        "an empty transaction": lambda w: transaction(w, transactional_id="", group_id=GROUP),
        "an empty group": lambda w: transaction(w, group_id=""),
    },
    K.END_TXN: {
        "an unknown transaction": lambda w: transaction(w, committed=True),
        "an empty transaction": lambda w: transaction(w, transactional_id="", committed=False),
    },
    K.TXN_OFFSET_COMMIT: {
        "an unknown producer": lambda w: transaction(
            w, group_id=GROUP, generation_id=-1, topics=commit(GROUP, TOPIC, 3)["topics"]
        ),
        "an unknown topic": lambda w: transaction(
            w, group_id=GROUP, generation_id=-1, topics=commit(GROUP, MISSING, 3)["topics"]
        ),
        "an unknown member": lambda w: transaction(
            w, group_id=GROUP, generation_id=4, member_id="m", topics=commit(GROUP, TOPIC, 3)["topics"]
        ),
    },
    K.DESCRIBE_PRODUCERS: {
        "none": of_topics(partitions_of(COMPACTED, 0)),
        "an unknown partition": of_topics(partitions_of(TOPIC, 9)),
        "an unknown topic": of_topics(partitions_of(MISSING, 0)),
    },
    K.DESCRIBE_TRANSACTIONS: {
        "an unknown one": lambda w: {"transactional_ids": [w.fresh]},
        "an empty id": lambda w: {"transactional_ids": [""]},
    },
    K.LIST_TRANSACTIONS: {
        "an unknown state": lambda w: {"state_filters": ["Sleepy"], "duration_filter": -1},
        "ongoing ones": lambda w: {"state_filters": ["Ongoing"], "duration_filter": -1},
        "an unknown producer": lambda w: {"producer_id_filters": [987_654], "duration_filter": -1},
        "a bad pattern": lambda w: {"transactional_id_pattern": "(", "duration_filter": -1},
    },
}
