"""What the authentication exchanges have in common. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["MESSAGE_BYTES_MAX", "Authenticated", "AuthenticationFailed"]

MESSAGE_BYTES_MAX = 64 * 1024
"""Longest message of an exchange: tokens with many claims are the largest."""


class AuthenticationFailed(Exception):
    """The other side did not prove who it is. The text may be shown to it: it tells no secret."""

    def __init__(self, text: str, *, user: str | None = None) -> None:
        super().__init__(text)
        self.user = user
        """Who it said it was, if it said so."""


class Authenticated(NamedTuple):
    principal: str
    expires_ms: int | None = None
    """When the proof itself ends (a token's time); None if it does not."""
    by_token: bool = False
    """Whether the login was with a delegation token: such a session may not make another one."""
    holds: Callable[[], bool] | None = None
    """Whether the proof is still good, for logins that may end at any time: those of nodes and their clients,
    with the node's registration."""
