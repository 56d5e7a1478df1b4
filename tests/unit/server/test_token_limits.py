"""Delegation tokens make room: expired ones go by themselves, and nobody can take the room of all."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chronik.cluster import controller
from chronik.metadata.commands import PutToken
from chronik.model import ErrorCode
from chronik.security.tokens import EXPIRED_MS_KEPT, DelegationToken, tokens_to_remove
from chronik.server import token_fields
from tests.unit.server.test_login import address, closed, login, opened
from tests.unit.server.test_security_apis import CREATE_TOKEN

NOW_MS = 1_000_000_000_000


def token(name: str, expires_ms: int) -> DelegationToken:
    return DelegationToken(
        token_id=name,
        owner="User:alice",
        requester="User:alice",
        issued_ms=0,
        expires_ms=expires_ms,
        ends_ms=expires_ms,
    )


def test_only_tokens_that_expired_a_while_ago_go_and_not_all_at_once() -> None:
    old = [token(f"old {number}", NOW_MS - EXPIRED_MS_KEPT - number) for number in range(3)]
    kept = [token("just expired", NOW_MS - EXPIRED_MS_KEPT + 1), token("alive", NOW_MS + 1)]
    assert tokens_to_remove([*kept, *old], NOW_MS, 10) == ["old 0", "old 1", "old 2"]
    assert tokens_to_remove([*kept, *old], NOW_MS, 2) == ["old 0", "old 1"]


async def test_the_controller_removes_expired_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "TOKEN_CHECK_SECONDS", 0.0)
    monkeypatch.setattr(controller, "TOKENS_REMOVED_MAX", 2)
    async with closed(tmp_path, now_ms=lambda: NOW_MS) as node:
        metadata, changed = node.node.parts.metadata, asyncio.Event()
        metadata.bus.listen(lambda _: changed.set())
        for number in range(5):
            await metadata.submit(PutToken(token=token(f"old {number}", 1)))
        await metadata.submit(PutToken(token=token("alive", NOW_MS + 1)))
        async with asyncio.timeout(20):
            while set(metadata.state.security.tokens) != {"alive"}:
                changed.clear()
                await changed.wait()


async def test_a_user_cannot_take_the_room_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_fields, "TOKENS_PER_REQUESTER_MAX", 2)
    async with closed(tmp_path, delegation_token_secret_key="secret of the cluster") as node:
        codes = {}
        for user, count in (("alice", 3), ("admin", 1)):
            connection = await opened(address(node), login=login(user))
            wanted = {"renewers": [], "max_lifetime": -1}
            codes[user] = [(await connection.request(CREATE_TOKEN, wanted)).error_code for _ in range(count)]
            connection.close()
        assert codes["alice"] == [ErrorCode.none, ErrorCode.none, ErrorCode.policy_violation]
        assert codes["admin"] == [ErrorCode.none]
