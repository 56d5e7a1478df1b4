"""TLS of the Kafka listeners: the certificate that is shown and those that are accepted, reloaded when the
files change."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from chronik.config import Settings
from chronik.security.principals import ANONYMOUS, MappingRules, NoRuleMatches, distinguished_name
from chronik.server.reloading import Reloaded

__all__ = ["ListenerTls", "ServerContext", "client_context"]

PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")
"""What listeners speak, by Kafka's names."""
_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


class ServerContext(ssl.SSLContext):
    """The TLS context of a listener's connections. Open connections keep the one that they were accepted
    with."""

    shown: bytes = b""
    """Digest (SHA-256) of the certificate that clients are shown; nodes sign it with their logins."""


class _Made(NamedTuple):
    server: ServerContext
    client: ssl.SSLContext
    trust: str
    """The certificates (PEM) that the node's own clients believe."""


class ListenerTls:
    """One context for all listeners with TLS.

    New connections get what the files held when `reload` was last called; those that are open stay as they
    are.
    """

    def __init__(self, settings: Settings, on_reload: Callable[[], None] = lambda: None) -> None:
        """`on_reload` is called whenever new files are in use."""
        assert settings.kafka_tls_cert is not None
        self._cert = settings.kafka_tls_cert
        self._key = settings.kafka_tls_key
        self._ca = settings.kafka_tls_ca
        self._client_auth = _CLIENT_AUTH[settings.kafka_tls_client_auth]
        self.rules = MappingRules(settings.ssl_principal_mapping_rules)
        self._on_reload = on_reload
        files = (self._cert, self._key, self._ca)
        self._made = Reloaded("the certificate of the Kafka listeners", files, self._make)

    def _make(self) -> _Made:
        server = ServerContext(ssl.PROTOCOL_TLS_SERVER)
        server.minimum_version = ssl.TLSVersion.TLSv1_2
        server.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        server.verify_mode = self._client_auth
        server.load_cert_chain(self._cert, self._key)
        server.shown = _digest_of_first(self._cert.read_text())
        if self._ca is not None:
            server.load_verify_locations(self._ca)
        believed = self._ca or self._cert
        # The server proves with the secret that it is a node, so its certificate's name is not checked. What
        # a node signs names the certificate, so that another's holder cannot hand a login on.
        client = client_context(believed, self._cert, self._key, check_hostname=False)
        return _Made(server, client, believed.read_text())

    @property
    def context(self) -> ServerContext:
        """For the next connection of a listener."""
        return self._made.held.server

    def client_context(self) -> ssl.SSLContext:
        """For the next connection of the node's own clients."""
        return self._made.held.client

    @property
    def trust(self) -> str:
        return self._made.held.trust

    def reload(self) -> bool:
        """Read the files again if they changed. Files that make no sense leave everything as it is."""
        changed = self._made.reload()
        if changed:
            self._on_reload()
        return changed

    def principal(self, certificate: Mapping[str, Any] | None) -> str | None:
        """Who a client's certificate says it is; None if no rule knows it."""
        if not certificate:
            return ANONYMOUS
        try:
            return self.rules.principal(distinguished_name(certificate.get("subject", ())))
        except NoRuleMatches:
            return None


def _digest_of_first(pem: str) -> bytes:
    """Digest of the first certificate in a file, which is the one that is shown."""
    start = pem.index(ssl.PEM_HEADER)
    end = pem.index(ssl.PEM_FOOTER, start) + len(ssl.PEM_FOOTER)
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem[start:end])).digest()


def client_context(
    ca: Path | None, cert: Path | None = None, key: Path | None = None, *, check_hostname: bool = True
) -> ssl.SSLContext:
    """For connections to a listener: believes `ca` (or what the system believes), shows `cert`."""
    context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    context.check_hostname = check_hostname
    if cert is not None:
        context.load_cert_chain(cert, key)
    return context
