"""What members make a coordinator remember: bounded per member and for all groups together."""

from __future__ import annotations

from pathlib import Path

from chronik.client_state import Share
from chronik.groups.coordinator import GroupCoordinator
from chronik.model import ErrorCode
from chronik.wire.api import ApiKey
from tests.unit.server.live import Live, live
from tests.unit.server.test_bad_group_input import BEAT
from tests.unit.server.test_group_apis import PROTOCOLS, join, stable, sync

MIB = 1024 * 1024


def coordinator(node: Live) -> GroupCoordinator:
    return node.node.parts.services.groups


def held(node: Live) -> Share:
    return node.node.parts.client_state.groups


def sized(size_bytes: int) -> list[dict[str, object]]:
    return [{"name": "range", "metadata": b"x" * size_bytes}]


async def test_a_huge_subscription_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    """Three JoinGroups of 40 MiB and closed sockets once left 186 MiB for half an hour."""
    async with live(tmp_path) as node:
        await node.find("g")
        for number in range(3):
            answer = await join(node, f"g{number}", protocols=sized(40 * MIB))
            assert answer.error_code is ErrorCode.invalid_request
        assert held(node).held_bytes == 0
        assert coordinator(node).list() == []


async def test_a_huge_assignment_is_refused(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.find("g")
        joined = await join(node, "g")
        mine = [{"member_id": joined.member_id, "assignment": b"x" * (2 * MIB)}]
        answer = await sync(node, "g", joined.member_id, joined.generation_id, mine)
        assert answer.error_code is ErrorCode.invalid_request
        assert held(node).held_bytes < 10_000


async def test_a_huge_list_of_topics_is_refused(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.find("g")
        names = [f"topic-{number}" for number in range(50_000)]
        fields = {**BEAT, "group_id": "g", "subscribed_topic_names": names}
        answer = await node.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **fields)
        assert answer.error_code is ErrorCode.invalid_request
        assert held(node).held_bytes == 0


async def test_all_groups_share_one_budget(tmp_path: Path) -> None:
    async with live(tmp_path, client_state_bytes_max=12 * MIB) as node:
        member_id = await stable(node, "mine")
        groups = coordinator(node)
        empty = held(node).held_bytes
        taken = []
        for number in range(5):
            answer = await join(node, f"g{number}", protocols=sized(MIB - 100))
            taken.append(answer.error_code)
        assert taken == [ErrorCode.none] * 2 + [ErrorCode.coordinator_not_available] * 3
        assert held(node).refused == 3
        assert 2 * MIB < held(node).held_bytes < 3 * MIB
        # Those who are in already go on.
        beat = await node.call(ApiKey.HEARTBEAT, 4, group_id="mine", generation_id=1, member_id=member_id)
        assert beat.error_code is ErrorCode.none
        assert (await join(node, "small", protocols=PROTOCOLS)).error_code is ErrorCode.none
        for number in range(2):
            (member,) = (await groups.describe(f"g{number}")).members
            leaving = [{"member_id": member, "group_instance_id": None, "reason": None}]
            await node.call(ApiKey.LEAVE_GROUP, 5, group_id=f"g{number}", members=leaving)
        assert held(node).held_bytes < empty + 10_000
        assert (await join(node, "g9", protocols=sized(MIB - 100))).error_code is ErrorCode.none


async def test_groups_in_which_nobody_ever_was_are_dropped(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.find("g")
        for number in range(20):
            refused = await join(node, f"g{number}", protocols=[])
            assert refused.error_code is ErrorCode.inconsistent_group_protocol
        given = await join(node, "g", version=4)
        assert given.error_code is ErrorCode.member_id_required
        assert [group.group_id for group in coordinator(node).list()] == ["g"]
        leaving = [{"member_id": given.member_id, "group_instance_id": None, "reason": None}]
        await node.call(ApiKey.LEAVE_GROUP, 5, group_id="g", members=leaving)
        assert coordinator(node).list() == []
        assert held(node).held_bytes == 0
