"""Logins and TLS handshakes of strangers: refused or closed, and somebody who knows the password gets in."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import random
from pathlib import Path

import pytest

from chronik.client.apis import METADATA
from chronik.server import login_failures
from chronik.server.tls import client_context
from chronik.wire.api import ApiKey
from chronik.wire.schema import encode_request
from tests.fuzz.values import damaged, text
from tests.tls import make_certificate
from tests.unit.server.live import Live
from tests.unit.server.test_login import address, closed, login, opened

TRIES = 200
DEADLINE_S = 20
JWT = ".".join(
    base64.urlsafe_b64encode(part).decode().rstrip("=")
    for part in (b'{"alg":"none"}', b'{"sub":"admin","exp":99999999999}', b"")
)
SAID = (
    b"\x00admin\x00password of bob",
    b"admin\x00admin\x00" + b"x" * 5_000,
    b"n,,n=admin,r=abcdef",
    b"n,,n=alice,r=abcdef",
    b"p=tls-unique,,n=admin,r=abc",
    b"n,a=bob,n=admin,r=" + b"r" * 3_000,
    b"c=biws,r=abcdef,p=AAAA",
    b"n,,\x01auth=Bearer " + JWT.encode() + b"\x01\x01",
    b"n,,\x01auth=Bearer " + b"a.b.c" * 500 + b"\x01\x01",
    b"",
)


def conversation(pick: random.Random) -> bytes:
    mechanism = pick.choice(("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", text(pick)[:100]))
    frames = [encode_request(ApiKey.SASL_HANDSHAKE, 1, 1, "x", {"mechanism": mechanism})]
    for _ in range(pick.choice((1, 1, 2, 3))):
        said = pick.choice(SAID)
        said = damaged(pick, said) if said and pick.random() < 0.6 else said
        frames.append(encode_request(ApiKey.SASL_AUTHENTICATE, 2, 2, "x", {"auth_bytes": said}))
    frames.append(encode_request(ApiKey.METADATA, 12, 3, "x", {"topics": None}))
    if pick.random() < 0.3:
        pick.shuffle(frames)
    data = b"".join(frames)
    return damaged(pick, data) if pick.random() < 0.2 else data


async def said_by_a_stranger(port: int, data: bytes) -> None:
    async with asyncio.timeout(DEADLINE_S):
        with contextlib.suppress(ConnectionError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            writer.write_eof()
            while await reader.read(1 << 16):
                pass
            writer.close()


async def strangers(node: Live, saying: list[bytes]) -> None:
    port = address(node).port
    for first in range(0, len(saying), 20):
        await asyncio.gather(*(said_by_a_stranger(port, one) for one in saying[first : first + 20]))


def check_log(caplog: pytest.LogCaptureFixture) -> None:
    wrong = [one.getMessage() for one in caplog.records if one.exc_info or one.levelno >= logging.ERROR]
    assert not wrong, wrong[:3]


async def test_logins_of_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(login_failures, "DELAY_SECONDS", 0.0)
    async with closed(tmp_path) as node:
        pick = random.Random(17)
        await strangers(node, [conversation(pick) for _ in range(TRIES)])
        connection = await opened(address(node), login=login("alice"))
        assert (await connection.request(METADATA, {"topics": None})).brokers
        connection.close()
    check_log(caplog)


async def test_handshakes_of_strangers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cert, key = make_certificate(tmp_path)
    settings = {"kafka_tls_cert": cert, "kafka_tls_key": key}
    async with closed(tmp_path, "SASL_SSL", **settings) as node:
        pick = random.Random(17)
        hello = b"\x16\x03\x01\x00\xf4\x01\x00\x00\xf0\x03\x03" + pick.randbytes(32) + b"\x20" + bytes(206)
        saying = [damaged(pick, hello) for _ in range(TRIES // 2)] + [conversation(pick) for _ in range(20)]
        port = address(node).port
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for _, writer in silent:
            writer.write(hello[:50])
        await strangers(node, saying)
        connection = await opened(address(node), login=login("alice"), tls=client_context(cert))
        assert (await connection.request(METADATA, {"topics": None})).brokers
        connection.close()
        for _, writer in silent:
            writer.transport.abort()
    check_log(caplog)
