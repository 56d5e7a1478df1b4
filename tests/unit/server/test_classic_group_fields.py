"""Fields that newer versions added to the calls of classic groups, asked with a stable group's member.

docs/PROTOCOL.md says in words what is tested here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chronik.model import ErrorCode
from chronik.wire.api import ApiKey
from tests.unit.server.live import Live, live
from tests.unit.server.test_group_apis import commit, committing, join, stable, sync
from tests.unit.server.test_produce_order import identity

NOBODY = "nobody"


async def static(node: Live, group: str, instance_id: str) -> str:
    """The only member of a group, which keeps its place over restarts (KIP-345); its id."""
    await node.find(group)
    joined = await join(node, group, version=5, group_instance_id=instance_id)
    assert joined.error_code is ErrorCode.none
    mine = [{"member_id": joined.member_id, "assignment": b"mine"}]
    assert (await sync(node, group, joined.member_id, 1, mine)).error_code is ErrorCode.none
    return str(joined.member_id)


async def fetch(node: Live, version: int, member_id: str | None, member_epoch: int) -> list[int]:
    """What the group committed; whoever asks."""
    asked = {"group_id": "g", "member_id": member_id, "member_epoch": member_epoch, "topics": None}
    answer = await node.call(ApiKey.OFFSET_FETCH, version, groups=[asked], require_stable=True)
    (group,) = answer.groups
    assert group.error_code is ErrorCode.none
    return [one.committed_offset for topic in group.topics for one in topic.partitions]


@pytest.mark.parametrize("version", [9, 10])
async def test_offset_fetch_does_not_look_at_the_member_of_a_classic_group(
    tmp_path: Path, version: int
) -> None:
    """franz-go sends its member id and its generation as the epoch; others send nothing."""
    async with live(tmp_path) as node:
        await node.topic("orders")
        member_id = await stable(node, "g")
        assert await commit(node, "g", member_id, 1) is ErrorCode.none
        for member, epoch in ((member_id, 1), (member_id, 7), (NOBODY, 1), (None, -1), ("", 0)):
            assert await fetch(node, version, member, epoch) == [5]


async def committed(node: Live, version: int, **changed: Any) -> ErrorCode:
    fields = {**committing("g", "", 1), "group_instance_id": None, **changed}
    answer = await node.call(ApiKey.OFFSET_COMMIT, version, **fields)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


@pytest.mark.parametrize("version", [8, 9])
async def test_offset_commit_takes_the_generation_for_a_member_epoch_only_in_new_groups(
    tmp_path: Path, version: int
) -> None:
    async with live(tmp_path) as node:
        await node.topic("orders")
        member_id = await static(node, "g", "one")
        known = {"member_id": member_id, "group_instance_id": "one"}
        assert await committed(node, version, **known) is ErrorCode.none
        stale = await committed(node, version, **known, generation_id_or_member_epoch=2)
        assert stale is ErrorCode.illegal_generation, "STALE_MEMBER_EPOCH is for KIP-848 groups"
        other = await committed(node, version, member_id=NOBODY, group_instance_id="one")
        assert other is ErrorCode.fenced_instance_id
        unknown = await committed(node, version, member_id=member_id, group_instance_id="two")
        assert unknown is ErrorCode.unknown_member_id
        none = await committed(node, version, group_id="none", member_id=member_id)
        assert none is (ErrorCode.group_id_not_found if version >= 9 else ErrorCode.illegal_generation)


async def test_txn_offset_commit_checks_the_member_that_it_names(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.topic("orders")
        member_id = await static(node, "g", "one")
        await node.find("billing", key_type=1)
        producer = await identity(node, "billing")

        async def code_of(**changed: Any) -> ErrorCode:
            fields = committing("g", "", -1)
            del fields["generation_id_or_member_epoch"]
            fields |= {"generation_id": 1, "member_id": member_id, "group_instance_id": None, **changed}
            answer = await node.call(
                ApiKey.TXN_OFFSET_COMMIT, 5, transactional_id="billing", **producer, **fields
            )
            return ErrorCode(answer.topics[0].partitions[0].error_code)

        assert await code_of() is ErrorCode.none
        assert await code_of(generation_id=-1, member_id="") is ErrorCode.none, "as versions before 3 do"
        assert await code_of(generation_id=2) is ErrorCode.illegal_generation
        assert await code_of(member_id=NOBODY) is ErrorCode.unknown_member_id
        assert await code_of(member_id=NOBODY, group_instance_id="one") is ErrorCode.fenced_instance_id


async def test_heartbeat_and_sync_check_the_instance_and_the_protocol(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        member_id = await static(node, "g", "one")
        for member, instance, code in (
            (member_id, "one", ErrorCode.none),
            (member_id, None, ErrorCode.none),
            (NOBODY, "one", ErrorCode.fenced_instance_id),
            (member_id, "two", ErrorCode.unknown_member_id),
        ):
            shared = {"group_id": "g", "generation_id": 1, "member_id": member, "group_instance_id": instance}
            beat = await node.call(ApiKey.HEARTBEAT, 4, **shared)
            assert beat.error_code is code
            synced = await node.call(ApiKey.SYNC_GROUP, 5, **shared, assignments=[])
            assert synced.error_code is code
        for kind, name, code in (
            ("consumer", "range", ErrorCode.none),
            ("connect", "range", ErrorCode.inconsistent_group_protocol),
            ("consumer", "sticky", ErrorCode.inconsistent_group_protocol),
        ):
            mine = {"group_id": "g", "generation_id": 1, "member_id": member_id, "assignments": []}
            synced = await node.call(ApiKey.SYNC_GROUP, 5, **mine, protocol_type=kind, protocol_name=name)
            assert synced.error_code is code
            if code is ErrorCode.none:
                assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")


async def test_reasons_are_taken_and_members_leave_by_instance(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        member_id = await static(node, "g", "one")
        other = await join(node, "g", NOBODY, version=9, group_instance_id="one")
        assert other.error_code is ErrorCode.fenced_instance_id
        again = await join(node, "g", member_id, version=9, group_instance_id="one", reason="a restart")
        assert again.error_code is ErrorCode.none
        leaving = [
            {"member_id": "", "group_instance_id": "two", "reason": "a guess"},
            {"member_id": NOBODY, "group_instance_id": "one", "reason": "another guess"},
            {"member_id": "", "group_instance_id": "one", "reason": "it is over"},
        ]
        left = await node.call(ApiKey.LEAVE_GROUP, 5, group_id="g", members=leaving)
        assert left.error_code is ErrorCode.none
        assert [one.error_code for one in left.members] == [
            ErrorCode.unknown_member_id,
            ErrorCode.fenced_instance_id,
            ErrorCode.none,
        ]
