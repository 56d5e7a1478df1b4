"""TLS between nodes: the certificate that is shown and those that are accepted, read again when they change.

A node's certificate is bound to its cluster and its id by a URI among its alternative names:
`chronik://CLUSTER_ID/node/NODE_ID`. Both ends show one that an authority of `node_tls_ca` has signed, and
each checks that it is the other node's. Who holds the certificate of one node cannot pass for another.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from chronik.config import ConfigError
from chronik.model import NodeId, PeerError

log = logging.getLogger(__name__)

_URI: Final = re.compile(r"chronik://([^/]+)/node/(0|[1-9][0-9]{0,9})")


class NodeName(NamedTuple):
    """What a certificate is bound to."""

    cluster_id: str
    node_id: NodeId

    @property
    def uri(self) -> str:
        return f"chronik://{self.cluster_id}/node/{self.node_id}"

    @staticmethod
    def parse(uri: str) -> NodeName | None:
        found = _URI.fullmatch(uri)
        return None if found is None else NodeName(found[1], int(found[2]))


class _Contexts(NamedTuple):
    server: ssl.SSLContext
    client: ssl.SSLContext
    name: NodeName


class NodeTls:
    """New connections get what the files hold; those that are open stay as they are."""

    def __init__(
        self, *, node_id: NodeId, cert: Path, key: Path | None, ca: Path, is_required: bool = True
    ) -> None:
        """`is_required=False`: peers that do not speak TLS yet are spoken to as well."""
        self._node_id = node_id
        self._files = (cert, key or cert, ca)
        self.is_required = is_required
        self._seen = self._look()
        self._refused: tuple[object, ...] = ()
        """State of the files at the last failed reload, so that it is logged once."""
        try:
            self._contexts = self._read()
        except (OSError, ValueError) as error:
            raise ConfigError(f"the links between nodes cannot use {cert}: {error}") from None

    @property
    def cluster_id(self) -> str:
        return self._contexts.name.cluster_id

    def server_context(self) -> ssl.SSLContext:
        return self._current().server

    def client_context(self) -> ssl.SSLContext:
        return self._current().client

    def peer(self, certificate: Mapping[str, Any] | None) -> NodeId:
        """The node of the peer's certificate, which is as `ssl` gives it; PeerError if of another cluster."""
        names = [
            NodeName.parse(value)
            for kind, value in (certificate or {}).get("subjectAltName", ())
            if kind == "URI"
        ]
        found = next((name for name in names if name is not None), None)
        if found is None:
            raise PeerError("the peer's certificate names no node (chronik://CLUSTER_ID/node/NODE_ID)")
        if found.cluster_id != self.cluster_id:
            raise PeerError(f"the peer's certificate is of cluster {found.cluster_id[:80]!r}")
        return found.node_id

    def _look(self) -> tuple[object, ...]:
        try:
            stats = [path.stat() for path in self._files]
        except OSError:
            return ()
        return tuple((one.st_mtime_ns, one.st_size, one.st_ino) for one in stats)

    def _current(self) -> _Contexts:
        seen = self._look()
        if seen and seen not in (self._seen, self._refused):
            try:
                self._contexts = self._read()
            except (OSError, ValueError) as error:
                # For example a certificate whose key is not there yet.
                self._refused = seen
                log.warning("the node's certificate changed and cannot be used, the old one stays: %s", error)
            else:
                self._seen, self._refused = seen, ()
                log.info("the certificate of the links between nodes was reloaded")
        return self._contexts

    def _read(self) -> _Contexts:
        """OSError or ValueError with a sentence if the files are not what they should be."""
        cert, key, ca = self._files
        name = _name_in(cert)
        if name is None:
            raise ValueError("it names no node (chronik://CLUSTER_ID/node/NODE_ID)")
        if name.node_id != self._node_id:
            raise ValueError(f"it is of node {name.node_id}, this is node {self._node_id}")
        contexts = [ssl.SSLContext(side) for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)]
        for context in contexts:
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.check_hostname = False  # nodes are known by their ids, wherever they run
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_cert_chain(cert, key)
            context.load_verify_locations(ca)
        server, client = contexts
        return _Contexts(server, client, name)


def _name_in(cert: Path) -> NodeName | None:
    from cryptography import x509  # loads slowly, and most nodes have no certificate for each other

    certificate = x509.load_pem_x509_certificate(cert.read_bytes())
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    found = (NodeName.parse(uri) for uri in names.get_values_for_type(x509.UniformResourceIdentifier))
    return next((name for name in found if name is not None), None)
