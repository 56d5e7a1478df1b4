"""The bytes of `__consumer_offsets`: keys and values in Kafka's own formats.

A key begins with an int16 that says what it is, a value with an int16 that is its version. So Apache
Kafka's dump tool reads our topic (`--offsets-decoder`). Offset commits and classic groups are written in
version 3, the records of KIP-848 in version 0; all older and newer layouts of those that Kafka 4.1 knows
are read as well. A null value (tombstone) deletes what its key names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

from chronik.groups.assignors import Partition, Partitions
from chronik.groups.classic_messages import SavedGroup, SavedMember
from chronik.groups.consumer_group import ConsumerGroup
from chronik.groups.consumer_member import ConsumerMember, MemberState
from chronik.groups.consumer_messages import Part
from chronik.groups.offsets import OffsetAndMetadata
from chronik.model import TopicPartition
from chronik.records.fields import FieldReader, FieldWriter

_OFFSET_COMMIT: Final = 1
_GROUP_METADATA: Final = 2
_PARTS_PER_MEMBER: Final = (Part.MEMBER, Part.TARGET, Part.CURRENT)


@dataclass(frozen=True, slots=True)
class OffsetKey:
    group_id: str
    tp: TopicPartition


@dataclass(frozen=True, slots=True)
class GroupKey:
    group_id: str


@dataclass(frozen=True, slots=True)
class PartKey:
    """A record of a KIP-848 group; `member_id` is empty for the parts that belong to the whole group."""

    group_id: str
    part: Part
    member_id: str = ""


Key: TypeAlias = OffsetKey | GroupKey | PartKey


def encode_key(key: Key) -> bytes:
    out = FieldWriter()
    match key:
        case OffsetKey(group_id, tp):
            out.int16(_OFFSET_COMMIT).string(group_id).string(tp.topic).int32(tp.partition)
        case GroupKey(group_id):
            out.int16(_GROUP_METADATA).string(group_id)
        case PartKey(group_id, part, member_id):
            out.int16(part.value).string(group_id)
            if part in _PARTS_PER_MEMBER:
                out.string(member_id)
    return bytes(out.data)


def decode_key(data: bytes) -> Key | None:
    """None: a kind of record that this broker does not keep (share groups, streams groups)."""
    fields = FieldReader(data)
    kind = fields.int16()
    if kind in (0, _OFFSET_COMMIT):
        return OffsetKey(fields.string(), TopicPartition(fields.string(), fields.int32()))
    if kind == _GROUP_METADATA:
        return GroupKey(fields.string())
    if kind not in {part.value for part in Part}:
        return None
    part = Part(kind)
    return PartKey(fields.string(), part, fields.string() if part in _PARTS_PER_MEMBER else "")


# -- offsets --------------------------------------------------------------------------------------


def encode_committed(committed: OffsetAndMetadata) -> bytes:
    out = FieldWriter()
    if committed.expire_timestamp_ms >= 0:
        # Only version 1 has room for it, and none for the leader epoch.
        out.int16(1).int64(committed.offset).string(committed.metadata)
        out.int64(committed.commit_timestamp_ms).int64(committed.expire_timestamp_ms)
    else:
        out.int16(3).int64(committed.offset).int32(committed.leader_epoch).string(committed.metadata)
        out.int64(committed.commit_timestamp_ms)
    return bytes(out.data)


def decode_committed(data: bytes, *, record_offset: int) -> OffsetAndMetadata:
    fields = FieldReader(data)
    version = fields.int16()
    if not 0 <= version <= 4:
        raise ValueError(f"offset commit version {version} is not known")
    offset = fields.int64()
    leader_epoch = fields.int32() if version >= 3 else -1
    metadata = fields.compact_string() if version >= 4 else fields.string()
    commit_timestamp_ms = fields.int64()
    expire_timestamp_ms = fields.int64() if version == 1 else -1
    return OffsetAndMetadata(
        offset, leader_epoch, metadata, commit_timestamp_ms, record_offset, expire_timestamp_ms
    )


# -- classic groups -------------------------------------------------------------------------------


def encode_group(saved: SavedGroup) -> bytes:
    out = FieldWriter()

    def write_member(member: SavedMember) -> None:
        out.string(member.member_id).string(member.instance_id)
        out.string(member.client_id).string(member.client_host)
        out.int32(member.rebalance_timeout_ms).int32(member.session_timeout_ms)
        out.blob(member.subscription).blob(member.assignment)

    out.int16(3).string(saved.protocol_type).int32(saved.generation)
    out.string(saved.protocol).string(saved.leader).int64(saved.state_since_ms)
    out.array(saved.members, write_member)
    return bytes(out.data)


def decode_group(data: bytes) -> SavedGroup:
    fields = FieldReader(data)
    version = fields.int16()
    if not 0 <= version <= 4:
        raise ValueError(f"group metadata version {version} is not known")
    compact = version >= 4
    string = fields.compact_string if compact else fields.string
    optional = fields.optional_compact_string if compact else fields.optional_string
    content = fields.compact_blob if compact else fields.blob

    def read_member() -> SavedMember:
        member_id = string()
        instance_id = optional() if version >= 3 else None
        client_id, client_host = string(), string()
        rebalance_timeout_ms = fields.int32() if version >= 1 else -1
        session_timeout_ms = fields.int32()
        member = SavedMember(
            member_id=member_id,
            instance_id=instance_id,
            client_id=client_id,
            client_host=client_host,
            rebalance_timeout_ms=rebalance_timeout_ms if version >= 1 else session_timeout_ms,
            session_timeout_ms=session_timeout_ms,
            subscription=content(),
            assignment=content(),
        )
        if compact:
            fields.tags()
        return member

    protocol_type, generation, protocol, leader = string(), fields.int32(), optional(), optional()
    state_since_ms = fields.int64() if version >= 2 else -1
    return SavedGroup(
        protocol_type=protocol_type,
        generation=generation,
        protocol=protocol,
        leader=leader,
        state_since_ms=state_since_ms,
        members=tuple(fields.compact_array(read_member) if compact else fields.array(read_member)),
    )


# -- KIP-848 groups -------------------------------------------------------------------------------


def encode_part(group: ConsumerGroup, key: PartKey) -> bytes | None:
    """The present value of this part of the group; None (a tombstone) when it has none."""
    out = FieldWriter().int16(0)
    member = group.members.get(key.member_id)
    if key.part is Part.GROUP:
        out.int32(group.epoch).tags({0: group.metadata_hash.to_bytes(8, "big")})
    elif key.part is Part.TARGET_EPOCH:
        out.int32(group.assignment_epoch).tags()
    elif member is None:
        return None
    elif key.part is Part.MEMBER:
        _write_member(out, member)
    elif key.part is Part.TARGET:
        _write_partitions(out, group.target.get(member.member_id, frozenset()))
        out.tags()
    else:
        out.int32(member.epoch).int32(member.previous_epoch).int8(member.state)
        _write_partitions(out, member.assigned)
        _write_partitions(out, member.revoking)
        out.tags()
    return bytes(out.data)


def apply_part(group: ConsumerGroup, key: PartKey, value: bytes | None) -> None:
    """Replay one record. Deleting the group's own record is up to the caller: it drops the group."""
    if value is None:
        if key.part is Part.MEMBER:
            group.members.pop(key.member_id, None)
        elif key.part is Part.TARGET:
            group.target.pop(key.member_id, None)
        return
    fields = FieldReader(value)
    version = fields.int16()
    if version != 0:
        raise ValueError(f"version {version} of consumer group record {key.part.value} is not known")
    if key.part is Part.GROUP:
        group.epoch = fields.int32()
        group.metadata_hash = int.from_bytes(fields.tags().get(0, b""), "big")
    elif key.part is Part.TARGET_EPOCH:
        group.assignment_epoch = fields.int32()
    elif key.part is Part.TARGET:
        group.target[key.member_id] = _read_partitions(fields)
    else:
        member = group.members.setdefault(key.member_id, ConsumerMember(member_id=key.member_id))
        if key.part is Part.MEMBER:
            _read_member(fields, member)
        else:
            member.epoch, member.previous_epoch = fields.int32(), fields.int32()
            member.state = MemberState(fields.int8())
            member.assigned, member.revoking = _read_partitions(fields), _read_partitions(fields)


