"""What clients may make every node and every snapshot hold: one budget; deletions are never refused."""

from __future__ import annotations

import asyncio
from random import Random
from uuid import UUID

import msgspec
import pytest

from chronik.config import table
from chronik.links.connections import FRAME_BYTES_MAX
from chronik.metadata import budget as budget_module
from chronik.metadata import commands as c
from chronik.metadata.budget import ENTRY_BYTES_MAX, MetadataBudget
from chronik.metadata.sizes import growth, measure_security
from chronik.metadata.snapshot import decode_snapshot, encode_snapshot
from chronik.metadata.state import ClusterState
from chronik.metadata.store import MetadataStore
from chronik.model import METADATA_BYTES_MAX, ErrorCode, RequestError
from chronik.raft import RaftConfig
from chronik.security.acls import AclBinding, Operation, ResourceType
from chronik.security.scram import MECHANISMS, make_credential
from tests.unit.metadata.test_security import COMMANDS
from tests.unit.metadata.test_store import REGISTER, InstantLog

KIB = 1024
CREDENTIALS = [make_credential(one, "geheim", b"s" * 32, 4096) for one in MECHANISMS.values()]


def make(bytes_max: int) -> tuple[MetadataStore, InstantLog]:
    log = InstantLog()
    store = MetadataStore(log, origin=1, budget=MetadataBudget(bytes_max))
    return store, log


def user(name: str, kind: int = 0) -> c.PutCredential:
    return c.PutCredential(user=name, credential=CREDENTIALS[kind])


def config(value: str | None, *, name: str = "g", replace: bool = False) -> c.SetConfigs:
    return c.SetConfigs(resource_type=c.GROUP_RESOURCE, name=name, values={"key": value}, replace=replace)


def acl(name: str) -> AclBinding:
    return AclBinding(
        resource_type=ResourceType.TOPIC, resource_name=name, principal="User:a", operation=Operation.READ
    )


async def refusal(store: MetadataStore, command: c.Command) -> str:
    with pytest.raises(RequestError) as caught:
        await store.submit(command)
    assert caught.value.code == ErrorCode.policy_violation
    return str(caught.value.message)


async def test_what_adds_is_refused_when_the_metadata_is_full_and_what_takes_away_is_not() -> None:
    store, log = make(4 * KIB)
    await store.submit(config("v" * 3 * KIB))
    entries = len(log.entries)
    assert "metadata_bytes_max" in await refusal(store, user("a" * KIB))
    assert len(log.entries) == entries, "a refused change must not reach the log"
    assert store.budget.refused == 1
    assert await refusal(store, config("v", name="h" * KIB))
    await store.submit(config("v" * 2 * KIB))  # less than before
    await store.submit(config(None))
    assert store.state.size_bytes == 0
    await store.submit(user("a" * KIB))
    await store.submit(c.RemoveCredential(user="a" * KIB, mechanism=CREDENTIALS[0].mechanism))
    assert store.state.size_bytes == 0


async def test_of_a_batch_only_what_does_not_fit_is_refused() -> None:
    store, _ = make(4 * KIB)
    await store.submit(user("old"))
    parts = (
        user("a" * KIB),
        user("b" * 4 * KIB),
        c.RemoveCredential(user="old", mechanism=CREDENTIALS[0].mechanism),
        user("c" * KIB),
        user("d" * 3 * KIB),
    )
    outcome = await store.submit(c.Batch(commands=parts))
    codes = [None if part.refused is None else part.refused.code for part in outcome.parts]
    assert codes == [None, ErrorCode.policy_violation, None, None, ErrorCode.policy_violation]
    assert sorted(store.state.security.users) == ["a" * KIB, "c" * KIB]
    nothing = await store.submit(c.Batch(commands=(user("e" * 4 * KIB),)))
    assert [part.refused is not None for part in nothing.parts] == [True]


async def test_what_is_under_way_counts() -> None:
    """Requests that arrive at once would otherwise each see the room that there is for one."""
    store, log = make(4 * KIB)
    log.held = True
    first = asyncio.create_task(store.submit(user("a" * 3 * KIB)))
    await asyncio.sleep(0)
    assert len(log.entries) == 1
    assert await refusal(store, user("b" * 3 * KIB))
    log.release(log.entries[0])
    await first
    assert store.budget.under_way == 0


