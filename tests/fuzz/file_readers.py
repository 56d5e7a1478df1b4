"""Readers of what nodes and people keep in files, and of what nodes and their children say to each other.

Checksums are right, so that a reader gets to the content; damage that a checksum finds is easy. Each reader
says by its own errors what it cannot read: anything else is a finding.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import random
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from crc32c import crc32c
from kio.index import load_response_schema

from chronik.model import ChronikError, PeerError, TooNew, TopicPartition
from tests.fuzz.inputs import Input, Piece
from tests.fuzz.records_door import hostile_batch
from tests.fuzz.typed_bodies import TypedBodies, body_bytes
from tests.fuzz.values import LONG_NUMBERS, damaged, integer, text

BACKUP_ID: Final = "20260101T000000.000Z"
PIECE: Final = f"records/{UUID(int=1)}/0/{0:020d}-{9:020d}.batches"


def inputs(pick: random.Random, topic_ids: list[UUID]) -> Iterator[Input]:
    while True:
        kind = pick.choice(list(MAKERS))
        yield Input(what=kind, port=kind, pieces=(Piece(0, MAKERS[kind](pick)),))


def _typed(pick: random.Random, kind: Any, chance: float = 0.4) -> bytes:
    made = TypedBodies(pick, in_msgpack=True).msgpack(kind)
    return damaged(pick, made) if pick.random() < chance else made


# --- the object store --------------------------------------------------------------------------------


def _manifest(pick: random.Random) -> bytes:
    from chronik.tiering.manifest import RemoteManifest, RemoteSegment, encode

    offset, segments = pick.choice((0, 5)), []
    for number in range(pick.choice((0, 1, 3, 300))):
        end = offset + pick.choice((1, 10, 10, 10, 0, 2**61))
        name = f"{number:08x}-{offset:020d}-{pick.getrandbits(128):032x}.segment"
        sizes = (pick.choice((1, 100, 2**40)), pick.choice((1, 100, 2**40)), integer(pick, 33))
        segments.append(RemoteSegment(name, offset, end, *sizes, integer(pick, 64)))
        offset = min(end, 2**62)
    made = encode(RemoteManifest(tuple(segments), ((0, 0), (1, 5))))
    told = damaged(pick, made, start=5) if pick.random() < 0.6 else made
    told = b"CHRT\x01" + _typed(pick, RemoteManifest) if pick.random() < 0.2 else told
    return struct.pack(">q", min(offset, 2**63 - 1)) + told


def _read_manifest(data: bytes) -> None:
    from chronik.metadata.commands import RemoteLog
    from chronik.tiering.manifest import DamagedObject, decode_manifest, epoch_in

    (end,), data = struct.unpack(">q", data[:8]), data[8:]
    about = RemoteLog(
        start_offset=5,
        end_offset=end,
        manifest="m",
        manifest_bytes=len(data),
        manifest_crc=crc32c(data),
        size_bytes=1,
    )
    try:
        found = decode_manifest(data, about)
    except (DamagedObject, TooNew):
        return
    for offset in (0, 5, 6, end - 1, end, 2**62):
        segment = found.find(offset)
        assert segment is None or segment.base_offset <= offset < segment.end_offset
    assert all(epoch_in(one.name) is not None and one.size_bytes > 0 for one in found.segments)


def _footer(pick: random.Random) -> bytes:
    from chronik.storage.index import OFFSET_ENTRY, TIME_ENTRY
    from chronik.storage.producer_state import AbortedTxn
    from chronik.tiering.manifest import SegmentFooter, encode

    entries = pick.choice((0, 1, 50))
    offsets = b"".join(OFFSET_ENTRY.pack(n, n * 10) for n in range(entries))
    times = b"".join(TIME_ENTRY.pack(1_000 + n, n) for n in range(entries))
    aborted = tuple(AbortedTxn(*(integer(pick, 64) for _ in AbortedTxn.__struct_fields__)) for _ in range(2))
    offsets = damaged(pick, offsets) if offsets and pick.random() < 0.3 else offsets
    times = damaged(pick, times) if times and pick.random() < 0.3 else times
    made = encode(SegmentFooter(offsets, times, aborted))
    return damaged(pick, made, start=5) if pick.random() < 0.4 else made


def _read_footer(data: bytes) -> None:
    from chronik.tiering.manifest import DamagedObject, RemoteSegment, decode_footer

    segment = RemoteSegment("s", 100, 200, 1_000, len(data), crc32c(data), -1)
    try:
        offsets, times, aborted = decode_footer(data, segment)
    except (DamagedObject, TooNew):
        return
    for offset in (0, 99, 100, 150, 200, 2**62):
        assert 0 <= offsets.position_for(offset) < segment.log_bytes
    for at in (-(2**63), -1, 0, 1_010, 2**62):
        list(times.before(at))
    assert isinstance(aborted, tuple)


# --- metadata ----------------------------------------------------------------------------------------


def _entry(pick: random.Random) -> bytes:
    from chronik.metadata.commands import FORMAT_VERSION, CommandEntry

    version = FORMAT_VERSION if pick.random() < 0.95 else pick.randrange(256)
    return bytes((version,)) + _typed(pick, CommandEntry, 0.3)


def _read_entry(data: bytes) -> None:
    """A node that is given such a command by another one refuses it or is none the worse for it."""
    from chronik.metadata.commands import UnknownCommand, decode_entry
    from chronik.metadata.snapshot import decode_snapshot, encode_snapshot

    try:
        entry = decode_entry(data)
    except (UnknownCommand, TooNew):
        return
    state = decode_snapshot(_peopled_state())
    try:
        state.apply(entry.command, state.applied_index + 1)
    except TooNew:  # a level that another release knows
        return
    again = decode_snapshot(encode_snapshot(state))
    assert encode_snapshot(again) == encode_snapshot(state)


@functools.cache
def _peopled_state() -> bytes:
    from chronik.metadata import commands as c
    from chronik.metadata.snapshot import encode_snapshot
    from chronik.metadata.state import ClusterState
    from tests.unit.metadata.test_state import orders, register

    state = ClusterState()
    commands: list[c.Command] = [register(1), register(2), register(3), orders()]
    for number, command in enumerate(commands, 1):
        state.apply(command, number)
    return encode_snapshot(state)


def _snapshot(pick: random.Random) -> bytes:
    from chronik.metadata import snapshot

    if pick.random() < 0.5:
        return damaged(pick, _peopled_state(), start=1)
    return bytes((snapshot.FORMAT_VERSION,)) + _typed(pick, snapshot._StateSnapshot, 0.3)


def _read_snapshot(data: bytes) -> None:
    from chronik.metadata.commands import UnknownCommand
    from chronik.metadata.snapshot import decode_snapshot, encode_snapshot

    try:
        state = decode_snapshot(data)
    except (UnknownCommand, TooNew):
        return
    encode_snapshot(state)
    state.live_brokers()


def _raft(pick: random.Random) -> bytes:
    from chronik.raft.messages import Message

    return _typed(pick, Message)


def _read_raft(data: bytes) -> None:
    from chronik.raft import messages
    from chronik.raft.entries import EntryKind
    from chronik.raft.log import decode_membership

    try:
        message = messages.decode(data)
        for entry in getattr(message, "entries", ()):
            if entry.kind is EntryKind.CONFIG:
                decode_membership(entry)
    except PeerError:
        pass


# --- a log's files -----------------------------------------------------------------------------------


def _checkpoint(pick: random.Random) -> bytes:
    from chronik.storage.checkpoint import Checkpoint

    body = _typed(pick, Checkpoint)
    return crc32c(body).to_bytes(4, "big") + body


def _read_checkpoint(data: bytes) -> None:
    from chronik.storage.checkpoint import decode

    try:
        decode(data)
    except TooNew:
        pass


def _producers(pick: random.Random) -> bytes:
    from chronik.storage.producer_state import _ProducerSnapshot

    return _typed(pick, _ProducerSnapshot)


def _read_producers(data: bytes) -> None:
    from chronik.storage.producer_state import ProducerStates

    try:
        states = ProducerStates.restore(data)
    except (ValueError, TooNew):  # the log is read instead
        return
    states.snapshot()


def _wal(pick: random.Random) -> bytes:
    from chronik.storage.wal_format import WalEntryKind, encode_header

    made, round_ = bytearray(), 1
    for sequence in range(1, pick.choice((2, 5, 30))):
        payload = pick.randbytes(pick.choice((0, 1, 300)))
        round_ += pick.random() < 0.4
        kind = int(pick.choice(list(WalEntryKind))) if pick.random() < 0.9 else pick.randrange(256)
        number = sequence if pick.random() < 0.9 else pick.choice((0, 1, sequence - 1, 2**64 - 1, 2**62))
        offset = max(0, integer(pick, 63))
        made += encode_header(kind, number, round_, bytes(16), pick.choice((0, 2**31 - 1)), offset, payload)
        made += payload
    return damaged(pick, bytes(made)) if pick.random() < 0.7 else bytes(made)


def _read_wal(data: bytes) -> None:
    from chronik.storage.wal_format import WalScanner

    looks = 0

    def read_at(position: int, size: int) -> bytes:
        nonlocal looks
        looks += 1
        return data[position : position + size]

    try:
        for is_last in (True, False):
            scanner = WalScanner("w", read_at, len(data), 0, is_last_file=is_last)
            numbers = [entry.header.sequence for entry in scanner.entries()]
            assert numbers == sorted(set(numbers))
            assert scanner.end_position <= len(data)
    except TooNew:
        return
    assert looks < 10_000 + 10 * len(data)


def _segment(pick: random.Random) -> bytes:
    from chronik.storage.index import OFFSET_ENTRY, TIME_ENTRY

    batches = b"".join(hostile_batch(pick, may_be_large=False) for _ in range(pick.choice((1, 5))))
    files = {
        ".log": damaged(pick, batches) if pick.random() < 0.5 else batches,
        ".index": b"".join(OFFSET_ENTRY.pack(n, n * 70) for n in range(3)),
        ".timeindex": b"".join(TIME_ENTRY.pack(1_700_000_000_000 + n, n) for n in range(3)),
    }
    for suffix in (".index", ".timeindex"):
        if pick.random() < 0.4:
            files[suffix] = damaged(pick, files[suffix])
    return json.dumps({name: base64.b64encode(data).decode() for name, data in files.items()}).encode()


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def _read_segment(data: bytes) -> None:
    from chronik.model import StorageError
    from chronik.storage.disk import RealDisk
    from chronik.storage.segment_loading import CheckpointedLog, load_segments

    with tempfile.TemporaryDirectory() as folder:
        for suffix, content in json.loads(data).items():
            (Path(folder) / f"{0:020d}{suffix}").write_bytes(base64.b64decode(content))
        disk = RealDisk(_loop())
        size = (Path(folder) / f"{0:020d}.log").stat().st_size
        known = CheckpointedLog(TopicPartition("t", 0), Path(folder), (0, size), 0, 1_000, 100)
        try:
            (segment,) = load_segments(disk, known)
            assert segment.sound_end() <= size
            assert segment.offset_index is not None
            assert segment.time_index is not None
            segment.close()
        except StorageError:
            pass


def _internal(pick: random.Random) -> bytes:
    from chronik.groups import records as groups
    from chronik.groups.offsets import OffsetAndMetadata

    offset = OffsetAndMetadata(5, 1, "note", 1_000, 0, -1)
    made = pick.choice(
        (
            groups.encode_key(groups.OffsetKey("g", TopicPartition("t", 0))),
            groups.encode_key(groups.GroupKey("g")),
            groups.encode_committed(offset),
            b"\x00\x03" + pick.randbytes(60),
            b"\x00\x04" + pick.randbytes(60),
            b"\x00\x01" + pick.randbytes(60),
            struct.pack(">hqhib", 1, 7, 0, 60_000, 1) + b"\x02\x02t\x02" + bytes(30),
        )
    )
    return damaged(pick, made) if pick.random() < 0.8 else made


def _read_internal(data: bytes) -> None:
    """Records of the coordinators' topics, which other nodes wrote."""
    from chronik.groups import records as groups
    from chronik.transactions import records as transactions

    readers: tuple[Callable[[bytes], object], ...] = (
        groups.decode_key,
        lambda data: groups.decode_committed(data, record_offset=0),
        groups.decode_group,
        transactions.decode_key,
        transactions.decode_value,
    )
    for read in readers:
        try:
            read(data)
        except ValueError:
            pass


