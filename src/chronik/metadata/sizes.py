"""How many bytes the parts of the state take in a snapshot, about. Pure.

A snapshot is sent in one message, so what clients can make the state grow by has a budget (`MetadataStore`).
The state adds up its size as it changes, since encoding it for every command would cost far too much. Brokers
and node keys are left out: there are few, and only nodes make them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from chronik.metadata import commands as c
from chronik.metadata.values import PartitionRegistration
from chronik.model import NodeId
from chronik.security.acls import AclBinding
from chronik.security.api_keys import NamedKey
from chronik.security.quotas import Entity
from chronik.security.scram import Credential
from chronik.security.tokens import DelegationToken

if TYPE_CHECKING:
    from chronik.metadata.security import SecurityState
    from chronik.metadata.state import ClusterState

__all__ = [
    "acl_bytes",
    "configs_bytes",
    "credential_bytes",
    "growth",
    "key_bytes",
    "measure_configs",
    "measure_security",
    "partition_bytes",
    "quota_bytes",
    "resource_bytes",
    "token_bytes",
    "topic_bytes",
]

_TEXT_HEAD: Final = 5
"""The most that msgpack puts before a text."""
_PARTITION: Final = 100
"""The names of a partition's fields, and its numbers."""
_REMOTE: Final = 100
"""The same of a remote log, without the name of its manifest."""
_REPLICA: Final = 6
"""One broker id: in the replicas and, as a rule, in the ISR."""
_TOPIC: Final = 64
_RESOURCE: Final = 8
_CREDENTIAL: Final = 64
_USER: Final = 32
_ACL: Final = 90
_QUOTA: Final = 32
_TOKEN: Final = 100
_KEY: Final = 64


def _text(value: str | None) -> int:
    if value is None:
        return 1
    return _TEXT_HEAD + (len(value) if value.isascii() else len(value.encode(errors="surrogatepass")))


def configs_bytes(values: Mapping[str, str]) -> int:
    return sum(_text(key) + _text(value) for key, value in values.items())


def resource_bytes(name: str, values: Mapping[str, str]) -> int:
    """Configs of a broker, a group or a client metrics subscription; 0 without any."""
    return _RESOURCE + _text(name) + configs_bytes(values) if values else 0


def partition_bytes(partition: PartitionRegistration) -> int:
    """The same whatever the ISR: it changes too often to be counted each time."""
    moving = len(partition.adding) + len(partition.removing)
    remote = partition.remote
    stored = 0 if remote is None else _REMOTE + _text(remote.manifest)
    return _PARTITION + _REPLICA * (len(partition.replicas) + moving) + stored


def partitions_bytes(partitions: Iterable[PartitionRegistration]) -> int:
    return sum(map(partition_bytes, partitions))


def topic_bytes(name: str, configs: Mapping[str, str]) -> int:
    """What a topic takes without its partitions."""
    return _TOPIC + _text(name) + configs_bytes(configs)


def credential_bytes(user: str, credential: Credential | None) -> int:
    if credential is None:
        return 0
    keys = len(credential.salt) + len(credential.stored_key) + len(credential.server_key)
    return _USER + _text(user) + _CREDENTIAL + _text(credential.mechanism) + keys


def acl_bytes(binding: AclBinding) -> int:
    return _ACL + _text(binding.resource_name) + _text(binding.principal) + _text(binding.host)


def quota_bytes(entity: Entity, values: Mapping[str, float] | None) -> int:
    if not values:
        return 0
    names = sum(_text(kind) + _text(name) for kind, name in entity)
    return _QUOTA + names + sum(_text(key) + 9 for key in values)


def token_bytes(token: DelegationToken | None) -> int:
    if token is None:
        return 0
    texts = (token.token_id, token.owner, token.requester, *token.renewers)
    return _TOKEN + sum(map(_text, texts))


def key_bytes(key: NamedKey) -> int:
    return _KEY + _text(key.name) + len(key.digest)


