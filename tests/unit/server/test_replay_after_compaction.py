"""Coordinators that start from a compacted log know what they knew before."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from chronik.groups.consumer_group import ConsumerGroup
from chronik.groups.coordinator import OFFSETS_TOPIC
from chronik.metadata.commands import TOPIC_RESOURCE, SetConfigs
from chronik.model import ErrorCode, TopicPartition
from chronik.transactions.coordinator import TRANSACTIONS_TOPIC
from chronik.wire.api import ApiKey
from tests.unit.server.live import Live, live
from tests.unit.server.test_bad_group_input import BEAT
from tests.unit.server.test_group_apis import commit, committing, join, stable, sync
from tests.unit.server.test_transaction_apis import add, end, init
from tests.unit.storage.test_compaction import close_segment

TOPICS = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)


async def compact(node: Live) -> int:
    """End every segment of the internal topics and compact; how many records went."""
    parts = node.node.parts
    for topic in TOPICS:
        # Tombstones go with the next compaction, so that what they delete must be gone by then.
        values = {"min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0"}
        await parts.metadata.submit(SetConfigs(resource_type=TOPIC_RESOURCE, name=topic, values=values))
    for partition in parts.replicas.all():
        if partition.tp.topic in TOPICS and partition.log_end_offset:
            await close_segment(parts.store, partition)
    before = parts.cleaner.stats.removed_records
    await parts.cleaner.compact()
    await parts.cleaner.compact()
    assert not parts.cleaner.stats.failing_partitions
    return parts.cleaner.stats.removed_records - before


def remembered(node: Live) -> dict[str, Any]:
    """Everything that the coordinators hold, without the times."""
    coordinators = node.node.parts.coordinators
    found: dict[str, Any] = {}
    for shard in coordinators.groups._shards:
        for group_id, group in shard.groups.items():
            if isinstance(group, ConsumerGroup):
                members = [
                    replace(member, deadline_ms=0, revoke_deadline_ms=None)
                    for _, member in sorted(group.members.items())
                ]
                found[group_id] = (group.epoch, group.assignment_epoch, members, group.target)
            else:
                found[group_id] = replace(group.saved(), state_since_ms=0)
        for group_id, offsets in shard.offsets.items():
            if not offsets.is_empty:
                tp = TopicPartition("orders", 0)
                plain = {key: value.offset for key, value in offsets}
                found[f"offsets of {group_id}"] = (plain, offsets.is_unstable(tp))
    for txn_shard in coordinators.transactions._shards:
        for name, txn in txn_shard.transactions.items():
            found[f"transaction {name}"] = txn.record
    return found


async def busy_classic_groups(node: Live) -> None:
    for group in ("stays", "goes"):
        member_id = await stable(node, group)
        for _ in range(20):
            assert await commit(node, group, member_id, 1) is ErrorCode.none
        if group == "goes":
            await node.call(ApiKey.LEAVE_GROUP, 2, group_id=group, member_id=member_id)
            gone = await node.call(ApiKey.DELETE_GROUPS, 1, groups_names=[group])
            assert gone.results[0].error_code is ErrorCode.none
    assert await commit(node, "simple", "", -1) is ErrorCode.none


async def busy_consumer_group(node: Live) -> None:
    """Members come, move partitions between them and go; then one stays."""
    epochs: dict[str, int] = {}

    async def beat(member_id: str, epoch: int | None = None, **fields: Any) -> Any:
        values = {**BEAT, "member_id": member_id, "group_id": "modern", **fields}
        values["member_epoch"] = epochs.get(member_id, 0) if epoch is None else epoch
        answer = await node.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **values)
        assert answer.error_code is ErrorCode.none
        epochs[member_id] = answer.member_epoch
        return answer

    for number in range(6):
        name = f"m{number}"
        await beat(name)
        for other in [one for one, epoch in epochs.items() if epoch > 0]:
            await beat(other)
        if number % 2:
            await beat(name, -1)
    answer = await node.call(ApiKey.OFFSET_COMMIT, 9, **committing("modern", "m0", epochs["m0"]))
    assert answer.topics[0].partitions[0].error_code is ErrorCode.none


async def busy_transactions(node: Live) -> None:
    """One id that was used often, one whose transaction is open, with offsets that wait for it."""
    used = (await init(node, "used")).producer_id
    for _ in range(5):
        assert await add(node, "used", used, 0) is ErrorCode.none
        while (await end(node, "used", used, 0)).error_code is not ErrorCode.none:
            pass
    opened = (await init(node, "open")).producer_id
    assert await add(node, "open", opened, 0) is ErrorCode.none
    added = await node.call(
        ApiKey.ADD_OFFSETS_TO_TXN,
        3,
        transactional_id="open",
        producer_id=opened,
        producer_epoch=0,
        group_id="simple",
    )
    assert added.error_code is ErrorCode.none
    pending = await node.call(
        ApiKey.TXN_OFFSET_COMMIT,
        3,
        transactional_id="open",
        group_id="simple",
        producer_id=opened,
        producer_epoch=0,
        generation_id=-1,
        member_id="",
        topics=committing("simple", "", 0)["topics"],
    )
    assert pending.topics[0].partitions[0].error_code is ErrorCode.none


def test_coordinators_know_after_compaction_what_they_knew_before(tmp_path: Path) -> None:
    async def before() -> dict[str, Any]:
        async with live(tmp_path) as node:
            await node.topic("orders", 4)
            for key in ("stays", "goes", "simple", "modern"):
                await node.find(key)
            for key in ("used", "open"):
                await node.find(key, key_type=1)
            await busy_classic_groups(node)
            await busy_consumer_group(node)
            assert await compact(node) > 40
            await busy_transactions(node)
            assert await compact(node) > 10
            return remembered(node)

    async def after() -> dict[str, Any]:
        async with live(tmp_path) as node:
            coordinators = node.node.parts.coordinators
            for key in ("stays", "simple", "modern"):
                await coordinators.groups.describe(key)  # waits for the replay
            for key in ("used", "open"):
                await coordinators.transactions.describe(key)
            found = remembered(node)
            member_id = next(iter(found["stays"].members)).member_id
            assert bytes((await sync(node, "stays", member_id, 1)).assignment) == b"mine"
            assert (await join(node, "goes", member_id)).error_code is ErrorCode.unknown_member_id
            return found

    knew, knows = asyncio.run(before()), asyncio.run(after())
    assert {"stays", "modern", "offsets of simple", "transaction open"} <= knew.keys()
    assert "goes" not in knew
    assert knew["offsets of simple"][1], "the open transaction's offsets are pending"
    assert knows == knew
