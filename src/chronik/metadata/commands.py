"""Changes to the cluster's state, as they stand in the metadata log.

A log entry is one byte of format version and a msgpack map per command, tagged with its type. Fields may be
added with a default; a command or field never changes its meaning. A node that meets a format or a command
that it does not know stops applying: skipping it would make its state differ from the others'.
"""

from __future__ import annotations

from typing import Final, TypeAlias
from uuid import UUID

import msgspec

from chronik.model import NodeId, TooNew, refuse_newer
from chronik.security.acls import AclBinding
from chronik.security.api_keys import NamedKey
from chronik.security.quotas import Entity
from chronik.security.scram import Credential
from chronik.security.tokens import DelegationToken

__all__ = [
    "BROKER_LOGGER_RESOURCE",
    "BROKER_RESOURCE",
    "CLIENT_METRICS_RESOURCE",
    "GROUP_RESOURCE",
    "TOPIC_RESOURCE",
    "AddAcls",
    "AddPartitions",
    "AdmitNode",
    "AllocateProducerIds",
    "Batch",
    "ChangePartition",
    "Command",
    "CommandEntry",
    "CreateTopic",
    "DeleteTopic",
    "DrainNode",
    "Endpoint",
    "FenceBroker",
    "InitCluster",
    "Noop",
    "PutApiKey",
    "PutCredential",
    "PutToken",
    "Reassign",
    "RegisterBroker",
    "RemoteLog",
    "RemoveAcls",
    "RemoveApiKey",
    "RemoveCredential",
    "RemoveNode",
    "RemoveToken",
    "SetConfigs",
    "SetLevel",
    "SetQuota",
    "SetRemoteLog",
    "SetVoter",
    "UnfenceBroker",
    "UnknownCommand",
    "UnregisterBroker",
    "decode_entry",
    "encode_entry",
    "name_of",
]

FORMAT_VERSION: Final = 1

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
BROKER_LOGGER_RESOURCE: Final = 8
CLIENT_METRICS_RESOURCE: Final = 16
GROUP_RESOURCE: Final = 32
"""Kafka's numbers for what a config belongs to. The broker named "" stands for all brokers."""


class UnknownCommand(TooNew):
    """The metadata log holds something that this version of chronik cannot read."""


class _Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    pass


class Noop(_Command, frozen=True, kw_only=True, tag="noop"):
    """Changes nothing; a new leader commits one to learn what is committed before it."""


class InitCluster(_Command, frozen=True, kw_only=True, tag="init_cluster"):
    """Gives the cluster its id, once; later ones are ignored, so that any node may submit it."""

    cluster_id: str


class SetLevel(_Command, frozen=True, kw_only=True, tag="set_level"):
    """Raise the cluster's level (`metadata.levels`). A node that does not know the level ends."""

    level: int


class CreateTopic(_Command, frozen=True, kw_only=True, tag="create_topic"):
    name: str
    topic_id: UUID
    assignments: tuple[tuple[NodeId, ...], ...]
    """Full replica list of each partition, preferred leader first."""
    configs: dict[str, str] = {}


class DeleteTopic(_Command, frozen=True, kw_only=True, tag="delete_topic"):
    topic_id: UUID


class AddPartitions(_Command, frozen=True, kw_only=True, tag="add_partitions"):
    topic_id: UUID
    first_partition: int
    """Number of partitions that the submitter saw; refused if the topic has another number by now."""
    assignments: tuple[tuple[NodeId, ...], ...]


class ChangePartition(_Command, frozen=True, kw_only=True, tag="change_partition"):
    """New leadership or ISR of one partition; what is None stays."""

    topic_id: UUID
    partition: int
    partition_epoch: int
    """Epoch of the state that the submitter saw; refused if the partition has changed since."""
    leader: NodeId | None = None
    isr: tuple[NodeId, ...] | None = None
    bump_leader_epoch: bool = False
    """Start a new leader epoch though the leader stays."""
    unclean: bool = False
    """Allow a leader that is not in the ISR; the ISR becomes that leader alone."""


class RemoteLog(msgspec.Struct, frozen=True, kw_only=True):
    """What of a partition is in the object store, and which manifest says where (KIP-405)."""

    start_offset: int
    """Where the whole log starts, as long as it starts in the store; never goes back."""
    end_offset: int
    """Everything from the start to here is in the store; never goes back."""
    manifest: str = ""
    """Name of the object that lists the segments; empty if there are none."""
    manifest_bytes: int = 0
    manifest_crc: int = 0
    size_bytes: int = 0
    """Size of all segments together."""


class SetRemoteLog(_Command, frozen=True, kw_only=True, tag="set_remote_log"):
    """Make a manifest the one that counts. Only the partition's leader submits it."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    """The submitter's leader epoch; the command is refused if the partition has another one by now."""
    previous: str
    """The manifest that this one was made from; refused if another one counts by now."""
    remote: RemoteLog


class Reassign(_Command, frozen=True, kw_only=True, tag="reassign"):
    """Move a partition's replicas. The move ends by itself as soon as the target is in sync."""

    topic_id: UUID
    partition: int
    target: tuple[NodeId, ...] | None
    """Preferred leader first; None gives a move up that is under way."""
    partition_epoch: int | None = None
    """The epoch that the submitter saw; refused if the partition has another one by now. None: do not
    compare."""


class SetConfigs(_Command, frozen=True, kw_only=True, tag="set_configs"):
    resource_type: int
    name: str
    values: dict[str, str | None]
    """None removes the key."""
    replace: bool = False
    """Drop every key that is not named (the old AlterConfigs)."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    port: int


class RegisterBroker(_Command, frozen=True, kw_only=True, tag="register_broker"):
    broker_id: NodeId
    incarnation: UUID
    """A new random value at every start of the node."""
    endpoints: dict[str, Endpoint]
    """The endpoints by listener: kafka, wal, raft, http."""
    rack: str | None = None
    fenced: bool = False
    public_key: bytes = b""
    """The node's own public key. Refused if the node is known by another one; AdmitNode forgets that one."""


