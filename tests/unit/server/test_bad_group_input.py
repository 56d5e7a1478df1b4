"""What groups and transactions refuse, each with the error that clients of Kafka know how to handle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chronik.model import ErrorCode
from chronik.wire.api import ApiKey
from tests.unit.server.live import live
from tests.unit.server.test_group_apis import committing, join, stable
from tests.unit.server.test_transaction_apis import init

BEAT = {
    "member_id": "m",
    "member_epoch": 0,
    "rebalance_timeout": 10_000,
    "subscribed_topic_names": ["orders"],
    "topic_partitions": [],
}


async def test_classic_members_with_wrong_ids_generations_and_times(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.topic("orders")
        member_id = await stable(node, "g")

        async def code(api: ApiKey, version: int, **fields: Any) -> ErrorCode:
            return ErrorCode((await node.call(api, version, group_id="g", **fields)).error_code)

        for api, version, extra in (
            (ApiKey.HEARTBEAT, 4, {}),
            (ApiKey.SYNC_GROUP, 5, {"assignments": []}),
        ):

            async def ask(
                member: str,
                generation: int,
                instance: str | None = None,
                api: ApiKey = api,
                version: int = version,
                extra: dict[str, Any] = extra,
            ) -> ErrorCode:
                return await code(
                    api,
                    version,
                    member_id=member,
                    generation_id=generation,
                    group_instance_id=instance,
                    **extra,
                )

            assert await ask(member_id, 1) is ErrorCode.none
            assert await ask(member_id, 2) is ErrorCode.illegal_generation
            assert await ask("nobody", 1) is ErrorCode.unknown_member_id
            assert await ask(member_id, 1, "no-such-instance") is ErrorCode.unknown_member_id
        other = await code(
            ApiKey.SYNC_GROUP,
            5,
            member_id=member_id,
            generation_id=1,
            protocol_type="connect",
            protocol_name="range",
            assignments=[],
        )
        assert other is ErrorCode.inconsistent_group_protocol
        for timeout in (5_999, 1_800_001):
            refused = await node.call(
                ApiKey.JOIN_GROUP,
                9,
                group_id="g",
                session_timeout=timeout,
                rebalance_timeout=10_000,
                member_id="",
                protocol_type="consumer",
                protocols=[{"name": "range", "metadata": b""}],
            )
            assert refused.error_code is ErrorCode.invalid_session_timeout
        left = await node.call(ApiKey.LEAVE_GROUP, 5, group_id="none", members=[{"member_id": member_id}])
        assert left.members[0].error_code is ErrorCode.unknown_member_id


async def test_a_static_member_that_was_replaced_is_fenced(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.topic("orders")
        await node.find("g")
        old = await join(node, "g", version=5, group_instance_id="one")
        await node.call(
            ApiKey.SYNC_GROUP,
            3,
            group_id="g",
            generation_id=1,
            member_id=old.member_id,
            group_instance_id="one",
            assignments=[{"member_id": old.member_id, "assignment": b"mine"}],
        )
        await join(node, "g", version=5, group_instance_id="one")
        beat = await node.call(
            ApiKey.HEARTBEAT,
            4,
            group_id="g",
            generation_id=1,
            member_id=old.member_id,
            group_instance_id="one",
        )
        assert beat.error_code is ErrorCode.fenced_instance_id
        answer = await node.call(
            ApiKey.OFFSET_COMMIT, 8, **committing("g", old.member_id, 1), group_instance_id="one"
        )
        assert answer.topics[0].partitions[0].error_code is ErrorCode.fenced_instance_id


async def test_members_of_the_new_protocol_with_wrong_ids_and_epochs(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.topic("orders", 2)
        await node.find("g")

        async def beat(**changes: Any) -> ErrorCode:
            fields = {**BEAT, "group_id": "g", **changes}
            answer = await node.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **fields)
            return ErrorCode(answer.error_code)

        assert await beat(member_epoch=1) is ErrorCode.group_id_not_found
        assert await beat() is ErrorCode.none
        assert await beat(member_epoch=9) is ErrorCode.fenced_member_epoch
        assert await beat(member_id="nobody", member_epoch=1) is ErrorCode.unknown_member_id
        assert await beat(member_id="nobody", member_epoch=-1) is ErrorCode.unknown_member_id
        assert await beat(member_epoch=-3) is ErrorCode.invalid_request
        assert await beat(member_epoch=-2) is ErrorCode.invalid_request  # not a static member
        assert await beat(member_id="n", server_assignor="best") is ErrorCode.unsupported_assignor
        assert await beat(member_id="n", rebalance_timeout=-1) is ErrorCode.invalid_request
        bad = await beat(member_id="n", subscribed_topic_regex="(", subscribed_topic_names=None)
        assert bad is ErrorCode.invalid_regular_expression
        assert await beat(member_id="s", instance_id="one") is ErrorCode.none
        assert await beat(member_id="t", instance_id="one") is ErrorCode.unreleased_instance_id
        fenced = await beat(member_id="t", instance_id="one", member_epoch=2)
        assert fenced is ErrorCode.fenced_instance_id


async def test_offsets_of_the_new_protocol_are_read_by_present_members_alone(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.topic("orders")
        await node.find("g")
        joined = await node.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, group_id="g", **BEAT)
        assert joined.error_code is ErrorCode.none

        async def fetch(member_id: str, epoch: int) -> ErrorCode:
            group = {"group_id": "g", "member_id": member_id, "member_epoch": epoch, "topics": None}
            answer = await node.call(ApiKey.OFFSET_FETCH, 9, groups=[group], require_stable=True)
            return ErrorCode(answer.groups[0].error_code)

        assert await fetch("m", 1) is ErrorCode.none
        assert await fetch("m", 7) is ErrorCode.stale_member_epoch
        assert await fetch("nobody", 1) is ErrorCode.unknown_member_id


async def test_classic_members_may_say_who_they_are_when_they_fetch_offsets(tmp_path: Path) -> None:
    """franz-go does, from OffsetFetch v9 on. Kafka looks at these fields in KIP-848 groups alone."""
    async with live(tmp_path) as node:
        await node.topic("orders")
        member_id = await stable(node, "g")
        answer = await node.call(ApiKey.OFFSET_COMMIT, 9, **committing("g", member_id, 1))
        assert answer.topics[0].partitions[0].error_code is ErrorCode.none
        for version in (9, 10):
            for member, epoch in ((member_id, 1), (member_id, 7), ("nobody", 1), (None, -1)):
                group = {"group_id": "g", "member_id": member, "member_epoch": epoch, "topics": None}
                answer = await node.call(ApiKey.OFFSET_FETCH, version, groups=[group], require_stable=True)
                assert answer.groups[0].error_code is ErrorCode.none
                assert answer.groups[0].topics[0].partitions[0].committed_offset == 5


async def test_commits_to_a_group_that_is_gone(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.topic("orders")
        await node.find("gone")
        for version, code in ((8, ErrorCode.illegal_generation), (9, ErrorCode.group_id_not_found)):
            answer = await node.call(ApiKey.OFFSET_COMMIT, version, **committing("gone", "m", 1))
            assert answer.topics[0].partitions[0].error_code is code


async def test_static_members_of_the_new_protocol_leave_by_their_instance_id(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.topic("orders")
        await node.find("g")
        joined = await node.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, group_id="g", instance_id="one", **BEAT)
        assert joined.error_code is ErrorCode.none
        for member_id, instance_id, code in (
            ("m", "two", ErrorCode.unknown_member_id),
            ("other", "one", ErrorCode.fenced_instance_id),
            ("", "one", ErrorCode.none),
            ("m", None, ErrorCode.unknown_member_id),
        ):
            leaving = [{"member_id": member_id, "group_instance_id": instance_id, "reason": None}]
            answer = await node.call(ApiKey.LEAVE_GROUP, 5, group_id="g", members=leaving)
            assert answer.members[0].error_code is code


async def test_transactional_commits_by_the_wrong_producer_or_member(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.topic("orders")
        member_id = await stable(node, "g")
        await node.find("tx", key_type=1)
        mine = (await init(node, "tx")).producer_id

        async def add(producer_id: int, epoch: int) -> ErrorCode:
            answer = await node.call(
                ApiKey.ADD_OFFSETS_TO_TXN,
                3,
                transactional_id="tx",
                producer_id=producer_id,
                producer_epoch=epoch,
                group_id="g",
            )
            return ErrorCode(answer.error_code)

        async def commit(**changes: Any) -> ErrorCode:
            fields = {
                "transactional_id": "tx",
                "group_id": "g",
                "producer_id": mine,
                "producer_epoch": 0,
                "generation_id": 1,
                "member_id": member_id,
                "topics": committing("g", "", 0, metadata=changes.pop("metadata", ""))["topics"],
            }
            answer = await node.call(ApiKey.TXN_OFFSET_COMMIT, 3, **{**fields, **changes})
            return ErrorCode(answer.topics[0].partitions[0].error_code)

        assert await add(mine + 1, 0) is ErrorCode.invalid_producer_id_mapping
        assert await add(mine, 3) is ErrorCode.producer_fenced
        assert await add(mine, 0) is ErrorCode.none
        assert await commit() is ErrorCode.none
        assert await commit(generation_id=2) is ErrorCode.illegal_generation
        assert await commit(member_id="nobody") is ErrorCode.unknown_member_id
        assert await commit(group_id="") is ErrorCode.invalid_group_id
        assert await commit(metadata="x" * 4097) is ErrorCode.offset_metadata_too_large
        assert await commit(producer_id=mine + 1) is ErrorCode.invalid_producer_id_mapping
        assert await commit(producer_epoch=3) is ErrorCode.invalid_producer_epoch
        group = {"group_id": "g", "topics": [{"name": "orders", "partition_indexes": [0]}]}
        pending = await node.call(ApiKey.OFFSET_FETCH, 8, groups=[group], require_stable=True)
        (partition,) = pending.groups[0].topics[0].partitions
        assert partition.error_code is ErrorCode.unstable_offset_commit


@pytest.mark.parametrize(
    ("api_key", "version", "fields"),
    [
        (ApiKey.INIT_PRODUCER_ID, 4, {"transactional_id": "x" * 50_000, "transaction_timeout": 10_000}),
        (ApiKey.HEARTBEAT, 4, {"group_id": "x" * 50_000, "generation_id": 1, "member_id": "m"}),
    ],
)
async def test_an_id_that_no_record_can_hold_is_refused(
    tmp_path: Path, api_key: ApiKey, version: int, fields: dict[str, Any]
) -> None:
    async with live(tmp_path) as node:
        assert (await node.call(api_key, version, **fields)).error_code is ErrorCode.invalid_request