# --- people's files ----------------------------------------------------------------------------------


def _backup(pick: random.Random) -> bytes:
    from chronik.cli.backup_files import BackupManifest

    made = TypedBodies(pick).of(BackupManifest)
    made["format"] = 1 if pick.random() < 0.9 else integer(pick, 64)
    for topic in made.get("topics", ()):
        for partition in topic.get("partitions", ()):
            for piece in partition.get("pieces", ()):
                piece["path"] = pick.choice(
                    (PIECE, PIECE, PIECE, "/dev/zero", "../../etc/passwd", "records", "")
                )
    made["backup_id"] = BACKUP_ID
    data = body_bytes(made)
    return damaged(pick, data) if pick.random() < 0.2 else data


def _read_backup(data: bytes) -> None:
    from chronik.cli.backup_files import MANIFESTS, BackupDirectory, problems, read_manifest
    from chronik.cli.client import CommandFailed

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / MANIFESTS).mkdir()
        (Path(folder) / MANIFESTS / f"{BACKUP_ID}.json").write_bytes(data)
        (Path(folder) / PIECE).parent.mkdir(parents=True)
        (Path(folder) / PIECE).write_bytes(b"x" * 100)
        try:
            for _ in problems(BackupDirectory(Path(folder)), read_manifest(BackupDirectory(Path(folder)))):
                pass
        except (CommandFailed, TooNew):
            pass


