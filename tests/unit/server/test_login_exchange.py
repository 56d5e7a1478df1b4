"""A login, step by step: what breaks the order, or is refused halfway, counts as a failure."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from chronik.model import ErrorCode
from chronik.security.oauth import client_message
from chronik.server import hash_queue
from chronik.server.login_failures import Crowded, LoginFailures
from chronik.server.sasl import Authenticator
from chronik.wire.api import ApiKey
from chronik.wire.schema import decode_response, encode_request
from tests.unit.server.live import Live
from tests.unit.server.test_login import address, closed, read_frame

FIRST = b"n,,n=alice,r=abcdef"


class Talk:
    """A connection that says what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def with_node(cls, node: Live) -> Talk:
        return cls(*await asyncio.open_connection(*address(node)))

    async def says(self, api: ApiKey, version: int, **fields: Any) -> Any:
        """The answer; None if there is none, since the connection was closed."""
        self.writer.write(encode_request(api, version, 1, "x", fields))
        frame = await read_frame(self.reader)
        return None if frame is None else decode_response(api, version, frame)[1]

    async def handshake(self, mechanism: str) -> Any:
        return await self.says(ApiKey.SASL_HANDSHAKE, 1, mechanism=mechanism)

    async def authenticate(self, message: bytes) -> Any:
        return await self.says(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=message)


def authenticator_of(node: Live) -> Authenticator:
    found = node.node.parts.security.authenticator
    assert found is not None
    return found


@pytest.mark.parametrize("message", [None, FIRST])
async def test_a_handshake_amid_a_login_is_a_failed_login(tmp_path: Path, message: bytes | None) -> None:
    """As with Apache Kafka. Else a connection could guess and begin again for ever, uncounted."""
    async with closed(tmp_path) as node:
        talk = await Talk.with_node(node)
        assert (await talk.handshake("SCRAM-SHA-256")).error_code == ErrorCode.none
        if message is not None:
            assert (await talk.authenticate(message)).error_code == ErrorCode.none
        assert (await talk.handshake("SCRAM-SHA-512")).error_code == ErrorCode.illegal_sasl_state
        assert await read_frame(talk.reader) is None, "the connection ends"
        assert authenticator_of(node).failures.total == 1
        talk.writer.close()


async def test_handshakes_that_come_all_at_once_end_the_connection_too(tmp_path: Path) -> None:
    async with closed(tmp_path) as node:
        talk = await Talk.with_node(node)
        steps = (
            encode_request(ApiKey.SASL_HANDSHAKE, 1, 1, "x", {"mechanism": "SCRAM-SHA-256"}),
            encode_request(ApiKey.SASL_AUTHENTICATE, 2, 2, "x", {"auth_bytes": FIRST}),
        )
        talk.writer.write(b"".join(steps) * 100)
        answers = 0
        while await read_frame(talk.reader) is not None:
            answers += 1
        assert answers <= 3
        talk.writer.close()


async def test_a_refused_token_is_counted_when_it_is_refused_and_once(tmp_path: Path) -> None:
    keys = tmp_path / "jwks.json"
    keys.write_text('{"keys": []}')
    settings = {"sasl_enabled_mechanisms": "OAUTHBEARER", "sasl_oauthbearer_jwks": str(keys)}
    async with closed(tmp_path, **settings) as node:
        talk = await Talk.with_node(node)
        await talk.handshake("OAUTHBEARER")
        assert b"invalid_token" in (await talk.authenticate(client_message("e30.e30.e30"))).auth_bytes
        assert authenticator_of(node).failures.total == 1
        answer = await talk.authenticate(b"\x01")
        assert answer.error_code == ErrorCode.sasl_authentication_failed
        assert "token" in answer.error_message
        assert authenticator_of(node).failures.total == 1
        talk.writer.close()


async def test_a_refused_token_is_followed_by_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "jwks.json"
    keys.write_text('{"keys": []}')
    settings = {"sasl_enabled_mechanisms": "OAUTHBEARER", "sasl_oauthbearer_jwks": str(keys)}
    async with closed(tmp_path, **settings) as node:
        talk = await Talk.with_node(node)
        await talk.handshake("OAUTHBEARER")
        await talk.authenticate(client_message("e30.e30.e30"))
        assert (await talk.handshake("OAUTHBEARER")).error_code == ErrorCode.illegal_sasl_state
        assert await read_frame(talk.reader) is None
        talk.writer.close()


async def test_few_tokens_are_checked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check takes time in a thread: those that wait for theirs are bounded, as for passwords."""
    keys = tmp_path / "jwks.json"
    keys.write_text('{"keys": []}')
    settings = {"sasl_enabled_mechanisms": "OAUTHBEARER", "sasl_oauthbearer_jwks": str(keys)}
    async with closed(tmp_path, **settings) as node:
        authenticator = authenticator_of(node)
        monkeypatch.setattr(hash_queue, "WAITING_PER_HOST_MAX", 0)
        with pytest.raises(Crowded):
            await authenticator.check_token("e30.e30.e30", "127.0.0.1")
        monkeypatch.undo()
        monkeypatch.setattr(LoginFailures, "is_crowded", lambda _, host: host == "127.0.0.9")
        with pytest.raises(Crowded):
            await authenticator.check_token("e30.e30.e30", "127.0.0.9")
