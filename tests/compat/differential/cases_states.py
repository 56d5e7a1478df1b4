"""Requests to groups with a member, to open transactions and in fetch sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from chronik.wire.api import ApiKey
from tests.compat.differential.makers import Make, fetch, list_offsets, of_topics, partitions_of, produced_by
from tests.compat.differential.states import (
    Transaction,
    batch_of,
    begun,
    in_session,
    member,
    of_member,
    opened,
    settled,
)
from tests.compat.differential.states import ended as done
from tests.compat.differential.world import MISSING, TOPIC, TRANSACTED, World, commit
from tests.wire import Fields

K = ApiKey


def committed_by(later: int = 0, id_: str | None = None, *, outside: bool = False, **more: object) -> Make:
    def make(world: World) -> Fields:
        one = member(world)
        wanted = commit(one.group, TOPIC, 4)
        topics = [{**topic, "topic_id": world.id_of(TOPIC)} for topic in wanted["topics"]]
        who = {} if outside else of_member(id_=id_, later=later)(world)
        return {**wanted, **who, "topics": topics, **more}

    return make


def offsets_for(later: int = 0, id_: str | None = None, *, outside: bool = False) -> Make:
    def make(world: World) -> Fields:
        one = member(world)
        topics = [{"name": TOPIC, "topic_id": world.id_of(TOPIC), "partition_indexes": [0]}]
        who = {
            "member_id": None if outside else one.member_id if id_ is None else id_,
            "member_epoch": -1 if outside else one.generation + later,
        }
        return {
            "group_id": one.group,
            "topics": topics,
            "groups": [{"group_id": one.group, "topics": topics, **who}],
        }

    return make


def ended(name: str, *, commit: bool, epoch: int = 0, settle: bool = False, **more: object) -> Make:
    def make(world: World) -> Fields:
        one = opened(world, name)
        if settle:
            settled(world, name)
        return one.fields(epoch=epoch, committed=commit, **more)

    return make


def added(topic: str, *, epoch: int = 0, verify: bool = False, **more: object) -> Make:
    def make(world: World) -> Fields:
        one = opened(world, "open")
        fields = {**one.fields(epoch=epoch), **more}
        topics = [{"name": topic, "partitions": [0]}]
        return {
            **{f"v3_and_below_{key}": value for key, value in fields.items()},
            "v3_and_below_topics": topics,
            "transactions": [{**fields, "verify_only": verify, "topics": topics}],
        }

    return make


def offsets_in(later: int = 0, id_: str | None = None, *, epoch: int = 0, outside: bool = False) -> Make:
    """TxnOffsetCommit for the stable group, in an open transaction."""

    def make(world: World) -> Fields:
        one = opened(world, "open")
        group = member(world).group
        who = {"generation_id": -1} if outside else of_member(id_=id_, later=later)(world)
        world.once("offsets", lambda: _add_group(world, one.fields(group_id=group)))
        return {
            **one.fields(epoch=epoch),
            "group_id": group,
            **who,
            "topics": commit(group, TOPIC, 4)["topics"],
        }

    return make


def _add_group(world: World, fields: Fields) -> bool:
    answer = world.client.ask(K.ADD_OFFSETS_TO_TXN, 3, fields)
    assert answer.error_code == 0, answer
    return True


def written(*, epoch: int = 0, sequence: int = 0, name: str = "open") -> Make:
    def make(world: World) -> Fields:
        one = opened(world, name)
        batch = batch_of(one, epoch=epoch, sequence=sequence)
        return produced_by(world, TRANSACTED, batch, transactional_id=one.name)

    return make


def producing(make: Callable[..., Transaction], partition: int) -> Make:
    """The producers of a partition that has only this one."""

    def described(world: World) -> Fields:
        make(world, "producing", partition=partition)
        return of_topics(partitions_of(TRANSACTED, partition))(world)

    return described


def marked(topic: str, *, epoch: int = 0, coordinator_epoch: int = 0, partition: int = 0) -> Make:
    def make(world: World) -> Fields:
        one = begun(world, "marked")
        return {
            "markers": [
                {
                    **one.fields(epoch=epoch),
                    "transaction_result": True,
                    "coordinator_epoch": coordinator_epoch,
                    "topics": [{"name": topic, "partition_indexes": [partition]}],
                }
            ]
        }

    return make


MADE: Final[Mapping[ApiKey, Mapping[str, Make]]] = {
    K.PRODUCE: {
        "in an open transaction": written(sequence=1),
        "the same batch again": written(sequence=1),
        "a gap in the sequence": written(sequence=9),
        "an epoch of the future": written(epoch=1, sequence=2),
        "an epoch of the past": written(epoch=-1, sequence=2),
    },
    K.FETCH: {
        "a new session": lambda w: fetch(w, TOPIC, 0, session_id=0, session_epoch=0),
        "the next in a session": in_session(),
        "a partition more": in_session(offset=0),
        "from elsewhere": in_session(offset=2),
        "a partition forgotten": in_session(forget=True),
        "after that": in_session(),
        "a session epoch skipped": in_session(skip=5),
        "a session closed": in_session(offset=0, end=True),
        "a session that was closed": in_session(),
        "a session whose topics have names": in_session(by_name=True),
        "an open transaction, committed only": lambda w: fetch(w, TRANSACTED, 0, isolation_level=1),
    },
    K.LIST_OFFSETS: {
        "an open transaction, committed only": list_offsets(TRANSACTED, -1, isolation_level=1),
        "an open transaction, all": list_offsets(TRANSACTED, -1),
        "the largest time of an open transaction": list_offsets(TRANSACTED, -3, isolation_level=1),
    },
    K.OFFSET_COMMIT: {
        "a stable group's member": committed_by(),
        "a stable group's member, a generation too early": committed_by(-1),
        "a stable group's member, a generation too late": committed_by(1),
        "a stranger to a stable group": committed_by(id_="nobody"),
        "from outside a stable group": committed_by(outside=True),
        "a stable group's member under another instance": committed_by(group_instance_id="other"),
    },
    K.OFFSET_FETCH: {
        "a stable group's member": offsets_for(),
        "a stable group's member, a generation too early": offsets_for(-1),
        "a stable group's member, a generation too late": offsets_for(1),
        "a stranger to a stable group": offsets_for(id_="nobody"),
        "from outside a stable group": offsets_for(outside=True),
    },
    K.JOIN_GROUP: {
        "a member joins again": lambda w: {
            **of_member()(w),
            "session_timeout": 300_000,
            "rebalance_timeout": 300_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        },
        "another protocol than the group's": lambda w: {
            **of_member("kept", id_="")(w),
            "session_timeout": 300_000,
            "rebalance_timeout": 300_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "other", "metadata": b""}],
        },
        "another kind than the group's": lambda w: {
            **of_member("kept", id_="")(w),
            "session_timeout": 300_000,
            "rebalance_timeout": 300_000,
            "protocol_type": "connect",
            "protocols": [{"name": "range", "metadata": b""}],
        },
    },
    K.HEARTBEAT: {
        "a stable group's member": of_member(),
        "a generation too early": of_member(later=-1),
        "a generation too late": of_member(later=1),
        "a stranger to a stable group": of_member(id_="nobody"),
        "a stable group's member under an instance": of_member(group_instance_id="i"),
    },
    K.SYNC_GROUP: {
        "a stable group's member": of_member(protocol_type="consumer", protocol_name="range"),
        "a generation too late": of_member(later=1, protocol_type="consumer", protocol_name="range"),
        "a stranger to a stable group": of_member(
            id_="nobody", protocol_type="consumer", protocol_name="range"
        ),
        "another assignor than the group's": of_member(protocol_type="consumer", protocol_name="sticky"),
        "another kind than the group's": of_member(protocol_type="connect", protocol_name="range"),
    },
    K.LEAVE_GROUP: {
        "a stranger to a stable group": of_member(id_="nobody"),
        "a stable group's member": of_member(),
        "it leaves again": of_member(),
    },
    K.DESCRIBE_GROUPS: {
        "a stable group": lambda w: {"groups": [member(w).group]},
    },
    K.DELETE_GROUPS: {
        "a group with a member": lambda w: {"groups_names": [member(w).group]},
    },
    K.OFFSET_DELETE: {
        "a topic that a member reads": lambda w: {
            "group_id": member(w).group,
            "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0}]}],
        },
        "a topic that no member reads": lambda w: {
            "group_id": member(w).group,
            "topics": [{"name": TRANSACTED, "partitions": [{"partition_index": 0}]}],
        },
    },
    K.CONSUMER_GROUP_HEARTBEAT: {
        "into a stable classic group": lambda w: {
            "group_id": member(w).group,
            "member_id": "m",
            "member_epoch": 3,
        },
    },
    K.CONSUMER_GROUP_DESCRIBE: {
        "a stable classic group": lambda w: {"group_ids": [member(w).group]},
    },
    K.INIT_PRODUCER_ID: {
        "the next epoch": lambda w: {**begun(w, "next").fields(), "transaction_timeout": 60_000},
        "the next epoch again": lambda w: {**begun(w, "next").fields(), "transaction_timeout": 60_000},
        "an epoch of the future": lambda w: {
            **begun(w, "other").fields(epoch=5),
            "transaction_timeout": 60_000,
        },
    },
    K.ADD_PARTITIONS_TO_TXN: {
        "to an open transaction": added(TOPIC),
        "a topic that is not there": added(MISSING),
        "an epoch of the future": added(TOPIC, epoch=1),
        "an epoch of the past": added(TOPIC, epoch=-1),
        "of somebody else": added(TOPIC, producer_id=987_654),
        "is it in the transaction": added(TRANSACTED, verify=True),
    },
    K.ADD_OFFSETS_TO_TXN: {
        "to an open transaction": lambda w: opened(w, "open").fields(group_id=MISSING),
        "an epoch of the future": lambda w: opened(w, "open").fields(epoch=1, group_id=MISSING),
        "of somebody else": lambda w: {
            **opened(w, "open").fields(group_id=MISSING),
            "producer_id": 987_654,
        },
    },
    K.END_TXN: {
        "commit": ended("commit", commit=True),
        "commit again": ended("commit", commit=True, settle=True),
        "abort what was committed": ended("commit", commit=False, settle=True),
        "abort": ended("abort", commit=False),
        "abort again": ended("abort", commit=False, settle=True),
        "commit what was aborted": ended("abort", commit=True, settle=True),
        "an epoch of the future": ended("open", commit=True, epoch=1),
        "an epoch of the past": ended("open", commit=True, epoch=-1),
        "of somebody else": lambda w: {
            **opened(w, "open").fields(committed=True),
            "producer_id": 987_654,
        },
        "commit nothing": lambda w: begun(w, "nothing").fields(committed=True),
        "abort nothing": lambda w: begun(w, "none").fields(committed=False),
    },
    K.WRITE_TXN_MARKERS: {
        "nothing": lambda w: {"markers": []},
        "a marker of a transaction without records": marked(TRANSACTED),
        "the same again": marked(TRANSACTED),
        "a coordinator of the past": marked(TRANSACTED, coordinator_epoch=-1),
        "an epoch of the past": marked(TRANSACTED, epoch=-1),
        "an unknown topic": marked(MISSING),
        "an unknown partition": marked(TRANSACTED, partition=9),
    },
    K.TXN_OFFSET_COMMIT: {
        "by a stable group's member": offsets_in(),
        "a generation too early": offsets_in(-1),
        "a generation too late": offsets_in(1),
        "a stranger to a stable group": offsets_in(id_="nobody"),
        "from outside a stable group": offsets_in(outside=True),
        "an epoch of the future": offsets_in(epoch=1),
    },
    K.DESCRIBE_PRODUCERS: {
        "one in an open transaction": producing(opened, 1),
        "one whose transaction ended": producing(done, 2),
    },
    K.DESCRIBE_TRANSACTIONS: {
        "an open one": lambda w: {"transactional_ids": [opened(w, "open").name]},
        "one that wrote nothing": lambda w: {"transactional_ids": [begun(w, "nothing").name]},
    },
    K.LIST_TRANSACTIONS: {
        "of one producer": lambda w: {
            "producer_id_filters": [opened(w, "open").producer_id],
            "duration_filter": -1,
        },
    },
}
