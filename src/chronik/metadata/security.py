"""The part of the cluster's state that says who may log in and do what. Pure.

Credentials are what SCRAM leaves of a password, API keys are their digests; tokens have no secret here. All
are in the log and in snapshots, and no request shows them: they are no topic that could be fetched, and the
answers to clients leave the keys out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from chronik.metadata import commands as c
from chronik.metadata.events import Event, SecurityChanged
from chronik.metadata.sizes import (
    acl_bytes,
    credential_bytes,
    key_bytes,
    measure_security,
    quota_bytes,
    token_bytes,
)
from chronik.metadata.values import Refusal
from chronik.model import ErrorCode
from chronik.security.acls import AclBinding
from chronik.security.api_keys import NamedKey
from chronik.security.quotas import Entity
from chronik.security.scram import Credential
from chronik.security.tokens import DelegationToken

__all__ = ["SECURITY_COMMANDS", "SecuritySnapshot", "SecurityState"]

KEYS_MAX: Final = 1_000
ACLS_MAX: Final = 100_000
QUOTAS_MAX: Final = 100_000
TOKENS_MAX: Final = 10_000
USERS_MAX: Final = 100_000


class UserEntry(msgspec.Struct, frozen=True, kw_only=True):
    user: str
    """The user's name, without the `User:` of its principal."""
    credentials: tuple[Credential, ...]
    """At most one for each mechanism."""


class QuotaEntry(msgspec.Struct, frozen=True, kw_only=True):
    entity: Entity
    """Pairs of type (`client-id`, `ip`, `user`) and name, sorted by type; null is the default."""
    values: dict[str, float]
    """Values by Kafka's name of the quota, such as `producer_byte_rate`."""


class SecuritySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    users: tuple[UserEntry, ...] = ()
    acls: tuple[AclBinding, ...] = ()
    quotas: tuple[QuotaEntry, ...] = ()
    tokens: tuple[DelegationToken, ...] = ()
    keys: tuple[NamedKey, ...] = ()