class FenceBroker(_Command, frozen=True, kw_only=True, tag="fence_broker"):
    broker_id: NodeId
    broker_epoch: int
    resigned: bool = False
    """Whether the broker itself asked for it because it stops. Then it stays fenced until it registers
    again."""


class UnfenceBroker(_Command, frozen=True, kw_only=True, tag="unfence_broker"):
    broker_id: NodeId
    broker_epoch: int


class UnregisterBroker(_Command, frozen=True, kw_only=True, tag="unregister_broker"):
    """Forget a broker until it registers again. Its replicas and its vote stay."""

    broker_id: NodeId
    fenced_only: bool = False
    """Refuse if the broker is alive. False only in logs that were written before there was this field."""


class DrainNode(_Command, frozen=True, kw_only=True, tag="drain_node"):
    """Whether a node gets no replicas any more, because it is to be emptied."""

    broker_id: NodeId
    draining: bool = True


class SetVoter(_Command, frozen=True, kw_only=True, tag="set_voter"):
    """Whether an operator wants a node to vote on metadata; the controller sees to it."""

    broker_id: NodeId
    votes: bool


class RemoveNode(_Command, frozen=True, kw_only=True, tag="remove_node"):
    """Take a node out of the cluster: its registration now, its vote as soon as the controller sees it.

    It cannot come back before AdmitNode. Refused while it has replicas.
    """

    broker_id: NodeId
    force: bool = False
    """Drop its replicas where another one is in sync; what nobody else has stays assigned to it, offline."""


class AdmitNode(_Command, frozen=True, kw_only=True, tag="admit_node"):
    """Let a node that was removed register again, and any with a new key."""

    broker_id: NodeId


class AllocateProducerIds(_Command, frozen=True, kw_only=True, tag="allocate_producer_ids"):
    """The outcome's value is the first id of the block."""

    broker_id: NodeId
    count: int


class PutCredential(_Command, frozen=True, kw_only=True, tag="put_credential"):
    """Let a user log in: a new user, or a new password."""

    user: str
    credential: Credential


class RemoveCredential(_Command, frozen=True, kw_only=True, tag="remove_credential"):
    user: str
    mechanism: str


class AddAcls(_Command, frozen=True, kw_only=True, tag="add_acls"):
    bindings: tuple[AclBinding, ...]


class RemoveAcls(_Command, frozen=True, kw_only=True, tag="remove_acls"):
    """Remove these ACLs; those that do not exist are ignored."""

    bindings: tuple[AclBinding, ...]


class SetQuota(_Command, frozen=True, kw_only=True, tag="set_quota"):
    entity: Entity
    values: dict[str, float | None]
    """Values by name of the quota; None removes one."""


class PutToken(_Command, frozen=True, kw_only=True, tag="put_token"):
    """A new delegation token, or an old one with a new expiry."""

    token: DelegationToken


class RemoveToken(_Command, frozen=True, kw_only=True, tag="remove_token"):
    token_id: str


class PutApiKey(_Command, frozen=True, kw_only=True, tag="put_api_key"):
    """A new key of HTTP; its name must be new."""

    key: NamedKey


class RemoveApiKey(_Command, frozen=True, kw_only=True, tag="remove_api_key"):
    name: str


SingleCommand: TypeAlias = (
    Noop
    | InitCluster
    | SetLevel
    | CreateTopic
    | DeleteTopic
    | AddPartitions
    | ChangePartition
    | SetRemoteLog
    | Reassign
    | SetConfigs
    | RegisterBroker
    | FenceBroker
    | UnfenceBroker
    | UnregisterBroker
    | DrainNode
    | SetVoter
    | RemoveNode
    | AdmitNode
    | AllocateProducerIds
    | PutCredential
    | RemoveCredential
    | AddAcls
    | RemoveAcls
    | SetQuota
    | PutToken
    | RemoveToken
    | PutApiKey
    | RemoveApiKey
)


class Batch(_Command, frozen=True, kw_only=True, tag="batch"):
    """Several commands in one log entry; each is accepted or refused by itself, in order."""

    commands: tuple[SingleCommand, ...]


Command: TypeAlias = SingleCommand | Batch


def name_of(command: Command) -> str:
    """`create_topic`, `register_broker`, ...; a batch of one kind has the name of what it holds."""
    if isinstance(command, Batch):
        names = {name_of(one) for one in command.commands}
        if len(names) == 1:
            return names.pop()
    return str(command.__struct_config__.tag)


class CommandEntry(msgspec.Struct, frozen=True, array_like=True):
    """A command with the name of its submission, by which the submitter knows it when it is committed."""

    origin: int
    sequence: int
    command: Command


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(CommandEntry)


def encode_entry(entry: CommandEntry) -> bytes:
    return bytes((FORMAT_VERSION,)) + _ENCODER.encode(entry)


def decode_entry(data: bytes | memoryview) -> CommandEntry:
    if not data:
        raise UnknownCommand("a metadata entry is empty")
    refuse_newer("an entry of the metadata log", data[0], FORMAT_VERSION)
    try:
        return _DECODER.decode(memoryview(data)[1:])
    except ValueError as error:  # UnicodeDecodeError is no DecodeError
        raise UnknownCommand(
            f"an entry of the metadata log cannot be read ({error}): if the cluster was upgraded, start this "
            "node with the release that the others run"
        ) from error
