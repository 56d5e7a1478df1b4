"""Logins on a SASL listener: messages of every mechanism by their grammar, right ones that are damaged on the
way, tokens whose claims make no sense, warrants, and requests out of turn.

What a client says in its second message depends on the server's nonce, so an input tells how to talk and the
conversation draws everything else from its seed.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from chronik.security import oauth, plain
from chronik.security.exchange import AuthenticationFailed
from chronik.security.scram import MECHANISMS, ScramClient
from chronik.security.warrants import Warrant
from chronik.server.own_clients import HTTP_USER, QUERY_USER
from chronik.wire.api import ApiKey
from chronik.wire.schema import decode_response, encode_request
from tests.fuzz.inputs import Input, Piece
from tests.fuzz.kafka_door import frame_of
from tests.fuzz.values import LONG_NUMBERS, damaged, json_value, text

PORT: Final = "logins"
"""A conversation on the SASL listener."""
LISTENER: Final = "LOGINS"
USER: Final = "fuzz"
PASSWORD: Final = "fuzz-password"
KINDS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER", "OAUTHBEARER")
OFFERED: Final = tuple(dict.fromkeys(KINDS))


def inputs(pick: random.Random, topic_ids: list[UUID]) -> Iterator[Input]:
    while True:
        told = {"seed": pick.getrandbits(64), "mechanism": pick.choice(KINDS), "topic": topic_ids[0].hex}
        yield Input(
            what=f"login by {told['mechanism']}", port=PORT, pieces=(Piece(0, body(told)),), answers=1
        )


def body(told: Any) -> bytes:
    return json.dumps(told).encode()


@functools.cache
def _signer() -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(17, ec.SECP256R1())  # the same in every run: a recording names its tokens


def address(told: bytes) -> str:
    """Failed logins of one address wait longer each time, so each input comes from another one."""
    seed = json.loads(told)["seed"]
    return f"127.{1 + seed % 250}.{seed // 250 % 250}.{1 + seed // 62_500 % 250}"


def write_keys(path: Path) -> None:
    document = ECAlgorithm.to_jwk(_signer().public_key(), as_dict=True) | {"alg": "ES256", "kid": "one"}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"keys": [document]}))


class Talk:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, told: bytes) -> None:
        given = json.loads(told)
        self._reader = reader
        self._writer = writer
        self._pick = random.Random(given["seed"])
        self._mechanism: str = given["mechanism"]
        self._topic = UUID(hex=given["topic"])

    async def run(self) -> str | None:
        """What was wrong. The node may close the connection at any point, but answers what it takes."""
        pick = self._pick
        try:
            for _ in range(pick.choice((1, 1, 1, 2))):  # a second login on the same connection
                if pick.random() < 0.1:
                    await self._send(frame_of(pick, *self._out_of_turn(), [self._topic]))
                name = self._mechanism if pick.random() < 0.95 else text(pick)[:2_000]
                version = 1 if pick.random() < 0.95 else 0
                fields = {"mechanism": name}
                await self._ask(ApiKey.SASL_HANDSHAKE, version, fields)
                match self._mechanism:
                    case "PLAIN":
                        await self._say(self._plain())
                    case "OAUTHBEARER":
                        if await self._say(self._token()) or pick.random() < 0.1:
                            await self._say(b"\x01")
                    case _:
                        await self._scram()
                await self._ask(ApiKey.METADATA, 12, {"topics": []})
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        return None

    def _out_of_turn(self) -> tuple[ApiKey, int]:
        choices = ((ApiKey.METADATA, 9), (ApiKey.PRODUCE, 9), (ApiKey.API_VERSIONS, 3), (ApiKey.FETCH, 12))
        return self._pick.choice(choices)

    async def _scram(self) -> None:
        pick = self._pick
        user = pick.choice((USER, USER, USER, "nobody", QUERY_USER, HTTP_USER, "=2C=3D", "x" * 5_000))
        sign = None if pick.random() < 0.7 else (lambda data: pick.randbytes(64))
        client = ScramClient(
            MECHANISMS[self._mechanism],
            user,
            pick.choice((PASSWORD, PASSWORD, "wrong")),
            pick.choice(("nonce", "n" * 10_000, "ü")),
            by_token=pick.random() < 0.1,
            sign=sign,
            warrant=self._warrant() if pick.random() < 0.3 else b"",
        )
        first = client.first()
        challenge = await self._say(self._perhaps_damaged(first, 0.3))
        try:
            proof = client.final(challenge)
        except (AuthenticationFailed, KeyError, ValueError):
            proof = b"c=biws,r=" + pick.randbytes(20) + b",p=AA=="
        await self._say(self._perhaps_damaged(proof, 0.4))

    def _warrant(self) -> bytes:
        pick = self._pick
        number = pick.choice((1, 2, -1, 2**63 - 1))
        made = Warrant(
            number, pick.choice((QUERY_USER, HTTP_USER, "x")), number, pick.randbytes(32), bytes(64)
        )
        return self._perhaps_damaged(msgspec.msgpack.encode(made), 0.3)

    def _plain(self) -> bytes:
        pick = self._pick
        user = pick.choice((USER, USER, "nobody", "", "x" * 70_000, HTTP_USER, text(pick)))
        message = plain.client_message(user, pick.choice((PASSWORD, "", "p" * 100_000, text(pick))))
        return self._perhaps_damaged(message, 0.3)

    def _token(self) -> bytes:
        pick = self._pick
        claims = {"sub": USER, "exp": 4_000_000_000}
        for name in pick.sample(("sub", "exp", "nbf", "iat", "iss", "aud", "x"), pick.choice((0, 1, 2))):
            claims[name] = pick.choice(
                (*LONG_NUMBERS, 1e308, float("nan"), None, [], {}, "x" * 20_000, json_value(pick))
            )
        head = {"kid": pick.choice(("one", "two", "x" * 5_000))}
        match pick.randrange(5):
            case 0:
                key, algorithm = "secret" * 8, "HS256"
            case 1:
                return oauth.client_message(_by_hand(json_value(pick), claims))
            case 2:
                odd = {"alg": pick.choice(("none", "ES256", 5, None, [])), "kid": json_value(pick)}
                return oauth.client_message(_by_hand(odd, claims))
            case _:
                key, algorithm = _signer(), "ES256"
        try:
            token = jwt.encode(claims, key, algorithm, headers=head)
        except (TypeError, ValueError):
            token = _by_hand({"alg": "ES256", "kid": "one"}, claims)
        return self._perhaps_damaged(oauth.client_message(token), 0.3)

    def _perhaps_damaged(self, message: bytes, chance: float) -> bytes:
        return damaged(self._pick, message) if self._pick.random() < chance else message

    # --- the wire ------------------------------------------------------------------------------------

    async def _say(self, message: bytes) -> bytes:
        answer = await self._ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": message})
        return bytes(answer.auth_bytes)

    async def _ask(self, key: ApiKey, version: int, fields: dict[str, Any]) -> Any:
        await self._send(encode_request(key, version, 7, "fuzz", fields))
        while True:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            frame = await self._reader.readexactly(size)
            if frame[:4] == (7).to_bytes(4, "big"):
                return decode_response(key, version, frame)[1]

    async def _send(self, frame: bytes) -> None:
        self._writer.write(frame)
        await self._writer.drain()


def _by_hand(head: Any, claims: Any) -> str:
    parts = [json.dumps(part).encode("utf-8", "surrogatepass") for part in (head, claims)]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (*parts, b"\0" * 64))