class SecurityState:
    """Read it freely; change it through `ClusterState.apply` only."""

    def __init__(self) -> None:
        self.users: dict[str, dict[str, Credential]] = {}
        """Credentials by user, then by mechanism."""
        self.acls: frozenset[AclBinding] = frozenset()
        self.quotas: dict[Entity, dict[str, float]] = {}
        self.tokens: dict[str, DelegationToken] = {}
        self.keys: dict[bytes, NamedKey] = {}
        """API keys of HTTP, by their digest."""
        self.size_bytes = 0
        """Size as `sizes` reckons it; adjusted with every change."""

    def apply(self, command: Any) -> Iterable[Event]:
        what = _APPLY[type(command)](self, command)
        return (SecurityChanged(what=what),)

    def _put_credential(self, command: c.PutCredential) -> str:
        if not command.user:
            raise Refusal(ErrorCode.unacceptable_credential, "Username must not be empty")
        if command.user not in self.users and len(self.users) >= USERS_MAX:
            raise Refusal(ErrorCode.policy_violation, f"There are {USERS_MAX} users already.")
        held = self.users.get(command.user, {})
        old = held.get(command.credential.mechanism)
        self.size_bytes += credential_bytes(command.user, command.credential)
        self.size_bytes -= credential_bytes(command.user, old)
        self.users[command.user] = {**held, command.credential.mechanism: command.credential}
        return "credentials"

    def _remove_credential(self, command: c.RemoveCredential) -> str:
        held = dict(self.users.get(command.user, {}))
        old = held.pop(command.mechanism, None)
        if old is None:
            raise Refusal(
                ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist"
            )
        self.size_bytes -= credential_bytes(command.user, old)
        if held:
            self.users[command.user] = held
        else:
            del self.users[command.user]
        return "credentials"

    def _add_acls(self, command: c.AddAcls) -> str:
        new = frozenset(command.bindings).difference(self.acls)
        if len(self.acls) + len(new) > ACLS_MAX:
            raise Refusal(ErrorCode.policy_violation, f"There may be {ACLS_MAX} ACLs.")
        self.size_bytes += sum(map(acl_bytes, new))
        self.acls = self.acls.union(new)
        return "acls"

    def _remove_acls(self, command: c.RemoveAcls) -> str:
        gone = self.acls.intersection(command.bindings)
        self.size_bytes -= sum(map(acl_bytes, gone))
        self.acls = self.acls.difference(gone)
        return "acls"

    def _set_quota(self, command: c.SetQuota) -> str:
        old = self.quotas.get(command.entity, {})
        merged: Mapping[str, float | None] = {**old, **command.values}
        values = {key: value for key, value in merged.items() if value is not None}
        if values:
            if command.entity not in self.quotas and len(self.quotas) >= QUOTAS_MAX:
                raise Refusal(ErrorCode.policy_violation, f"There may be quotas of {QUOTAS_MAX} entities.")
            self.quotas[command.entity] = values
        else:
            self.quotas.pop(command.entity, None)
        self.size_bytes += quota_bytes(command.entity, values) - quota_bytes(command.entity, old)
        return "quotas"

    def _put_token(self, command: c.PutToken) -> str:
        old = self.tokens.get(command.token.token_id)
        if old is None and len(self.tokens) >= TOKENS_MAX:
            raise Refusal(ErrorCode.policy_violation, f"There are {TOKENS_MAX} delegation tokens already.")
        self.size_bytes += token_bytes(command.token) - token_bytes(old)
        self.tokens[command.token.token_id] = command.token
        return "tokens"

    def _remove_token(self, command: c.RemoveToken) -> str:
        old = self.tokens.pop(command.token_id, None)
        if old is None:
            raise Refusal(ErrorCode.delegation_token_not_found, "There is no such delegation token.")
        self.size_bytes -= token_bytes(old)
        return "tokens"

    def _put_api_key(self, command: c.PutApiKey) -> str:
        if len(self.keys) >= KEYS_MAX:
            raise Refusal(ErrorCode.policy_violation, f"There are {KEYS_MAX} API keys already.")
        if self._key_named(command.key.name) is not None:
            raise Refusal(ErrorCode.duplicate_resource, f"There is an API key {command.key.name} already.")
        self.size_bytes += key_bytes(command.key)
        self.keys[command.key.digest] = command.key
        return "keys"

    def _remove_api_key(self, command: c.RemoveApiKey) -> str:
        held = self._key_named(command.name)
        if held is None:
            raise Refusal(ErrorCode.resource_not_found, "There is no such API key.")
        del self.keys[held.digest]
        self.size_bytes -= key_bytes(held)
        return "keys"

    def _key_named(self, name: str) -> NamedKey | None:
        return next((key for key in self.keys.values() if key.name == name), None)

    # --- in one piece ---

    def snapshot(self) -> SecuritySnapshot:
        """Equal states give equal snapshots."""
        return SecuritySnapshot(
            users=tuple(
                UserEntry(user=user, credentials=tuple(held[name] for name in sorted(held)))
                for user, held in sorted(self.users.items())
            ),
            acls=tuple(sorted(self.acls)),
            quotas=tuple(
                QuotaEntry(entity=entity, values=dict(sorted(values.items())))
                for entity, values in sorted(self.quotas.items(), key=lambda item: repr(item[0]))
            ),
            tokens=tuple(token for _, token in sorted(self.tokens.items())),
            keys=tuple(key for _, key in sorted(self.keys.items())),
        )

    @staticmethod
    def restore(snapshot: SecuritySnapshot) -> SecurityState:
        state = SecurityState()
        state.users = {
            entry.user: {one.mechanism: one for one in entry.credentials} for entry in snapshot.users
        }
        state.acls = frozenset(snapshot.acls)
        state.quotas = {entry.entity: dict(entry.values) for entry in snapshot.quotas}
        state.tokens = {token.token_id: token for token in snapshot.tokens}
        state.keys = {key.digest: key for key in snapshot.keys}
        state.size_bytes = measure_security(state)
        return state


_APPLY: Final[Mapping[type, Callable[[SecurityState, Any], str]]] = {
    c.PutCredential: SecurityState._put_credential,
    c.RemoveCredential: SecurityState._remove_credential,
    c.AddAcls: SecurityState._add_acls,
    c.RemoveAcls: SecurityState._remove_acls,
    c.SetQuota: SecurityState._set_quota,
    c.PutToken: SecurityState._put_token,
    c.RemoveToken: SecurityState._remove_token,
    c.PutApiKey: SecurityState._put_api_key,
    c.RemoveApiKey: SecurityState._remove_api_key,
}
SECURITY_COMMANDS: Final = tuple(_APPLY)
