"""Logins of the nodes' own clients that are no nodes: HTTP ports (`Http:1`) and query processes (`Query:1`).

Both sides of it: what this node gives to its clients, and whether a client that comes here is who it says.

A node that has a key gives each client a key of its own with a warrant (`security/warrants.py`), new for
each process; every broker can check it. The password that goes with it is the same for all nodes, made from
the cluster's secret: by it the broker proves to the client that it belongs to the cluster. Alone it opens
nothing.

A node without a key is alone. It gives its clients a password that it drew at its start and nobody else has.

At level 1 there are nodes that know no warrants: there the password is enough, and HTTP ports log in as
nodes.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from functools import partial
from typing import Final

from chronik.client.login import NODE_MECHANISM, Login
from chronik.metadata.levels import LEVEL_CLIENT_WARRANT, LEVEL_HTTP_USER
from chronik.metadata.state import ClusterState
from chronik.model import NodeId
from chronik.query.messages import Credentials
from chronik.security.exchange import Authenticated, AuthenticationFailed
from chronik.security.scram import INVALID_CREDENTIALS, ScramServer, Sign
from chronik.security.warrants import ClientKey, is_signed_by, issue, read_warrant
from chronik.server.access import HTTP, QUERY

__all__ = ["HTTP_USER", "OWN_USERS", "QUERY_USER", "OwnClients", "own_password"]

QUERY_USER: Final = "query"
HTTP_USER: Final = "http"
OWN_USERS: Final = {QUERY_USER: QUERY, HTTP_USER: HTTP}
"""The kind of principal, by the name that a client logs in with."""
SEED_BYTES: Final = 32


def own_password(secret: str, user: str) -> str:
    """Password of one of the nodes' own clients. Derived from a secret, which it does not reveal."""
    return hmac.digest(secret.encode(), f"chronik {user} process".encode(), "sha256").hex()


class OwnClients:
    def __init__(
        self,
        node_id: NodeId,
        state: Callable[[], ClusterState],
        node_secrets: tuple[str, ...],
        sign: Sign | None,
    ) -> None:
        """`node_secrets` are the cluster's: the first is proven, all are believed. `sign` is by this node's
        own key, where it has one."""
        self._node_id = node_id
        self._state = state
        self._sign = sign
        self._secrets = (secrets.token_urlsafe(32),) if sign is None else node_secrets
        self._http_seed = secrets.token_bytes(SEED_BYTES)

    # --- what this node's clients log in with ---

    def http_login(self) -> Login | None:
        """The login of this node's HTTP port at the cluster's present level; None if it has to log in as the
        node."""
        if self._state().level < LEVEL_HTTP_USER:
            return None
        return Login(
            mechanism=NODE_MECHANISM,
            user=HTTP_USER,
            password=own_password(self._secrets[0], HTTP_USER),
            sign=None if self._sign is None else ClientKey(self._http_seed).sign,
            warrant=self._warrant(HTTP_USER, self._http_seed),
        )

    def query_credentials(self, trust: str | None) -> Credentials:
        """For a query process, with a new key."""
        seed = secrets.token_bytes(SEED_BYTES)
        return Credentials(
            mechanism=NODE_MECHANISM,
            user=QUERY_USER,
            password=own_password(self._secrets[0], QUERY_USER),
            seed=b"" if self._sign is None else seed,
            warrant=self._warrant(QUERY_USER, seed),
            trust=trust,
        )

    def _warrant(self, user: str, seed: bytes) -> bytes:
        own = self._state().brokers.get(self._node_id)
        if self._sign is None or own is None:
            return b""
        return issue(self._node_id, user, own.epoch, ClientKey(seed).public, self._sign)

    # --- who comes here ---

    def passwords(self, user: str) -> tuple[str, ...]:
        """The passwords that are accepted."""
        return tuple(own_password(secret, user) for secret in self._secrets)

    def who(self, user: str, scram: ScramServer) -> Authenticated:
        """Who a client is that knew the password. AuthenticationFailed if that is not enough."""
        state, kind = self._state(), OWN_USERS[user]
        if self._sign is None:
            return Authenticated(f"{kind}{self._node_id}")
        if state.level < LEVEL_CLIENT_WARRANT:
            # Over with the level: a connection must not keep what the next one does not get.
            return Authenticated(kind, holds=lambda: self._state().level < LEVEL_CLIENT_WARRANT)
        if not scram.warrant:
            raise AuthenticationFailed(f"somebody has the secret but no warrant for {kind}")
        warrant = read_warrant(scram.warrant)
        node, node_key = state.brokers.get(warrant.node_id), state.node_keys.get(warrant.node_id)
        if node is None or node_key is None or warrant.user != user:
            raise AuthenticationFailed(INVALID_CREDENTIALS)
        if warrant.epoch < node.epoch:
            raise AuthenticationFailed(f"the warrant was issued before node {warrant.node_id} last started")
        if not warrant.is_issued_by(node_key):
            raise AuthenticationFailed(f"the warrant was not signed with the key of node {warrant.node_id}")
        if not scram.is_signed(partial(is_signed_by, warrant.public_key)):
            raise AuthenticationFailed(f"the warrant of node {warrant.node_id} is for another client")

        def holds() -> bool:
            now = self._state()
            registered = now.brokers.get(warrant.node_id)
            return (
                registered is not None
                and registered.epoch <= warrant.epoch
                and now.node_keys.get(warrant.node_id) == node_key
            )

        return Authenticated(f"{kind}{warrant.node_id}", holds=holds)