def measure_configs(state: ClusterState) -> int:
    """What `ClusterState.config_bytes` must be, from the beginning."""
    tables = (state.broker_configs, state.group_configs, state.client_metrics)
    return sum(
        topic_bytes(topic.name, topic.configs) + sum(map(partition_bytes, topic.partitions))
        for topic in state.topics.values()
    ) + sum(resource_bytes(name, values) for table in tables for name, values in table.items())


def measure_security(security: SecurityState) -> int:
    """What `SecurityState.size_bytes` must be, from the beginning."""
    users = sum(
        credential_bytes(user, credential)
        for user, held in security.users.items()
        for credential in held.values()
    )
    quotas = sum(quota_bytes(entity, values) for entity, values in security.quotas.items())
    tokens = sum(map(token_bytes, security.tokens.values()))
    keys = sum(map(key_bytes, security.keys.values()))
    return users + sum(map(acl_bytes, security.acls)) + quotas + tokens + keys


# --- what a command would add ---


def growth(state: ClusterState, command: c.Command) -> int:
    """Bytes by which the command makes the state grow. A command that adds nothing has 0 or less and is never
    refused."""
    of_its_kind = _GROWTH.get(type(command))
    return 0 if of_its_kind is None else of_its_kind(state, command)


def _of_partitions(assignments: tuple[tuple[NodeId, ...], ...]) -> int:
    return sum(_PARTITION + _REPLICA * len(replicas) for replicas in assignments)


def _of_topic(_state: ClusterState, command: c.CreateTopic) -> int:
    return topic_bytes(command.name, command.configs) + _of_partitions(command.assignments)


def _of_more_partitions(_state: ClusterState, command: c.AddPartitions) -> int:
    return _of_partitions(command.assignments)


def _of_remote_log(state: ClusterState, command: c.SetRemoteLog) -> int:
    topic = state.topic_by_id(command.topic_id)
    if topic is None or not 0 <= command.partition < len(topic.partitions):
        return 0  # it is refused anyway
    old = topic.partitions[command.partition]
    return partition_bytes(msgspec.structs.replace(old, remote=command.remote)) - partition_bytes(old)


def _of_configs(state: ClusterState, command: c.SetConfigs) -> int:
    present = state.configs(command.resource_type, command.name)
    dropped = present if command.replace else {key: present[key] for key in command.values if key in present}
    added = {key: value for key, value in command.values.items() if value is not None}
    is_new = bool(added) and not present and command.resource_type != c.TOPIC_RESOURCE
    head = resource_bytes(command.name, added) - configs_bytes(added) if is_new else 0
    return head + configs_bytes(added) - configs_bytes(dropped)


def _of_credential(state: ClusterState, command: c.PutCredential) -> int:
    old = state.security.users.get(command.user, {}).get(command.credential.mechanism)
    return credential_bytes(command.user, command.credential) - credential_bytes(command.user, old)


def _of_acls(state: ClusterState, command: c.AddAcls) -> int:
    held = state.security.acls
    return sum(acl_bytes(binding) for binding in set(command.bindings) if binding not in held)


def _of_quota(state: ClusterState, command: c.SetQuota) -> int:
    old = state.security.quotas.get(command.entity, {})
    merged: dict[str, float | None] = {**old, **command.values}
    kept = {key: value for key, value in merged.items() if value is not None}
    return quota_bytes(command.entity, kept) - quota_bytes(command.entity, old)


def _of_token(state: ClusterState, command: c.PutToken) -> int:
    return token_bytes(command.token) - token_bytes(state.security.tokens.get(command.token.token_id))


def _of_key(_state: ClusterState, command: c.PutApiKey) -> int:
    return key_bytes(command.key)


_GROWTH: Final[Mapping[type, Callable[[ClusterState, Any], int]]] = {
    c.CreateTopic: _of_topic,
    c.AddPartitions: _of_more_partitions,
    c.SetConfigs: _of_configs,
    c.SetRemoteLog: _of_remote_log,
    c.PutCredential: _of_credential,
    c.AddAcls: _of_acls,
    c.SetQuota: _of_quota,
    c.PutToken: _of_token,
    c.PutApiKey: _of_key,
}
