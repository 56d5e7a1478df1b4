"""The keys of OAuth tokens, fetched from a server: over a way that nobody else can write to, and again."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from chronik.config import ConfigError, Settings
from chronik.security.exchange import AuthenticationFailed
from chronik.server import jwks
from chronik.server.jwks import KeySource
from tests.tls import make_certificate

NOW = 1_800_000_000.0


class Issuer:
    """A server of keys, which can be replaced."""

    def __init__(self) -> None:
        self.url = ""
        self.asked = 0
        self.redirect = ""
        self.go_on = threading.Event()
        """Answers wait for it."""
        self.go_on.set()
        self.rotate("one")

    def rotate(self, name: str) -> None:
        self._name, self._key = name, ec.generate_private_key(ec.SECP256R1())
        document = ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True) | {"alg": "ES256", "kid": name}
        self.document = json.dumps({"keys": [document]}).encode()

    def token(self) -> str:
        claims = {"sub": "alice", "exp": NOW + 60}
        return jwt.encode(claims, self._key, "ES256", headers={"kid": self._name})


@contextlib.contextmanager
def issuer(tls: ssl.SSLContext | None = None) -> Iterator[Issuer]:
    found = Issuer()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked += 1
            assert found.go_on.wait(30)
            self.send_response(302 if found.redirect else 200)
            if found.redirect:
                self.send_header("location", found.redirect)
            self.send_header("content-length", str(len(found.document)))
            self.end_headers()
            self.wfile.write(found.document)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    found.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}/keys"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    cert, key = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.load_cert_chain(cert, key)
    return found


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_keys_are_fetched_and_new_ones_too(
    scheme: str, context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    with issuer(context if scheme == "https" else None) as server:
        source = KeySource(Settings(sasl_oauthbearer_jwks=server.url))
        for _ in range(2):
            assert (await source.check(server.token(), NOW)).principal == "User:alice"
        assert server.asked == 1, "keys are remembered"
        old = server.token()
        server.rotate("two")
        with pytest.raises(AuthenticationFailed):
            await source.check(server.token(), NOW)
        assert server.asked == 1, "not asked again for every token that somebody makes up"
        monkeypatch.setattr(jwks, "AGE_SECONDS_MIN", 0.0)
        assert (await source.check(server.token(), NOW)).principal == "User:alice"
        with pytest.raises(AuthenticationFailed):
            await source.check(old, NOW)
        server.document = b"x" * (jwks.DOCUMENT_BYTES_MAX + 1)
        assert (await source.check(server.token(), NOW)).principal == "User:alice", "the last keys stay"


async def test_a_slow_server_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the keys are read again, logins are checked by those that are known."""
    with issuer() as server:
        source = KeySource(Settings(sasl_oauthbearer_jwks=server.url))
        assert (await source.check(server.token(), NOW)).principal == "User:alice"
        monkeypatch.setattr(jwks, "AGE_SECONDS_MAX", 0.0)
        server.go_on.clear()
        try:
            async with asyncio.timeout(20):
                for _ in range(3):
                    assert (await source.check(server.token(), NOW)).principal == "User:alice"
            reading = source._reading
            assert reading is not None
        finally:
            server.go_on.set()
        await reading
        assert server.asked == 2


async def test_keys_that_nobody_asked_for_in_a_long_time_are_read_before_they_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A key that was taken back meanwhile opens nothing; keys stay in use where no newer ones can be had."""
    with issuer() as server:
        source = KeySource(Settings(sasl_oauthbearer_jwks=server.url))
        old = server.token()
        assert (await source.check(old, NOW)).principal == "User:alice"
        monkeypatch.setattr(jwks, "AGE_SECONDS_MAX", 0.0)
        monkeypatch.setattr(jwks, "STALE_SECONDS", 0.0)
        server.rotate("two")
        with pytest.raises(AuthenticationFailed):
            await source.check(old, NOW)
        server.document = b"nonsense"
        for _ in range(2):
            assert (await source.check(server.token(), NOW)).principal == "User:alice"


async def test_a_server_that_cannot_prove_its_name_is_not_believed(
    context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with issuer(context) as server:
        source = KeySource(Settings(sasl_oauthbearer_jwks=server.url))
        with pytest.raises(AuthenticationFailed):
            await source.check(server.token(), NOW)
        assert not server.asked


async def test_keys_do_not_come_over_http_from_elsewhere() -> None:
    with pytest.raises(ConfigError, match="over http could be anybody's"):
        KeySource(Settings(sasl_oauthbearer_jwks="http://issuer.example/keys"))
    with issuer() as server:
        server.redirect = "http://issuer.example/keys"
        source = KeySource(Settings(sasl_oauthbearer_jwks=server.url))
        with pytest.raises(ValueError, match="which is not https"):
            source._read()


async def test_only_algorithms_of_the_setting_are_believed() -> None:
    with issuer() as server:
        given = Settings(sasl_oauthbearer_jwks=server.url, sasl_oauthbearer_algorithms="RS256, PS256")
        with pytest.raises(AuthenticationFailed, match="not accepted"):
            await KeySource(given).check(server.token(), NOW)
    for wrong in ("HS256", "none", "RS256,none", ""):
        with pytest.raises(ConfigError, match="sasl_oauthbearer_algorithms"):
            KeySource(Settings(sasl_oauthbearer_algorithms=wrong))
