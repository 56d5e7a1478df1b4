"""What clients make a node remember: counted by kind, bounded, and given back when it is forgotten (R05)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chronik.model import ErrorCode
from chronik.transactions.coordinator import ID_CHARS_MAX
from chronik.wire.api import ApiKey
from tests.unit.server.live import Live, live
from tests.unit.server.test_bad_group_input import BEAT
from tests.unit.server.test_group_apis import committing, fetch
from tests.unit.server.test_transaction_apis import add, end, init

MIB = 1024 * 1024


def offsets(group: str, partitions: int, metadata: str = "", first: int = 0) -> dict[str, Any]:
    rows = [
        {"partition_index": number, "committed_offset": 5, "committed_metadata": metadata}
        for number in range(first, first + partitions)
    ]
    return {**committing(group, "", -1), "topics": [{"name": "orders", "partitions": rows}]}


async def commit(node: Live, *args: Any, **kwargs: Any) -> list[ErrorCode]:
    answer = await node.call(ApiKey.OFFSET_COMMIT, 8, **offsets(*args, **kwargs))
    return [ErrorCode(one.error_code) for one in answer.topics[0].partitions]


async def fill(node: Live) -> int:
    """Commit under invented group ids until there is no room at all; how many large commits were taken."""
    taken = 0
    while ErrorCode.none in await commit(node, f"invented-{taken}", 50, "m" * 4_000):
        taken += 1
        assert taken < 1_000, "there is no limit"
    small = 0
    while ErrorCode.none in await commit(node, f"small-{small}", 1):
        small += 1
    assert ErrorCode.invalid_commit_offset_size in await commit(node, "small-0", 50, first=1)
    rest = 1
    while ErrorCode.none in await commit(node, "small-0", 1, first=rest):
        rest += 1
    return taken


def held(node: Live) -> Mapping[str, int]:
    return {share.kind: share.held_bytes for share in node.node.parts.client_state}


async def test_offsets_of_invented_groups_are_bounded(tmp_path: Path) -> None:
    """Nobody needs to be a member to commit: 4 KiB of metadata, any number of ids, kept for a week."""
    async with live(tmp_path, client_state_bytes_max=4 * MIB) as node:
        await node.topic("orders", 100)
        await node.find("mine")
        assert set(await commit(node, "mine", 3)) == {ErrorCode.none}
        assert await fill(node) < 10
        share = node.node.parts.client_state.committed_offsets
        assert share.refused == 4
        assert share.held_bytes <= share.bytes_max == MIB
        # Those who were there before go on, with the partitions that they had.
        refused = ErrorCode.invalid_commit_offset_size
        assert await commit(node, "mine", 5, "usual") == [ErrorCode.none] * 3 + [refused] * 2
        assert [one[1] for one in await fetch(node, "mine")] == [0, 1, 2]
        assert await commit(node, "mine", 1, "m" * 4_000) == [refused]
        for group in ("invented-0", "invented-1"):
            await node.call(ApiKey.DELETE_GROUPS, 2, groups_names=[group])
        assert set(await commit(node, "mine", 5)) == {ErrorCode.none}


async def test_offsets_are_counted_again_after_a_restart_and_given_back(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.topic("orders", 10)
        await node.find("mine")
        await commit(node, "mine", 10, "m" * 1_000)
        before = held(node)["committed_offsets"]
        assert before > 10_000
    async with live(tmp_path) as node:
        assert len(await fetch(node, "mine")) == 10
        assert held(node)["committed_offsets"] == before
        rows = [{"partition_index": number} for number in range(4)]
        gone = await node.call(
            ApiKey.OFFSET_DELETE, 0, group_id="mine", topics=[{"name": "orders", "partitions": rows}]
        )
        assert gone.error_code is ErrorCode.none
        assert 0 < held(node)["committed_offsets"] < before
        await node.call(ApiKey.DELETE_GROUPS, 2, groups_names=["mine"])
        assert held(node)["committed_offsets"] == 0


async def pend(node: Live, name: str, producer_id: int, group: str, partitions: int) -> list[ErrorCode]:
    answer = await node.call(
        ApiKey.TXN_OFFSET_COMMIT,
        3,
        transactional_id=name,
        group_id=group,
        producer_id=producer_id,
        producer_epoch=0,
        generation_id=-1,
        member_id="",
        topics=offsets(group, partitions)["topics"],
    )
    return [ErrorCode(one.error_code) for one in answer.topics[0].partitions]


async def in_transaction(node: Live, name: str, group: str) -> int:
    producer_id = int((await init(node, name)).producer_id)
    fields = {"transactional_id": name, "producer_id": producer_id, "producer_epoch": 0, "group_id": group}
    assert (await node.call(ApiKey.ADD_OFFSETS_TO_TXN, 3, **fields)).error_code is ErrorCode.none
    return producer_id


async def test_pending_offsets_of_transactions_count_too(tmp_path: Path) -> None:
    async with live(tmp_path, client_state_bytes_max=4 * MIB) as node:
        await node.topic("orders", 100)
        await node.find("mine")
        for name in ("a", "b"):
            await node.find(name, key_type=1)
        assert set(await commit(node, "mine", 2)) == {ErrorCode.none}
        a, b = await in_transaction(node, "a", "mine"), await in_transaction(node, "b", "mine")
        await fill(node)
        # All of a transaction's offsets or none: with a part of them it would commit something else.
        assert await pend(node, "a", a, "mine", 3) == [ErrorCode.invalid_commit_offset_size] * 3
        assert await pend(node, "a", a, "mine", 2) == [ErrorCode.none] * 2
        assert await pend(node, "a", a, "mine", 2) == [ErrorCode.none] * 2
        assert await pend(node, "b", b, "mine", 1) == [ErrorCode.invalid_commit_offset_size]
        pending = held(node)["committed_offsets"]
        assert (await end(node, "a", a, 0)).error_code is ErrorCode.none
        while held(node)["committed_offsets"] == pending:  # until its markers are written
            await pend(node, "b", b, "mine", 1)
        assert await pend(node, "b", b, "mine", 1) == [ErrorCode.none]


async def test_transactional_ids_are_bounded_in_number_and_length(tmp_path: Path) -> None:
    async with live(tmp_path, client_state_bytes_max=MIB) as node:
        await node.topic("orders")
        await node.find("mine", key_type=1)
        mine = await init(node, "mine")
        assert (await init(node, "x" * (ID_CHARS_MAX + 1))).error_code is ErrorCode.invalid_request
        taken = 0
        while (await init(node, f"{taken:01000}")).error_code is ErrorCode.none:
            taken += 1
            assert taken < 100, "there is no limit"
        assert (await init(node, "another" * 100)).error_code is ErrorCode.policy_violation
        assert node.node.parts.client_state.transactional_ids.refused == 2
        # Known ids go on.
        assert await add(node, "mine", mine.producer_id, 0) is ErrorCode.none
        while (await end(node, "mine", mine.producer_id, 0)).error_code is not ErrorCode.none:
            pass
        assert (await init(node, "mine")).error_code is ErrorCode.none
        before = held(node)["transactional_ids"]
    async with live(tmp_path) as node:
        assert (await init(node, "mine")).error_code is ErrorCode.none
        assert (await init(node, f"{0:01000}")).error_code is ErrorCode.none
        assert held(node)["transactional_ids"] == before


async def beat(node: Live, member: str, **fields: Any) -> ErrorCode:
    answer = await node.call(
        ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **{**BEAT, "group_id": "g", "member_id": member, **fields}
    )
    return ErrorCode(answer.error_code)


async def test_members_with_nothing_but_a_pattern_count(tmp_path: Path) -> None:
    """They named no topic, so they once took no room."""
    pattern = {"subscribed_topic_names": None, "subscribed_topic_regex": "o" * 4_000, "rack_id": "r" * 20_000}
    async with live(tmp_path, client_state_bytes_max=4 * MIB) as node:
        await node.find("g")
        share = node.node.parts.client_state.groups
        taken = 0
        while await beat(node, f"m{taken}", **pattern) is ErrorCode.none:
            taken += 1
            assert taken < 100, "there is no limit"
            assert share.held_bytes > taken * 24_000
        assert (taken, share.refused) == (41, 1)
        # Those who are in go on, also when they say everything again.
        assert await beat(node, "m0", **pattern) is ErrorCode.none
        grown = [
            await beat(node, f"m{number}", **{**pattern, "rack_id": "r" * 30_000}) for number in range(3)
        ]
        assert grown == [ErrorCode.none] * 2 + [ErrorCode.coordinator_not_available]
