"""What nobody uses is forgotten, by intervals that are changed while the node runs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from chronik.metadata.commands import BROKER_RESOURCE, SetConfigs
from chronik.model import ErrorCode
from chronik.wire.api import ApiKey
from tests.unit.server.live import Live, live
from tests.unit.server.test_group_apis import commit, fetch, stable
from tests.unit.server.test_transaction_apis import init

CHANGES = {
    "offsets.retention.minutes": "5",
    "offsets.retention.check.interval.ms": "10",
    "transactional.id.expiration.ms": "300000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "10",
}


async def transactional_ids(node: Live) -> list[str]:
    listed = await node.call(ApiKey.LIST_TRANSACTIONS, 0)
    return sorted(one.transactional_id for one in listed.transaction_states)


async def test_what_is_not_used_expires(tmp_path: Path) -> None:
    late_ms = 0

    def now_ms() -> int:
        return time.time_ns() // 1_000_000 + late_ms

    async with live(tmp_path, now_ms=now_ms) as node:
        await node.topic("orders")
        member_id = await stable(node, "used")
        assert await commit(node, "used", member_id, 1) is ErrorCode.none
        await node.find("unused")
        assert await commit(node, "unused", "", -1) is ErrorCode.none
        await node.find("tx", key_type=1)
        assert (await init(node, "tx")).error_code is ErrorCode.none
        change = SetConfigs(resource_type=BROKER_RESOURCE, name="", values=dict(CHANGES))
        await node.node.parts.metadata.submit(change)
        late_ms = 6 * 60_000
        async with asyncio.timeout(45):
            while await fetch(node, "unused") or await transactional_ids(node):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await fetch(node, "used") == [("orders", 0, 5)], "a group with members keeps its offsets"
