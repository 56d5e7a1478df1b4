"""The public keys by which OAuth tokens are checked: from a file or an address, read in a thread."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPMessage
from pathlib import Path
from typing import IO, Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

from chronik.config import ConfigError, Settings, is_loopback
from chronik.log_lines import RepeatingLine
from chronik.security.exchange import Authenticated, AuthenticationFailed
from chronik.security.oauth import ALGORITHMS, TokenRules
from chronik.server.login_failures import Crowded
from chronik.tasks import Tasks

__all__ = ["KeySource"]

T = TypeVar("T")

log = logging.getLogger(__name__)
_unread: Final = RepeatingLine(log, logging.WARNING, "the keys for OAuth tokens cannot be read: %s")

DOCUMENT_BYTES_MAX: Final = 1024 * 1024
FETCH_SECONDS_MAX: Final = 5.0
AGE_SECONDS_MAX: Final = 300.0
AGE_SECONDS_MIN: Final = 10.0
"""When a token fails its check, the keys are read again if they are at least this old."""
STALE_SECONDS: Final = 2 * AGE_SECONDS_MAX
"""Keys that are older are not used while newer ones may be had."""
PIECE_BYTES: Final = 64 * 1024


def is_private(url: str) -> bool:
    """Whether nobody on the way can put other keys into the answer."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if not is_private(newurl):
            raise ValueError(f"its address leads to {newurl[:200]}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class InThread(Protocol):
    async def __call__(self, function: Callable[..., T], /, *arguments: Any) -> T: ...


class KeySource:
    def __init__(self, settings: Settings) -> None:
        self._where = settings.sasl_oauthbearer_jwks or ""
        self._is_address = self._where.startswith(("https://", "http://"))
        if self._is_address and not is_private(self._where):
            raise ConfigError(
                "sasl_oauthbearer_jwks: keys that come over http could be anybody's; use https or a file"
            )
        self._algorithms = _algorithms(settings.sasl_oauthbearer_algorithms)
        self._issuer = settings.sasl_oauthbearer_expected_issuer
        audience = settings.sasl_oauthbearer_expected_audience
        self._audience = tuple(part.strip() for part in (audience or "").split(",") if part.strip())
        self._skew_s = settings.sasl_oauthbearer_clock_skew_seconds
        self._claim = settings.sasl_oauthbearer_sub_claim_name
        self._rules: TokenRules | None = None
        self._tried_at = -AGE_SECONDS_MAX
        """When the last attempt to read the keys began."""
        self._read_at = -STALE_SECONDS
        """When the keys were last read."""
        self._failed = False
        """Whether the last attempt failed."""
        self._reading: asyncio.Task[None] | None = None
        self._tasks = Tasks("logins")

    async def check(self, token: str, now_s: float, run: InThread = asyncio.to_thread) -> Authenticated:
        """The principal of a valid token. `run` calls a function in a thread, now or when there is room."""
        rules = await self._current()
        try:
            return await run(rules.check, token, now_s)
        except Crowded:
            raise
        except AuthenticationFailed:
            newer = await self._newer()
            if newer is rules:
                raise
            return await run(newer.check, token, now_s)

    async def close(self) -> None:
        """Wait for no keys any more."""
        await self._tasks.close()

    async def _current(self) -> TokenRules:
        """The present keys. A login waits for newer ones only if there are none, or if they are older than
        `STALE_SECONDS`; otherwise a key server that is slow or down delays nobody."""
        now = time.monotonic()
        reading = self._read_again(AGE_SECONDS_MAX)
        is_stale = now - self._read_at >= STALE_SECONDS and not self._failed
        if reading is not None and (self._rules is None or is_stale):
            await asyncio.shield(reading)
        return self._known()

    async def _newer(self) -> TokenRules:
        """The keys after they were read again, if they are old enough for that."""
        reading = self._read_again(AGE_SECONDS_MIN)
        if reading is not None:
            await asyncio.shield(reading)
        return self._known()

    def _known(self) -> TokenRules:
        if self._rules is None:
            raise AuthenticationFailed("tokens cannot be checked now")
        return self._rules

    def _read_again(self, age_s: float) -> asyncio.Task[None] | None:
        """The task that reads the keys now, if any. Starts one if the last attempt is old enough, or there
        are no keys."""
        now = time.monotonic()
        if self._reading is None and (self._rules is None or now - self._tried_at >= age_s):
            self._tried_at = now
            self._reading = self._tasks.spawn(self._refresh(), "reading the keys for OAuth tokens")
        return self._reading

    async def _refresh(self) -> None:
        try:
            self._rules = await asyncio.to_thread(self._read)
        except Exception as error:  # whatever a document or a server can do wrong
            self._failed = True
            _unread(self._where, error)
        else:
            self._failed, self._read_at = False, time.monotonic()
        finally:
            self._reading = None

    def _read(self) -> TokenRules:
        import jwt

        file = Path(self._where.removeprefix("file://"))
        text = self._fetch() if self._is_address else file.read_bytes()
        if len(text) > DOCUMENT_BYTES_MAX:
            raise ValueError(f"the document is longer than {DOCUMENT_BYTES_MAX} bytes")
        keys: dict[str | None, Any] = {}
        for document in json.loads(text)["keys"]:
            if document.get("use", "sig") == "sig" and document.get("kty") in ("RSA", "EC", "OKP"):
                keys[document.get("kid")] = jwt.PyJWK(document)
        return TokenRules(
            keys=keys,
            issuer=self._issuer,
            audience=self._audience,
            algorithms=self._algorithms,
            clock_skew_s=float(self._skew_s),
            subject_claim=self._claim,
        )

    def _fetch(self) -> bytes:
        """Fetch the document, at most a little more than `DOCUMENT_BYTES_MAX`, and within `FETCH_SECONDS_MAX`
        however slowly the server sends it."""
        deadline, found = time.monotonic() + FETCH_SECONDS_MAX, bytearray()
        opener = urllib.request.build_opener(_Redirects)
        with opener.open(self._where, timeout=FETCH_SECONDS_MAX) as response:
            while len(found) <= DOCUMENT_BYTES_MAX and (piece := response.read1(PIECE_BYTES)):
                found += piece
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the document takes longer than {FETCH_SECONDS_MAX:g} s")
        return bytes(found)


def _algorithms(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    strange = [name for name in found if name not in ALGORITHMS]
    if strange or not found:
        wrong = f"{strange[0]} is not among" if strange else "name some of"
        raise ConfigError(f"sasl_oauthbearer_algorithms: {wrong} {', '.join(ALGORITHMS)}")
    return found
