"""The transaction APIs on a whole node: identities, fencing, outcomes, across restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from chronik.model import ErrorCode, TopicPartition
from chronik.wire.api import ApiKey
from tests.unit.server.live import Live, live


async def init(node: Live, name: str | None, version: int = 4, **fields: Any) -> Any:
    values = {"producer_id": -1, "producer_epoch": -1, **fields}
    return await node.call(
        ApiKey.INIT_PRODUCER_ID, version, transactional_id=name, transaction_timeout=60_000, **values
    )


async def add(
    node: Live, name: str, producer_id: int, epoch: int, topic: str = "orders", version: int = 3
) -> Any:
    answer = await node.call(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        version,
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[{"name": topic, "partitions": [0]}],
    )
    return answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code


async def end(
    node: Live, name: str, producer_id: int, epoch: int, version: int = 4, commit: bool = True
) -> Any:
    return await node.call(
        ApiKey.END_TXN,
        version,
        transactional_id=name,
        producer_id=producer_id,
        producer_epoch=epoch,
        committed=commit,
    )


def test_producer_ids_are_never_given_twice(tmp_path: Path) -> None:
    async def take() -> set[int]:
        async with live(tmp_path) as node:
            answers = await asyncio.gather(*(init(node, None) for _ in range(50)))
            assert {answer.error_code for answer in answers} == {ErrorCode.none}
            assert {answer.producer_epoch for answer in answers} == {0}
            return {answer.producer_id for answer in answers}

    first, second = asyncio.run(take()), asyncio.run(take())
    assert len(first) == len(second) == 50
    assert not first & second


async def test_refusals(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.topic("orders")
        await node.find("tx", key_type=1)
        got = await init(node, "tx")
        assert (got.error_code, got.producer_epoch) == (ErrorCode.none, 0)
        mine = got.producer_id
        assert await add(node, "none", mine, 0) is ErrorCode.invalid_producer_id_mapping
        assert await add(node, "tx", mine + 1, 0) is ErrorCode.invalid_producer_id_mapping
        assert await add(node, "tx", mine, 5) is ErrorCode.producer_fenced
        assert await add(node, "tx", mine, 5, version=1) is ErrorCode.invalid_producer_epoch
        assert await add(node, "tx", mine, 0, topic="x") is ErrorCode.unknown_topic_or_partition
        assert (await end(node, "tx", mine, 0)).error_code is ErrorCode.invalid_txn_state
        assert await add(node, "tx", mine, 0) is ErrorCode.none
        assert (await end(node, "tx", mine, 1)).error_code is ErrorCode.producer_fenced
        assert (await end(node, "tx", mine, 0)).error_code is ErrorCode.none
        assert (await end(node, "tx", mine, 0)).error_code is ErrorCode.none  # a retry
        again = await end(node, "tx", mine, 0, commit=False)
        assert again.error_code is ErrorCode.invalid_txn_state
        fenced = await init(node, "tx", producer_id=mine + 7, producer_epoch=0)
        assert fenced.error_code is ErrorCode.producer_fenced
        old = await init(node, "tx", version=3, producer_id=mine + 7, producer_epoch=0)
        assert old.error_code is ErrorCode.invalid_producer_epoch
        assert (await init(node, "")).error_code is ErrorCode.invalid_request
        late = await node.call(ApiKey.INIT_PRODUCER_ID, 1, transactional_id="tx", transaction_timeout=10**9)
        assert late.error_code is ErrorCode.invalid_transaction_timeout


async def test_an_id_without_a_transaction_is_older_than_any_duration(tmp_path: Path) -> None:
    """As in Kafka, which takes -1 for the start of what has not started."""
    async with live(tmp_path) as node:
        await node.topic("orders")
        await node.find("tx", key_type=1)
        await init(node, "idle")
        got = await init(node, "busy")
        assert await add(node, "busy", got.producer_id, got.producer_epoch) is ErrorCode.none
        for duration_ms, found in ((-1, {"idle", "busy"}), (3_600_000, {"idle"})):
            answer = await node.call(
                ApiKey.LIST_TRANSACTIONS,
                1,
                state_filters=[],
                producer_id_filters=[],
                duration_filter=duration_ms,
            )
            assert {one.transactional_id for one in answer.transaction_states} == found


def test_a_transaction_is_finished_by_the_next_start(tmp_path: Path) -> None:
    """Prepared, then the node was gone before its markers were: they are written when it is back."""

    async def before() -> int:
        async with live(tmp_path) as node:
            await node.topic("orders")
            await node.find("tx", key_type=1)
            mine = (await init(node, "tx")).producer_id
            await add(node, "tx", mine, 0)
            markers = node.node.parts.services.transactions.markers

            async def never(*args: object) -> None:
                await asyncio.Event().wait()

            markers.write_all = never  # type: ignore[method-assign, assignment]
            assert (await end(node, "tx", mine, 0)).error_code is ErrorCode.none
            assert (await end(node, "tx", mine, 0)).error_code is ErrorCode.concurrent_transactions
            assert await add(node, "tx", mine, 0) is ErrorCode.concurrent_transactions
            return int(mine)

    async def after(mine: int) -> None:
        async with live(tmp_path) as node:
            while True:
                answer = await end(node, "tx", mine, 0)
                if answer.error_code is ErrorCode.none:
                    break
                assert answer.error_code is ErrorCode.concurrent_transactions
                await asyncio.sleep(0)
            partition = node.node.parts.replicas.get(TopicPartition("orders", 0))
            assert partition is not None
            assert partition.log_end_offset == 1  # the marker
            described = await node.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["tx", "none"])
            states = [(one.error_code, one.transaction_state) for one in described.transaction_states]
            assert states[0] == (ErrorCode.none, "CompleteCommit")
            assert states[1][0] is ErrorCode.transactional_id_not_found

    asyncio.run(after(asyncio.run(before())))


async def test_brokers_add_and_verify_in_batches(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.topic("orders")
        await node.find("tx", key_type=1)
        mine = (await init(node, "tx")).producer_id

        async def ask(verify_only: bool) -> ErrorCode:
            answer = await node.call(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                5,
                transactions=[
                    {
                        "transactional_id": "tx",
                        "producer_id": mine,
                        "producer_epoch": 0,
                        "verify_only": verify_only,
                        "topics": [{"name": "orders", "partitions": [0]}],
                    }
                ],
            )
            result = answer.results_by_transaction[0].topic_results[0].results_by_partition[0]
            return ErrorCode(result.partition_error_code)

        assert await ask(verify_only=True) is ErrorCode.transaction_abortable
        assert await ask(verify_only=False) is ErrorCode.none
        assert await ask(verify_only=True) is ErrorCode.none
        ended = await end(node, "tx", mine, 0, version=5)
        assert (ended.error_code, ended.producer_epoch) == (ErrorCode.none, 1)
        listed = await node.call(
            ApiKey.LIST_TRANSACTIONS,
            2,
            state_filters=["CompleteCommit", "Sleeping"],
            transactional_id_pattern="t.",
        )
        assert list(listed.unknown_state_filters) == ["Sleeping"]
        assert [one.transactional_id for one in listed.transaction_states] == ["tx"]
