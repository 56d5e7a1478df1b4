"""Builds a node's security from its settings: listeners, logins, ACLs, and the node's own clients."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from chronik.client.login import NODE_MECHANISM, Login
from chronik.client.options import ClientOptions
from chronik.config import Settings
from chronik.metadata.events import CertificatesReloaded, Event, Resync, SecurityChanged
from chronik.metadata.security import SecurityState
from chronik.metadata.store import MetadataStore
from chronik.query.messages import Credentials
from chronik.security.quotas import Quotas
from chronik.security.scram import Sign
from chronik.server.access import Authorizer
from chronik.server.audit import AuditTrail
from chronik.server.decoys import Decoys, decoy_key
from chronik.server.first_user import admit_first_user
from chronik.server.listener import Door
from chronik.server.listeners import ListenerSpec, inter_broker_listener, listener_specs, listeners_of_nodes
from chronik.server.login_failures import LoginFailures
from chronik.server.node_signature import NodeSignature
from chronik.server.own_clients import OwnClients
from chronik.server.sasl import Authenticator
from chronik.server.tls import ListenerTls
from chronik.storage.disk import Disk

log = logging.getLogger(__name__)

__all__ = ["Security"]


class Security:
    def __init__(
        self,
        settings: Settings,
        metadata: MetadataStore,
        disk: Disk,
        now_ms: Callable[[], int],
        sign: Sign | None = None,
    ) -> None:
        """`sign` is by this node's own key, where it has one."""
        self._settings = settings
        self.now_ms = now_ms
        self._metadata = metadata
        self._sign = sign
        self._secret = settings.cluster_secret or secrets.token_urlsafe(32)
        """The node's own password. Random and new at each start if `cluster_secret` is not set."""
        self.specs = listener_specs(settings)
        self.own = inter_broker_listener(settings, self.specs)
        """The listener by which this node's clients reach it and other nodes."""
        self._of_nodes = listeners_of_nodes(settings, self.specs)
        is_open = not settings.authorizer and not any(spec.protocol != "PLAINTEXT" for spec in self.specs)
        self.audit = AuditTrail(
            node_id=settings.node_id,
            now_ms=now_ms,
            is_on=not is_open and settings.audit_log != "off",
            with_changes=settings.audit_log == "changes",
        )
        self.authorizer: Authorizer | None = None
        if settings.authorizer:
            names = (settings.super_users or "").split(";")
            self.authorizer = Authorizer(
                metadata,
                super_users=[name.strip() for name in names if name.strip()],
                allow_if_no_acl=settings.allow_everyone_if_no_acl_found,
                audit=self.audit,
            )
        self.failures = LoginFailures(self.audit.login_failed)
        self._own_clients = OwnClients(settings.node_id, lambda: metadata.state, self._secrets(), sign)
        self.authenticator: Authenticator | None = None
        self._decoys: Decoys | None = None
        if not is_open:
            self._decoys = Decoys(decoy_key(settings, disk), lambda: metadata.state.security.users)
            self.authenticator = Authenticator(
                settings,
                metadata,
                self.authorizer,
                now_ms=now_ms,
                node_secrets=self._secrets(),
                own_clients=self._own_clients,
                failures=self.failures,
                decoys=self._decoys,
            )
        self.node_signature: NodeSignature | None = None
        """How nodes prove over HTTP who they are; None where they share no secret."""
        if settings.cluster_secret is not None:
            self.node_signature = NodeSignature(
                self._secrets(),
                settings.node_id,
                now_ms,
                sign=sign,
                registered_key=lambda node_id: metadata.state.node_keys.get(node_id),
            )
        self.quotas = Quotas(metadata.state.security.quotas)
        metadata.bus.listen(self._on_event)
        self._tls: ListenerTls | None = None
        if any(spec.has_tls for spec in self.specs):
            self._tls = ListenerTls(settings, lambda: metadata.bus.publish([CertificatesReloaded()]))

    def _secrets(self) -> tuple[str, ...]:
        """The nodes' passwords that are accepted."""
        other = self._settings.cluster_secret_accepted
        return (self._secret,) if other in (None, "none") else (self._secret, other)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Resync) or (isinstance(event, SecurityChanged) and event.what == "quotas"):
            self.quotas.change(self._metadata.state.security.quotas)
        if self._decoys is not None and isinstance(event, Resync | SecurityChanged):
            self._decoys.changed()

    def is_member(self, node_id: int) -> bool:
        return node_id in self._metadata.state.brokers

    @property
    def state(self) -> SecurityState:
        return self._metadata.state.security

    def door(self, spec: ListenerSpec) -> Door:
        return Door(
            endpoint=spec.endpoint,
            tls=self._tls if spec.has_tls else None,
            authenticator=self.authenticator,
            needs_login=spec.has_sasl,
            takes_nodes=spec.name in self._of_nodes,
        )

    def client_options(self, client_id: str, **fields: Any) -> ClientOptions:
        """For a client of the node itself, which comes by the nodes' own listener."""
        tls = self._tls.client_context if self.own.has_tls and self._tls is not None else None
        return ClientOptions(client_id=client_id, tls=tls, login=self.own_login, **fields)

    def http_client_options(self) -> ClientOptions:
        """For the HTTP port, which reads and writes records for its callers and needs no node's rights."""
        options = self.client_options("chronik-http")
        as_node = self.own_login
        if as_node is None:
            return options
        # Asked at each connection: a node that registers again has another epoch.
        return replace(options, login=lambda: self._own_clients.http_login() or as_node)

    async def close(self) -> None:
        """End what logins have under way."""
        if self.authenticator is not None:
            await self.authenticator.close()

    async def admit_first_user(self, data_dir: Path) -> None:
        """Create the user that `chronik init` named; log a warning if nobody could log in."""
        if self.authenticator is None:
            return
        await admit_first_user(data_dir, self._metadata)
        asks = any(spec.has_sasl for spec in self.specs)
        if asks and not self._metadata.state.security.users and self.authenticator.keys is None:
            log.warning(
                "there are no users, so nobody can log in: stop the node, run `chronik init --admin NAME`, "
                "start it again"
            )

    def refusals(self) -> tuple[int, int]:
        """Logins that failed, and decisions against a client."""
        return self.failures.total, 0 if self.authorizer is None else self.authorizer.denied

    def query_credentials(self) -> Credentials | None:
        """What a query process logs in with from now on: good for reading topics only."""
        if self.own_login is None:
            return None
        trust = self._tls.trust if self.own.has_tls and self._tls is not None else None
        return self._own_clients.query_credentials(trust)

    @property
    def own_login(self) -> Login | None:
        """None if the nodes' listener asks for no login: nodes without security would not understand one."""
        if not self.own.has_sasl and self.authorizer is None:
            return None
        name = str(self._settings.node_id)
        return Login(mechanism=NODE_MECHANISM, user=name, password=self._secret, sign=self._sign)
