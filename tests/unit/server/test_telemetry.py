"""KIP-714: who is asked for metrics, and which pushes are taken."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from chronik.metadata.commands import CLIENT_METRICS_RESOURCE
from chronik.model import ErrorCode, RequestError
from chronik.records.compression import Compression, compress
from chronik.security.quotas import REQUEST_SHARE
from chronik.server import telemetry as telemetry_module
from chronik.server.access import Everything
from chronik.server.otlp import PackedPoints
from chronik.server.telemetry import (
    PUSH_MS,
    PUSHES_AT_ONCE,
    READS_WAITING_MAX,
    TELEMETRY_BYTES_MAX,
    Telemetry,
)
from chronik.server.throttling import Cost, throttle
from chronik.wire.api import ApiKey
from tests.unit.server.live import Live, live

START_MS = 1_700_000_000_000
INTERVAL_MS = 60_000
NO_COST = Cost(ApiKey.PUSH_TELEMETRY, 0, 0, 0.0)
CLIENT = dict.fromkeys(
    ("client_id", "client_software_name", "client_software_version", "client_source_address"), "x"
) | {"client_source_port": "1"}


class Clock:
    def __init__(self) -> None:
        self.ms = START_MS

    def __call__(self) -> int:
        return self.ms


async def subscribe(node: Live, name: str, **configs: str) -> None:
    entries = [
        {"name": key.replace("_", "."), "config_operation": 0, "value": value}
        for key, value in {"interval_ms": str(INTERVAL_MS), **configs}.items()
    ]
    change = {"resource_type": CLIENT_METRICS_RESOURCE, "resource_name": name, "configs": entries}
    answer = await node.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[change], validate_only=False)
    assert answer.responses[0].error_code is ErrorCode.none


async def ask(node: Live, instance_id: UUID | None = None) -> Any:
    return await node.call(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, client_instance_id=instance_id)


async def push(node: Live, given: Any, data: bytes = b"metrics", codec: int = 0, **fields: Any) -> ErrorCode:
    values = {
        "client_instance_id": given.client_instance_id,
        "subscription_id": given.subscription_id,
        "terminating": False,
        "compression_type": codec,
        "metrics": data,
        **fields,
    }
    return ErrorCode((await node.call(ApiKey.PUSH_TELEMETRY, 0, **values)).error_code)


async def is_offered(node: Live) -> bool:
    answer = await node.call(
        ApiKey.API_VERSIONS, 3, client_software_name="tests", client_software_version="1.2"
    )
    keys = {one.api_key for one in answer.api_keys}
    return keys >= {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}


async def test_who_is_asked_for_what(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        assert not await is_offered(node)
        nothing = await ask(node)
        assert (nothing.requested_metrics, nothing.push_interval.total_seconds()) == ((), 300)
        await subscribe(node, "others", metrics="org.other", match="client_id=somebody")
        await subscribe(
            node, "one", metrics="org.b,org.a", match="client_id=test.*,client_software_name=tests"
        )
        await subscribe(node, "two", metrics="org.c", interval_ms="1000")
        assert await is_offered(node)
        found = await ask(node)
        assert found.requested_metrics == ("org.a", "org.b", "org.c")
        assert (found.push_interval.total_seconds(), found.telemetry_max_bytes) == (1, TELEMETRY_BYTES_MAX)
        assert found.client_instance_id not in (None, nothing.client_instance_id)
        await subscribe(node, "two", metrics="*")
        assert (await ask(node)).requested_metrics == ("*",)


async def test_a_changed_subscription_is_told_by_the_next_push(tmp_path: Path) -> None:
    async with live(tmp_path, now_ms=Clock()) as node:
        await subscribe(node, "one", metrics="org.a")
        given = await ask(node)
        await subscribe(node, "one", metrics="org.b")
        assert await push(node, given) is ErrorCode.unknown_subscription_id
        again = await ask(node, given.client_instance_id)  # at once, since its push was refused for that
        assert (again.error_code, again.requested_metrics) == (ErrorCode.none, ("org.b",))
        assert again.client_instance_id == given.client_instance_id
        assert await push(node, again) is ErrorCode.none


async def test_pushes_have_their_time(tmp_path: Path) -> None:
    clock = Clock()
    async with live(tmp_path, now_ms=clock) as node:
        await subscribe(node, "one", metrics="*")
        given = await ask(node)
        early = await ask(node, given.client_instance_id)
        assert early.error_code is ErrorCode.throttling_quota_exceeded
        assert await push(node, given) is ErrorCode.none
        assert await push(node, given) is ErrorCode.throttling_quota_exceeded
        clock.ms += INTERVAL_MS
        assert await push(node, given) is ErrorCode.none
        assert await push(node, given, terminating=True) is ErrorCode.none  # the last one may come early
        clock.ms += INTERVAL_MS
        assert await push(node, given) is ErrorCode.invalid_request
        telemetry = node.node.parts.services.telemetry
        assert telemetry.pushes[ErrorCode.none] == 3
        assert telemetry.pushes[ErrorCode.throttling_quota_exceeded] == 1
        assert telemetry.pushed_bytes == 3 * len(b"metrics")


@pytest.mark.parametrize("codec", list(Compression))
async def test_pushes_are_decompressed_within_a_limit(tmp_path: Path, codec: Compression) -> None:
    clock = Clock()
    async with live(tmp_path, now_ms=clock) as node:
        await subscribe(node, "one", metrics="*")
        assert await push(node, await ask(node), compress(codec, b"metrics" * 99), codec) is ErrorCode.none
        if codec is Compression.NONE:
            full = bytes(TELEMETRY_BYTES_MAX)
            clock.ms += PUSH_MS
            assert await push(node, await ask(node), full) is ErrorCode.none
            assert await push(node, await ask(node), full + b"x") is ErrorCode.telemetry_too_large
        else:
            assert await push(node, await ask(node), b"\xff" * 99, codec) is ErrorCode.invalid_record
            clock.ms += PUSH_MS
            bomb = compress(codec, bytes(9 * TELEMETRY_BYTES_MAX))
            assert len(bomb) < TELEMETRY_BYTES_MAX
            assert await push(node, await ask(node), bomb, codec) is ErrorCode.telemetry_too_large


async def test_what_no_client_sends_is_refused(tmp_path: Path) -> None:
    clock = Clock()
    async with live(tmp_path, now_ms=clock) as node:
        await subscribe(node, "one", metrics="*")
        given = await ask(node)
        assert await push(node, given, client_instance_id=None) is ErrorCode.invalid_request
        assert await push(node, given, client_instance_id=UUID(int=1)) is ErrorCode.invalid_request
        clock.ms += PUSH_MS
        assert await push(node, given, codec=9) is ErrorCode.unsupported_compression_type


async def test_nobody_pushes_what_nobody_asked_for(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        telemetry = node.node.parts.services.telemetry
        assert await push(node, await ask(node)) is ErrorCode.unknown_subscription_id
        assert (telemetry.recent(), telemetry.pushed_bytes) == ([], 0)


async def test_made_up_instances_push_no_more_than_one_connection_may(tmp_path: Path) -> None:
    clock = Clock()
    async with live(tmp_path, now_ms=clock) as node:
        await subscribe(node, "one", metrics="*")
        answers = [await push(node, await ask(node)) for _ in range(PUSHES_AT_ONCE + 5)]
        assert answers.count(ErrorCode.none) == PUSHES_AT_ONCE
        assert set(answers[PUSHES_AT_ONCE:]) == {ErrorCode.throttling_quota_exceeded}
        clock.ms += PUSH_MS
        answers = [await push(node, await ask(node)) for _ in range(3)]
        assert answers.count(ErrorCode.none) == 1
        clock.ms -= 3_600_000  # a clock that is set back keeps nobody out for an hour
        assert await push(node, await ask(node)) is ErrorCode.none


async def test_a_subscription_that_wants_pushes_sooner_gets_them(tmp_path: Path) -> None:
    clock = Clock()
    async with live(tmp_path, now_ms=clock) as node:
        await subscribe(node, "one", metrics="*", interval_ms="200")
        given = await ask(node)
        for _ in range(20):
            assert await push(node, given) is ErrorCode.none
            clock.ms += 200


async def test_pushes_are_read_one_at_a_time_and_are_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = threading.Semaphore(1)
    at_once = []

    def read(_codec: int, _data: bytes) -> PackedPoints:
        at_once.append(reading.acquire(blocking=False))
        threading.Event().wait(0.02)
        reading.release()
        return PackedPoints()

    monkeypatch.setattr(telemetry_module, "check_metrics", read)
    took: list[float] = []
    telemetry = Telemetry()
    results = await asyncio.gather(
        *(telemetry.read(0, b"", took.append) for _ in range(READS_WAITING_MAX + 3)), return_exceptions=True
    )
    refused = [one for one in results if isinstance(one, RequestError)]
    assert [one.code for one in refused] == [ErrorCode.throttling_quota_exceeded] * 3
    assert at_once == [True] * READS_WAITING_MAX
    assert len(took) == READS_WAITING_MAX
    assert min(took) >= 0.02


async def test_the_time_of_reading_counts_for_the_request_quota(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await subscribe(node, "one", metrics="*")
        quotas = node.node.parts.services.quotas
        quotas.change({(("user", None),): {REQUEST_SHARE: 0.000_001}})
        node.connection.access = Everything("User:ada", "10.0.0.9")
        given = await ask(node)
        assert throttle(quotas, "User:ada", "tester", NO_COST, 0.0) is None
        assert await push(node, given) is ErrorCode.none
        waits = throttle(quotas, "User:ada", "tester", NO_COST, asyncio.get_running_loop().time())
        assert waits is not None


def test_a_reserved_id_may_ask_as_in_apache_kafka_and_not_push() -> None:
    telemetry, reserved = Telemetry(), UUID(int=1)
    instance = telemetry.ask(reserved, CLIENT, now_ms=0)
    assert instance.instance_id == reserved
    with pytest.raises(RequestError) as refused:
        telemetry.admit(
            reserved,
            CLIENT,
            subscription_id=instance.subscription_id,
            is_terminating=False,
            codec=0,
            size=1,
            now_ms=1,
        )
    assert refused.value.code is ErrorCode.invalid_request


def test_instances_are_bounded() -> None:
    telemetry = Telemetry(instances_max=3)
    ids = [telemetry.ask(None, CLIENT, now_ms=0).instance_id for _ in range(5)]
    assert len(set(ids)) == 5
    assert len(telemetry) == 3
    telemetry.ask(ids[0], CLIENT, now_ms=0)  # was forgotten, and is not held to its interval