def _write_member(out: FieldWriter, member: ConsumerMember) -> None:
    out.compact_string(member.instance_id).compact_string(member.rack_id)
    out.compact_string(member.client_id).compact_string(member.client_host)
    out.compact_array(member.topic_names, out.compact_string)
    out.compact_string(member.topic_regex).int32(member.rebalance_timeout_ms)
    out.compact_string(member.server_assignor).tags()


def _read_member(fields: FieldReader, member: ConsumerMember) -> None:
    member.instance_id = fields.optional_compact_string()
    member.rack_id = fields.optional_compact_string()
    member.client_id, member.client_host = fields.compact_string(), fields.compact_string()
    member.topic_names = tuple(fields.compact_array(fields.compact_string))
    member.topic_regex = fields.optional_compact_string()
    member.rebalance_timeout_ms = fields.int32()
    member.server_assignor = fields.optional_compact_string()


def _write_partitions(out: FieldWriter, partitions: Partitions) -> None:
    topics = sorted({topic for topic, _ in partitions})

    def write_topic(topic: UUID) -> None:
        out.uuid(topic)
        out.compact_array(sorted(index for owner, index in partitions if owner == topic), out.int32)
        out.tags()

    out.compact_array(topics, write_topic)


def _read_partitions(fields: FieldReader) -> Partitions:
    def read_topic() -> Iterable[Partition]:
        topic = fields.uuid()
        indexes = fields.compact_array(fields.int32)
        fields.tags()
        return [(topic, index) for index in indexes]

    return frozenset(partition for topic in fields.compact_array(read_topic) for partition in topic)
