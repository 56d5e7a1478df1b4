"""Logins of the console: a cookie stands for somebody who proved once who they are.

A session ends with its lifetime, a logout, a restart of the node, and with what it was opened by: a password
that is changed, a user that is deleted, a key that is revoked. The cookie's value is kept as a digest. Since
browsers send cookies by themselves, a call that is not a GET must also carry the session's CSRF token, which
only pages of this node can read.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from chronik.config import Settings
from chronik.server.access import Access

__all__ = ["HttpSession", "SessionProof", "Sessions"]

SESSIONS_MAX: Final = 1_000
"""The oldest makes room for a new one."""
PRINCIPAL_SESSIONS_MAX: Final = 20
"""Sessions of one principal. Who logs in once more ends its own oldest session, and nobody else's."""
_READING: Final = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True)
class SessionProof:
    """What somebody logged in with, as far as it must still hold later."""

    principal: str
    access: Callable[[str], Access | None]
    """What it still opens to a caller at this address; None once it opens nothing."""


@dataclass(frozen=True, slots=True)
class HttpSession:
    id: bytes
    """Digest of the cookie's value."""
    proof: SessionProof
    csrf_token: str
    ends_ms: int

    def permits(self, method: str, headers: Mapping[str, str]) -> bool:
        """Whether a page of this node made the call, and not one that only has the browser's cookies."""
        given = headers.get("x-csrf-token", "")
        return method in _READING or hmac.compare_digest(given.encode(), self.csrf_token.encode())


class Sessions:
    def __init__(self, settings: Settings, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._lifetime_ms = settings.http_session_ms
        self._has_tls = settings.http_tls_cert is not None
        # Cookies do not know ports: nodes on one machine must not overwrite each other's.
        self._cookie = f"{'__Host-' if self._has_tls else ''}chronik_session_{settings.node_id}"
        self._sessions: OrderedDict[bytes, HttpSession] = OrderedDict()
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, proof: SessionProof) -> tuple[HttpSession, str]:
        """A session and the Set-Cookie header that opens it."""
        value = secrets.token_urlsafe(32)
        ends_ms = self._now_ms() + self._lifetime_ms
        session = HttpSession(_digest(value), proof, secrets.token_urlsafe(32), ends_ms)
        self._sessions[session.id] = session
        own = [one.id for one in self._sessions.values() if one.proof.principal == proof.principal]
        if len(own) > PRINCIPAL_SESSIONS_MAX:
            del self._sessions[own[0]]
            self.evicted += 1
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
            self.evicted += 1
        return session, self._header(value, self._lifetime_ms // 1000)

    def find(self, cookies: Mapping[str, str]) -> HttpSession | None:
        value = cookies.get(self._cookie)
        session = None if value is None else self._sessions.get(_digest(value))
        if session is None:
            return None
        if self._now_ms() >= session.ends_ms:
            del self._sessions[session.id]
            return None
        return session

    def end(self, session: HttpSession) -> str:
        """The Set-Cookie header that has the browser forget the session."""
        self._sessions.pop(session.id, None)
        return self._header("", 0)

    def _header(self, value: str, age_s: int) -> str:
        secure = "; Secure" if self._has_tls else ""
        return f"{self._cookie}={value}; Path=/; Max-Age={age_s}; HttpOnly; SameSite=Strict{secure}"


def _digest(value: str) -> bytes:
    return hashlib.sha256(value.encode()).digest()