def _config(pick: random.Random) -> bytes:
    from chronik.config import table

    lines = []
    for _ in range(pick.choice((1, 3, 10))):
        name = pick.choice(list(table())) if pick.random() < 0.9 else text(pick)[:50]
        value = pick.choice(
            (json.dumps(text(pick)[:300]), str(pick.choice(LONG_NUMBERS)), "true", "1e999", "[]")
        )
        lines.append(f"{name} = {value}")
    if pick.random() < 0.4:
        address = json.dumps(pick.choice(("a:1", "[::1]:70000", ":", "", "a:b", text(pick)[:50])))
        number = pick.choice(LONG_NUMBERS)
        lines += ["[[peers]]", f"id = {number}", *(f"{one} = {address}" for one in ("kafka", "wal", "raft"))]
    if pick.random() < 0.1:
        lines.append("a = " + "[" * 5_000)
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    return damaged(pick, data) if pick.random() < 0.3 else data


def _read_config(data: bytes) -> None:
    from chronik.config_file import ConfigError
    from chronik.config_sources import load_settings

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chronik.toml"
        path.write_bytes(data)
        try:
            list(load_settings({}, {}, path).rows())
        except ConfigError:
            pass


def _properties(pick: random.Random) -> bytes:
    names = (
        "security.protocol",
        "sasl.mechanism",
        "sasl.jaas.config",
        "ssl.ca.location",
        "ssl.truststore.location",
        "ssl.keystore.location",
        "bootstrap.servers",
        text(pick)[:40],
    )
    values = (
        "SASL_PLAINTEXT",
        "SASL_SSL",
        "PLAIN",
        "SCRAM-SHA-512",
        "OAUTHBEARER",
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";',
        "x required username=" + '"' * pick.choice((1, 3, 2_000)) + ";",
        "/dev/null",
        text(pick)[:200],
        "\\u00zz\\",
    )
    made = "\n".join(f"{pick.choice(names)}={pick.choice(values)}" for _ in range(6))
    data = made.encode("utf-8", "surrogatepass")
    return damaged(pick, data) if pick.random() < 0.5 else data