async def test_what_a_command_under_way_frees_is_no_room_yet() -> None:
    """It may fail, or be applied after what would have used the room."""
    store, log = make(4 * KIB)
    await store.submit(config("v" * 3 * KIB))
    log.held = True
    removal = asyncio.create_task(store.submit(config(None)))
    await asyncio.sleep(0)
    assert store.budget.under_way == 0
    assert await refusal(store, user("a" * 2 * KIB))
    log.release(log.entries[-1])
    await removal
    assert store.budget.under_way == 0


async def test_an_entry_that_adds_has_a_longest_length_and_one_that_removes_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, log = make(METADATA_BYTES_MAX)
    monkeypatch.setattr(budget_module, "ENTRY_BYTES_MAX", 8 * KIB)
    many = tuple(acl(f"topic-{number}" * 10) for number in range(100))
    assert "smaller requests" in await refusal(store, c.AddAcls(bindings=many))
    assert not log.entries
    assert store.budget.under_way == 0
    await store.submit(c.AddAcls(bindings=many[:20]))
    await store.submit(c.RemoveAcls(bindings=many))
    assert store.state.security.acls == frozenset()


async def test_what_the_cluster_needs_to_go_on_is_never_refused() -> None:
    store, _ = make(1)
    await store.submit(REGISTER)
    await store.submit(c.FenceBroker(broker_id=1, broker_epoch=1))
    await store.submit(c.AllocateProducerIds(broker_id=1, count=10))
    assert await refusal(store, c.CreateTopic(name="t", topic_id=UUID(int=9), assignments=((1,),)))


def test_the_size_of_the_security_part_is_kept_with_every_change() -> None:
    state = ClusterState()
    twice = [one for command in COMMANDS for one in (command, command)]
    removals: list[c.Command] = [
        *(c.RemoveCredential(user="alice", mechanism=one.mechanism) for one in CREDENTIALS),
        c.RemoveAcls(bindings=tuple(COMMANDS[2].bindings)),  # type: ignore[union-attr]
        c.SetQuota(
            entity=COMMANDS[3].entity,  # type: ignore[union-attr]
            values={"producer_byte_rate": None, "consumer_byte_rate": None},
        ),
        c.RemoveToken(token_id="t"),
        c.RemoveApiKey(name="grafana"),
    ]
    for index, command in enumerate((*twice, *removals), 1):
        before, said = state.size_bytes, growth(state, command)
        outcome = state.apply(command, index)
        assert state.security.size_bytes == measure_security(state.security)
        if outcome.refused is None and said:
            assert state.size_bytes - before == said
        assert decode_snapshot(encode_snapshot(state)).size_bytes == state.size_bytes
    assert state.size_bytes == 0


def test_the_size_is_near_that_of_the_snapshot_and_not_below_it() -> None:
    """Whatever somebody fills it with, a full budget is no larger as a snapshot."""
    state = ClusterState()
    bare = len(encode_snapshot(state))
    fillings: list[list[c.Command]] = [
        [user(f"user-{number}", number % 2) for number in range(1_000)],
        [user(f"ü{number}" * 50) for number in range(200)],
        [c.AddAcls(bindings=tuple(acl(f"topic-{number}") for number in range(1_000)))],
        [config("v" * 100, name=f"group-{number}") for number in range(1_000)],
        [
            c.SetQuota(entity=(("user", f"user-{number}"),), values={"producer_byte_rate": 1.5})
            for number in range(1_000)
        ],
        [msgspec.structs.replace(REGISTER, broker_id=number) for number in (1, 2, 3)],
        [c.CreateTopic(name="t", topic_id=UUID(int=9), assignments=((1, 2, 3),) * 1_000)],
        [
            c.CreateTopic(name=f"topic-{number}", topic_id=UUID(int=number), assignments=((1,),))
            for number in range(100, 600)
        ],
    ]
    for commands in fillings:
        before, kept = len(encode_snapshot(state)) - bare, state.size_bytes
        for command in commands:
            assert state.apply(command, state.applied_index + 1).refused is None
        real, said = len(encode_snapshot(state)) - bare - before, state.size_bytes - kept
        if said:
            assert real <= said <= 1.6 * real, type(commands[0]).__name__
    assert ENTRY_BYTES_MAX < METADATA_BYTES_MAX


def test_a_full_budget_fits_into_one_message_between_nodes() -> None:
    """InstallSnapshot carries all of it. What nodes have under way at once may come on top."""
    highest = table()["metadata_bytes_max"].rule.maximum
    assert highest is not None
    assert highest >= METADATA_BYTES_MAX
    over = RaftConfig(node_id=1, voters=(1,), random_ticks=Random().randrange).max_uncommitted_bytes
    assert highest + over < FRAME_BYTES_MAX
