"""How this client proves who it is: SASL messages over SaslHandshake and SaslAuthenticate."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from chronik.model import ErrorCode, RequestError
from chronik.security import oauth, plain
from chronik.security.exchange import AuthenticationFailed
from chronik.security.scram import MECHANISMS, ScramClient, Sign

__all__ = ["NODE_MECHANISM", "Login", "log_in"]

NODE_MECHANISM: Final = "CHRONIK-NODE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    mechanism: str
    user: str = ""
    password: str = field(default="", repr=False)
    """The password, or the token of OAUTHBEARER."""
    by_token: bool = False
    """Whether name and password are those of a delegation token."""
    sign: Sign | None = field(default=None, repr=False, compare=False)
    """Signs with the key of the node, or of the client of a node, whose login this is."""
    warrant: bytes = field(default=b"", repr=False)
    """Only for a client of a node: says which node vouches for the client's key."""


async def log_in(
    login: Login, exchange: Callable[[bytes], Awaitable[bytes]], *, channel: bytes = b""
) -> None:
    """Run a mechanism's messages through `exchange`; RequestError if one side does not believe the other.
    `channel` is the digest of the certificate that the server has shown."""
    try:
        if login.mechanism == "PLAIN":
            await exchange(plain.client_message(login.user, login.password))
        elif login.mechanism == "OAUTHBEARER":
            refusal = await exchange(oauth.client_message(login.password))
            if refusal:
                await exchange(b"\x01")
        else:
            await _scram(login, exchange, channel)
    except AuthenticationFailed as error:
        raise RequestError(ErrorCode.sasl_authentication_failed, str(error)) from None


async def _scram(login: Login, exchange: Callable[[bytes], Awaitable[bytes]], channel: bytes) -> None:
    name = "SCRAM-SHA-256" if login.mechanism == NODE_MECHANISM else login.mechanism
    if name not in MECHANISMS:
        raise RequestError(
            ErrorCode.unsupported_sasl_mechanism, f"{name} is no mechanism that this client knows"
        )
    client = ScramClient(
        MECHANISMS[name],
        login.user,
        login.password,
        secrets.token_urlsafe(18),
        by_token=login.by_token,
        sign=login.sign,
        warrant=login.warrant,
        channel=channel,
    )
    challenge = await exchange(client.first())
    proof = await asyncio.to_thread(client.final, challenge)
    client.check(await exchange(proof))
