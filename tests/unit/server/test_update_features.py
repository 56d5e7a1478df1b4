"""UpdateFeatures: when the cluster's level may change, and what is said when it may not."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from chronik.metadata.commands import Endpoint, RegisterBroker
from chronik.metadata.levels import FEATURE, LEVEL_FIRST, LEVEL_LAST
from chronik.model import ErrorCode
from chronik.server.dispatch import Dispatcher
from chronik.server.handlers import all_handlers
from chronik.wire.api import ApiKey
from tests.unit.server.live import Live, live

UPGRADE, SAFE, UNSAFE = 1, 2, 3


async def update(node: Live, level: int, how: int = UPGRADE, **fields: Any) -> tuple[ErrorCode, str]:
    wanted = [{"feature": FEATURE, "max_version_level": level, "upgrade_type": how}]
    answer = await node.call(
        ApiKey.UPDATE_FEATURES, 2, **{"feature_updates": wanted, "timeout": 5_000, **fields}
    )
    return ErrorCode(answer.error_code), answer.error_message or ""


async def test_a_new_cluster_is_at_the_last_level_and_stays_there(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        state = node.node.parts.metadata.state
        assert state.level == LEVEL_LAST
        answer = await node.call(
            ApiKey.API_VERSIONS, 4, client_software_name="x", client_software_version="1"
        )
        told = {one.name: (one.min_version, one.max_version) for one in answer.supported_features}
        assert told[FEATURE] == (LEVEL_FIRST, LEVEL_LAST)
        assert {one.name: one.max_version_level for one in answer.finalized_features}[FEATURE] == LEVEL_LAST
        assert await update(node, LEVEL_LAST) == (ErrorCode.none, "")
    async with live(tmp_path) as node:
        assert node.node.parts.metadata.state.level == LEVEL_LAST


@pytest.mark.parametrize(
    ("level", "how", "why"),
    [
        (LEVEL_LAST + 1, UPGRADE, f"only supports versions {LEVEL_FIRST}-{LEVEL_LAST}"),
        (LEVEL_LAST + 1, SAFE, "Can't downgrade to a newer version."),
        (LEVEL_FIRST, UPGRADE, "Can't downgrade the version of this feature without"),
        (LEVEL_FIRST, SAFE, "does not go back"),
        (LEVEL_FIRST, UNSAFE, "does not go back"),
        (LEVEL_LAST, 9, "does not support the given upgrade type"),
        (-1, SAFE, "cannot be less than 0"),
    ],
)
async def test_what_cannot_be_is_refused(tmp_path: Path, level: int, how: int, why: str) -> None:
    async with live(tmp_path) as node:
        code, told = await update(node, level, how)
        assert code is ErrorCode.invalid_update_version
        assert why in told
        assert told.startswith(f"Invalid update version {level} for feature {FEATURE}. ")


async def test_the_level_goes_up_only_when_every_node_knows_it(tmp_path: Path) -> None:
    """As in a cluster that release 0.1 founded: its level is the first."""
    async with live(tmp_path) as node:
        parts = node.node.parts
        state = parts.metadata.state
        state.level = LEVEL_FIRST
        await parts.metadata.submit(
            RegisterBroker(
                broker_id=9,
                incarnation=parts.services.new_uuid(),
                endpoints={"kafka": Endpoint(host="127.0.0.1", port=1)},
                fenced=True,
            )
        )
        levels = {1: (LEVEL_FIRST, LEVEL_LAST)}

        async def levels_of(node_id: int) -> tuple[int, int] | None:
            return levels.get(node_id)

        services = dataclasses.replace(parts.services, levels_of=levels_of)
        parts.dispatcher = Dispatcher(all_handlers(), services)

        code, told = await update(node, LEVEL_LAST)
        assert code is ErrorCode.invalid_update_version
        assert "Broker 9 cannot be asked what it supports: start it, or remove it first." in told
        levels[9] = (LEVEL_FIRST, LEVEL_FIRST)
        code, told = await update(node, LEVEL_LAST)
        assert code is ErrorCode.invalid_update_version
        assert f"Broker 9 only supports versions {LEVEL_FIRST}-{LEVEL_FIRST}." in told
        levels[9] = (LEVEL_FIRST, LEVEL_LAST)
        assert await update(node, LEVEL_LAST, validate_only=True) == (ErrorCode.none, "")
        assert state.level == LEVEL_FIRST
        assert await update(node, LEVEL_LAST) == (ErrorCode.none, "")
        assert state.level == LEVEL_LAST