def _read_properties(data: bytes) -> None:
    from chronik.client.options import ClientOptions
    from chronik.client.properties import read_properties, secured

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "client.properties"
        path.write_bytes(data)
        try:
            secured(ClientOptions(), read_properties(path))
        except ChronikError as error:
            assert "\n" not in str(error).strip(), f"no sentence: {error!r}"


# --- answers -----------------------------------------------------------------------------------------


def _child(pick: random.Random) -> bytes:
    from chronik.query.process import FromChild

    return _typed(pick, FromChild)


def _read_child(data: bytes) -> None:
    """What a query process says. The node starts another one if it cannot be read."""
    import msgspec

    from chronik.query.process import FromChild

    try:
        msgspec.msgpack.decode(data, type=FromChild)
    except (ValueError, RecursionError):
        pass


def _answer(pick: random.Random) -> bytes:
    from chronik.wire.schema import encode_response
    from tests.fuzz.kafka_door import ALL, Fields

    key, version = pick.choice(ALL)
    fields = Fields(pick, key, [UUID(int=7)]).of(load_response_schema(key, version))
    answer = encode_response(key, version, 1, fields)[4:]
    return struct.pack(">hh", key, version) + (damaged(pick, answer) if pick.random() < 0.8 else answer)


def _read_answer(data: bytes) -> None:
    """What a hostile broker answers our own client."""
    from chronik.wire.schema import decode_response

    key, version = struct.unpack(">hh", data[:4])
    try:
        decode_response(key, version, data[4:])
    except PeerError:
        pass


def _ask_a_hostile_broker(data: bytes) -> None:
    from tests.fuzz.hostile_broker import ask

    ask(data)


MAKERS: Final[Mapping[str, Callable[[random.Random], bytes]]] = {
    "manifest": _manifest,
    "footer": _footer,
    "entry": _entry,
    "snapshot": _snapshot,
    "raft-message": _raft,
    "checkpoint": _checkpoint,
    "producers": _producers,
    "wal-file": _wal,
    "segment": _segment,
    "internal": _internal,
    "backup": _backup,
    "config": _config,
    "properties": _properties,
    "child": _child,
    "kafka-answer": _answer,
    "client": lambda pick: pick.randbytes(8),
}
READERS: Final[Mapping[str, Callable[[bytes], None]]] = {
    "manifest": _read_manifest,
    "footer": _read_footer,
    "entry": _read_entry,
    "snapshot": _read_snapshot,
    "raft-message": _read_raft,
    "checkpoint": _read_checkpoint,
    "producers": _read_producers,
    "wal-file": _read_wal,
    "segment": _read_segment,
    "internal": _read_internal,
    "backup": _read_backup,
    "config": _read_config,
    "properties": _read_properties,
    "child": _read_child,
    "kafka-answer": _read_answer,
    "client": _ask_a_hostile_broker,
}
