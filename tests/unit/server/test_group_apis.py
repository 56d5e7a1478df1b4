"""The group APIs on a whole node: what clients that are wrong, late or gone are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chronik.model import ErrorCode
from chronik.replication.partition import Partition
from chronik.replication.waiters import AckCallback
from chronik.wire.api import ApiKey
from tests.unit.server.live import Live, live

PROTOCOLS = [{"name": "range", "metadata": b"\x00\x00\x00\x00\x00\x01\x00\x06orders"}]


async def join(node: Live, group: str, member_id: str = "", version: int = 3, **fields: Any) -> Any:
    return await node.call(
        ApiKey.JOIN_GROUP,
        version,
        group_id=group,
        session_timeout=10_000,
        rebalance_timeout=10_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=fields.pop("protocols", PROTOCOLS),
        **fields,
    )


async def sync(node: Live, group: str, member_id: str, generation: int, assignments: Any = ()) -> Any:
    return await node.call(
        ApiKey.SYNC_GROUP,
        2,
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        assignments=list(assignments),
    )


async def stable(node: Live, group: str) -> str:
    """A group with one member, in generation 1; its id."""
    await node.find(group)
    joined = await join(node, group)
    assert joined.error_code is ErrorCode.none
    mine = [{"member_id": joined.member_id, "assignment": b"mine"}]
    synced = await sync(node, group, joined.member_id, joined.generation_id, mine)
    assert bytes(synced.assignment) == b"mine"
    return str(joined.member_id)


def committing(
    group: str, member_id: str, generation: int, metadata: str = "", topic: str = "orders"
) -> dict[str, Any]:
    partition = {"partition_index": 0, "committed_offset": 5, "committed_metadata": metadata}
    return {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member_id,
        "topics": [{"name": topic, "partitions": [partition]}],
    }


async def commit(node: Live, *args: Any, **kwargs: Any) -> ErrorCode:
    answer = await node.call(ApiKey.OFFSET_COMMIT, 8, **committing(*args, **kwargs))
    return ErrorCode(answer.topics[0].partitions[0].error_code)


async def fetch(node: Live, group: str) -> list[tuple[str, int, int]]:
    answer = await node.call(
        ApiKey.OFFSET_FETCH, 8, groups=[{"group_id": group, "topics": None}], require_stable=True
    )
    return [
        (topic.name, one.partition_index, one.committed_offset)
        for topic in answer.groups[0].topics
        for one in topic.partitions
    ]


async def test_the_last_member_has_left_once_that_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with live(tmp_path) as node:
        member = await stable(node, "team")
        waiting: list[Callable[[], None]] = []
        acked, is_written = Partition.when_acked, asyncio.Event()

        def later(partition: Partition, end: int, acks: int, callback: AckCallback) -> None:
            waiting.append(lambda: acked(partition, end, acks, callback))
            is_written.set()

        monkeypatch.setattr(Partition, "when_acked", later)
        leaving = asyncio.ensure_future(
            node.call(ApiKey.LEAVE_GROUP, 4, group_id="team", members=[{"member_id": member}])
        )
        await is_written.wait()
        await node.call(ApiKey.LIST_GROUPS, 4, states_filter=[])
        assert not leaving.done(), "a client would take it for an answer that survives a crash"
        monkeypatch.undo()
        for one in waiting:
            one()
        assert (await leaving).error_code is ErrorCode.none


async def test_a_coordinator_that_is_cut_off_answers_nothing(tmp_path: Path) -> None:
    """Another one may have taken over: what this one knows of offsets may be long over."""
    async with live(tmp_path) as node:
        await node.topic("orders")
        member_id = await stable(node, "g")
        assert await commit(node, "g", member_id, 1) is ErrorCode.none
        replicas = node.node.parts.replicas
        is_registered, replicas._may_lead = replicas._may_lead, lambda: False
        asked = [{"group_id": "g", "topics": None}]
        answer = await node.call(ApiKey.OFFSET_FETCH, 8, groups=asked, require_stable=True)
        assert answer.groups[0].error_code is ErrorCode.not_coordinator
        assert await commit(node, "g", member_id, 1) is ErrorCode.not_coordinator
        replicas._may_lead = is_registered
        assert await fetch(node, "g") == [("orders", 0, 5)]


async def test_wrong_members_and_generations_are_told_so(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.topic("orders")
        member_id = await stable(node, "g")
        assert await commit(node, "g", member_id, 1) is ErrorCode.none
        assert await commit(node, "g", member_id, 0) is ErrorCode.illegal_generation
        assert await commit(node, "g", "nobody", 1) is ErrorCode.unknown_member_id
        assert await commit(node, "g", "", -1) is ErrorCode.unknown_member_id
        assert await commit(node, "other", member_id, 1) is ErrorCode.illegal_generation
        assert await commit(node, "g", member_id, 1, topic="none") is ErrorCode.unknown_topic_or_partition
        too_long = await commit(node, "g", member_id, 1, metadata="x" * 4097)
        assert too_long is ErrorCode.offset_metadata_too_large
        assert await fetch(node, "g") == [("orders", 0, 5)]
        for member, generation, code in (
            (member_id, 1, ErrorCode.none),
            (member_id, 2, ErrorCode.illegal_generation),
            ("nobody", 1, ErrorCode.unknown_member_id),
        ):
            beat = await node.call(
                ApiKey.HEARTBEAT, 3, group_id="g", generation_id=generation, member_id=member
            )
            assert beat.error_code is code
        assert (await sync(node, "g", member_id, 9)).error_code is ErrorCode.illegal_generation
        assert (await join(node, "g", "nobody")).error_code is ErrorCode.unknown_member_id
        other = [{"name": "sticky", "metadata": b""}]
        refused = await join(node, "g", protocols=other)
        assert refused.error_code is ErrorCode.inconsistent_group_protocol
        assert (await join(node, "")).error_code is ErrorCode.invalid_group_id
        assert (await join(node, "g", version=5)).error_code is ErrorCode.member_id_required
        for version, no_protocol in ((6, ""), (7, None)):
            assert (await join(node, "", version=version)).protocol_name == no_protocol
            assert (await join(node, "g", version=version)).protocol_name == no_protocol


async def test_a_group_with_offsets_alone_is_an_empty_classic_one(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.topic("orders")
        await node.find("g")
        assert await commit(node, "g", "", -1) is ErrorCode.none
        for version in range(2, 10):
            answer = await node.call(ApiKey.OFFSET_COMMIT, version, **committing("g", "nobody", 1))
            assert answer.topics[0].partitions[0].error_code is ErrorCode.unknown_member_id
        (listed,) = (await node.call(ApiKey.LIST_GROUPS, 5, types_filter=["Classic"])).groups
        assert (listed.group_id, listed.group_type, listed.group_state) == ("g", "classic", "Empty")


async def test_offsets_may_be_kept_for_ever(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.topic("orders")
        await node.find("g")
        for version in range(2, 5):
            answer = await node.call(
                ApiKey.OFFSET_COMMIT, version, **committing("g", "", -1), retention_time=2**63 - 1
            )
            assert answer.topics[0].partitions[0].error_code is ErrorCode.none
        assert await fetch(node, "g") == [("orders", 0, 5)]


async def test_a_join_calls_the_others_back(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        first = await stable(node, "g")
        second = asyncio.ensure_future(join(node, "g"))
        while True:
            beat = await node.call(ApiKey.HEARTBEAT, 3, group_id="g", generation_id=1, member_id=first)
            if beat.error_code is ErrorCode.rebalance_in_progress:
                break
            await asyncio.sleep(0)
        again = await join(node, "g", first)
        joined = await second
        assert again.generation_id == joined.generation_id == 2
        assert len(again.members) == 2
        left = await node.call(
            ApiKey.LEAVE_GROUP,
            3,
            group_id="g",
            members=[{"member_id": joined.member_id}, {"member_id": "nobody"}],
        )
        codes = [one.error_code for one in left.members]
        assert codes == [ErrorCode.none, ErrorCode.unknown_member_id]


def test_groups_and_offsets_outlive_the_node(tmp_path: Path) -> None:
    async def before() -> str:
        async with live(tmp_path) as node:
            await node.topic("orders")
            member_id = await stable(node, "g")
            assert await commit(node, "g", member_id, 1) is ErrorCode.none
            await node.find("simple")
            assert await commit(node, "simple", "", -1) is ErrorCode.none
            return member_id

    async def after(member_id: str) -> None:
        async with live(tmp_path) as node:
            beat = await node.call(ApiKey.HEARTBEAT, 3, group_id="g", generation_id=1, member_id=member_id)
            assert beat.error_code is ErrorCode.none
            assert await fetch(node, "g") == [("orders", 0, 5)]
            assert await fetch(node, "simple") == [("orders", 0, 5)]
            assert bytes((await sync(node, "g", member_id, 1)).assignment) == b"mine"
            listed = await node.call(ApiKey.LIST_GROUPS, 4)
            assert {(one.group_id, one.group_state) for one in listed.groups} == {
                ("g", "Stable"),
                ("simple", "Empty"),
            }

    asyncio.run(after(asyncio.run(before())))


async def test_deleting(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.topic("orders")
        member_id = await stable(node, "g")
        await commit(node, "g", member_id, 1)
        wanted = [{"name": "orders", "partitions": [{"partition_index": 0}]}]
        unknown = await node.call(ApiKey.OFFSET_DELETE, 0, group_id="none", topics=wanted)
        assert (unknown.error_code, unknown.topics) == (ErrorCode.group_id_not_found, ())
        kept = await node.call(ApiKey.OFFSET_DELETE, 0, group_id="g", topics=wanted)
        assert kept.topics[0].partitions[0].error_code is ErrorCode.group_subscribed_to_topic
        answer = await node.call(ApiKey.DELETE_GROUPS, 1, groups_names=["g", "none"])
        codes = {one.group_id: one.error_code for one in answer.results}
        assert codes == {"g": ErrorCode.non_empty_group, "none": ErrorCode.group_id_not_found}
        await node.call(ApiKey.LEAVE_GROUP, 2, group_id="g", member_id=member_id)
        gone = await node.call(ApiKey.OFFSET_DELETE, 0, group_id="g", topics=wanted)
        assert gone.topics[0].partitions[0].error_code is ErrorCode.none
        assert await fetch(node, "g") == []
        answer = await node.call(ApiKey.DELETE_GROUPS, 1, groups_names=["g"])
        assert answer.results[0].error_code is ErrorCode.none
        described = await node.call(ApiKey.DESCRIBE_GROUPS, 6, groups=["g"])
        assert described.groups[0].error_code is ErrorCode.group_id_not_found
        described = await node.call(ApiKey.DESCRIBE_GROUPS, 5, groups=["g"])
        assert described.groups[0].group_state == "Dead"


async def test_a_consumer_group_and_a_classic_group_do_not_mix(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.topic("orders", 2)
        await stable(node, "classic")
        beat = {
            "member_id": "m",
            "member_epoch": 0,
            "rebalance_timeout": 10_000,
            "subscribed_topic_names": ["orders"],
            "topic_partitions": [],
        }
        refused = await node.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, group_id="classic", **beat)
        assert refused.error_code is ErrorCode.group_id_not_found
        await node.find("modern")
        joined = await node.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, group_id="modern", **beat)
        assert (joined.error_code, joined.member_epoch) == (ErrorCode.none, 1)
        assert [list(one.partitions) for one in joined.assignment.topic_partitions] == [[0, 1]]
        assert (await join(node, "modern")).error_code is ErrorCode.inconsistent_group_protocol
        stale = await commit(node, "modern", "m", 0)
        assert stale is ErrorCode.unsupported_version  # version 8 knows no member epochs
        answer = await node.call(ApiKey.OFFSET_COMMIT, 9, **committing("modern", "m", 7))
        assert answer.topics[0].partitions[0].error_code is ErrorCode.stale_member_epoch
        answer = await node.call(ApiKey.OFFSET_COMMIT, 9, **committing("modern", "m", 1))
        assert answer.topics[0].partitions[0].error_code is ErrorCode.none
        described = await node.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, group_ids=["modern", "classic"])
        assert [one.group_state for one in described.groups] == ["Stable", ""]
        assert described.groups[1].error_code is ErrorCode.group_id_not_found


async def test_offsets_of_a_deleted_topic_go_with_it(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.topic("orders")
        await node.find("simple")
        assert await commit(node, "simple", "", -1) is ErrorCode.none
        await node.call(ApiKey.DELETE_TOPICS, 4, topic_names=["orders"], timeout=5_000)
        while True:
            if not await fetch(node, "simple"):
                break
            await asyncio.sleep(0)
