"""What a case needs to be in place first: a group with a member, an open transaction, a fetch session.

Each is made once for an API and version, under a name of its own, and kept in `World.made`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from chronik.wire.api import ApiKey as K
from tests.compat.differential.makers import Make, fetch
from tests.compat.differential.world import TOPIC, TRANSACTED, World, produce, records
from tests.wire import Fields

LONG_MS = 300_000
"""Nothing that is left open ends before the test does."""


# --- groups -----------------------------------------------------------------------------------


@dataclass
class Member:
    group: str
    member_id: str
    generation: int


def member(world: World, name: str = "stable") -> Member:
    """The only member of a classic group that is stable; it reads TOPIC."""
    return world.once(f"member {name}", lambda: _join(world, f"{world.fresh}-{name}"))


def _join(world: World, group: str) -> Member:
    topics = struct.pack(">hih", 0, 1, len(TOPIC)) + TOPIC.encode() + struct.pack(">i", -1)
    joined = world.client.ask(
        K.JOIN_GROUP,
        3,
        {
            "group_id": group,
            "session_timeout": LONG_MS,
            "rebalance_timeout": LONG_MS,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": topics}],
        },
    )
    assert joined.error_code == 0, joined
    found = Member(group, joined.member_id, joined.generation_id)
    assigned = {"member_id": found.member_id, "assignment": b"assigned"}
    synced = world.client.ask(
        K.SYNC_GROUP,
        3,
        {
            "group_id": group,
            "generation_id": found.generation,
            "member_id": found.member_id,
            "assignments": [assigned],
        },
    )
    assert synced.error_code == 0, synced
    return found


def of_member(name: str = "stable", *, id_: str | None = None, later: int = 0, **more: Any) -> Make:
    """The fields that say who asks: the member, somebody else (`id_`), or in another generation."""

    def make(world: World) -> Fields:
        one = member(world, name)
        member_id = one.member_id if id_ is None else id_
        return {
            "group_id": one.group,
            "member_id": member_id,
            "generation_id": one.generation + later,
            "generation_id_or_member_epoch": one.generation + later,
            "members": [{"member_id": member_id}],
            **more,
        }

    return make


# --- transactions -----------------------------------------------------------------------------


@dataclass
class Transaction:
    name: str
    producer_id: int
    epoch: int

    def fields(self, *, epoch: int = 0, **more: Any) -> Fields:
        return {
            "transactional_id": self.name,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch + epoch,
            **more,
        }


def begun(world: World, name: str) -> Transaction:
    """A transactional producer that has written nothing yet."""

    def init() -> Transaction:
        transactional_id = f"{world.fresh}-{name}"
        answer = world.client.ask(
            K.INIT_PRODUCER_ID,
            4,
            {
                "transactional_id": transactional_id,
                "transaction_timeout": LONG_MS,
                "producer_id": -1,
                "producer_epoch": -1,
            },
        )
        assert answer.error_code == 0, answer
        return Transaction(transactional_id, answer.producer_id, answer.producer_epoch)

    return world.once(f"begun {name}", init)


def opened(world: World, name: str, *, partition: int = 0) -> Transaction:
    """A transaction with one record in TRANSACTED."""
    one = begun(world, name)

    def write() -> Transaction:
        topics = [{"name": TRANSACTED, "partitions": [partition]}]
        added = world.client.ask(
            K.ADD_PARTITIONS_TO_TXN,
            3,
            {
                **{f"v3_and_below_{key}": value for key, value in one.fields().items()},
                "v3_and_below_topics": topics,
            },
        )
        assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0, added
        written = world.client.ask(
            K.PRODUCE,
            9,
            produce(TRANSACTED, batch_of(one), partition=partition, transactional_id=one.name),
        )
        assert written.responses[0].partition_responses[0].error_code == 0, written
        return one

    return world.once(f"opened {name}", write)


def batch_of(one: Transaction, *, epoch: int = 0, sequence: int = 0) -> bytes:
    return records(
        1,
        producer_id=one.producer_id,
        producer_epoch=one.epoch + epoch,
        base_sequence=sequence,
        is_transactional=True,
    )


def ended(world: World, name: str, *, partition: int = 0) -> Transaction:
    """The same, committed."""
    one = opened(world, name, partition=partition)

    def commit() -> Transaction:
        answer = world.client.ask(K.END_TXN, 3, one.fields(committed=True))
        assert answer.error_code == 0, answer
        return settled(world, name)

    return world.once(f"ended {name}", commit)


def settled(world: World, name: str) -> Transaction:
    """The same, once its markers are written: until then both sides may answer CONCURRENT_TRANSACTIONS."""
    one = begun(world, name)

    def is_settled() -> bool:
        answer = world.client.ask(K.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [one.name]})
        return answer.transaction_states[0].transaction_state in ("CompleteCommit", "CompleteAbort", "Empty")

    world.until(is_settled)
    return one


# --- fetch sessions ---------------------------------------------------------------------------


@dataclass
class Session:
    id_: int
    epoch: int


def in_session(
    *,
    offset: int | None = None,
    forget: bool = False,
    skip: int = 0,
    end: bool = False,
    by_name: bool = False,
) -> Make:
    """The next fetch of a session that has partition 0 of TOPIC; `offset` asks for partition 1 as well.

    `skip` makes the epoch wrong, `end` closes the session; `by_name` is another session, by topic names.
    """

    def make(world: World) -> Fields:
        version = 12 if by_name else max(7, world.version)
        session = world.once(f"session {by_name}", lambda: _open_session(world, version))
        fields = fetch(world, TOPIC, offset or 0, partition=1, session_id=session.id_)
        session.epoch += 1
        known = fields["topics"][0]
        forgotten = {"topic": TOPIC, "topic_id": known["topic_id"], "partitions": [0]}
        return {
            **fields,
            "topics": [] if offset is None else [known],
            "session_epoch": -1 if end else session.epoch + skip,
            "forgotten_topics_data": [forgotten] if forget else [],
        }

    return make


def _open_session(world: World, version: int) -> Session:
    answer = world.client.ask(K.FETCH, version, fetch(world, TOPIC, 0, session_id=0, session_epoch=0))
    assert answer.error_code == 0, answer
    assert answer.session_id != 0, answer
    return Session(answer.session_id, 0)
