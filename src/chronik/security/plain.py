"""SASL PLAIN (RFC 4616): name and password in the clear, so for listeners with TLS. Pure."""

from __future__ import annotations

from typing import NamedTuple

from chronik.security.exchange import AuthenticationFailed

__all__ = ["PlainLogin", "client_message", "read_message"]


class PlainLogin(NamedTuple):
    user: str
    password: str

    def __repr__(self) -> str:
        return f"PlainLogin({self.user!r})"


def read_message(message: bytes) -> PlainLogin:
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError:
        raise AuthenticationFailed("the PLAIN message is not UTF-8") from None
    if len(parts) != 3 or not parts[1] or not parts[2]:
        raise AuthenticationFailed("the PLAIN message needs a user and a password")
    authzid, user, password = parts
    if authzid and authzid != user:
        raise AuthenticationFailed("nobody may log in for somebody else")
    return PlainLogin(user, password)


def client_message(user: str, password: str) -> bytes:
    return f"\0{user}\0{password}".encode()
