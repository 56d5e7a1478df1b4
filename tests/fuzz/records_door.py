"""Batches with right checksums and hostile contents, and after them every reader: fetch, offsets by time,
search, SQL, the console's view of records; compaction works on its own."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

from chronik.model import BATCH_RECORDS_MAX
from chronik.records.batch import HEADER, HEADER_BYTES, OVERHEAD_BYTES, read_header, reseal
from chronik.records.compression import Compression, compress
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.replication.admission import LOOP_RECORDS_MAX
from chronik.wire.api import ApiKey
from chronik.wire.schema import encode_request
from tests.fuzz import http_door
from tests.fuzz.inputs import Input, Piece
from tests.fuzz.values import LONG_NUMBERS, damaged, integer, json_bytes, text
from tests.unit.records.bombs import FULL_BYTES, batch_with_body, bomb, crowd

PLAIN: Final = "fuzz-0"
SEARCHABLE: Final = "fuzz-1"
COMPACTED: Final = "fuzz-2"
TOPICS: Final = (PLAIN, SEARCHABLE, COMPACTED)
CODECS: Final = (Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD)
BOMB_CHANCE: Final = 0.02
"""A bomb is read again by each reader; with more of them a round measures little else."""
CROWD_CHANCE: Final = 0.01
CROWDS: Final = (LOOP_RECORDS_MAX + 1, 100_000, BATCH_RECORDS_MAX, BATCH_RECORDS_MAX + 1, FULL_BYTES // 7)
"""The largest is as many records as can be decompressed at all."""
XERIAL: Final = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
BODIES: Final = {
    Compression.GZIP: (b"\x1f\x8b\x08\x00", b"\x1f\x8b\x08\x1c" + b"\xff" * 40),
    Compression.SNAPPY: (XERIAL, XERIAL + b"\x7f\xff\xff\xff", XERIAL + bytes(400), b"\xff\xff\xff\xff\x0f"),
    Compression.LZ4: (b"\x04\x22\x4d\x18\x60\x70\x73", b"\x04\x22\x4d\x18\x7c" + b"\xff" * 16),
    Compression.ZSTD: (b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 9, b"\x50\x2a\x4d\x18\xff\xff\xff\xff"),
}
"""Starts of frames that announce much and bring nothing."""


def record(pick: random.Random) -> Record:
    key = pick.choice((b"k", None, b"", b"key-1", b"key-2", pick.randbytes(8), b"\xff\xfe"))
    value = None if pick.random() < 0.1 else json_bytes(pick)
    headers = tuple(
        (text(pick)[:200], pick.choice((b"v", None, b"\xff"))) for _ in range(pick.choice((0, 0, 1, 3)))
    )
    at = 1_700_000_000_000 + pick.randrange(10**6)
    return Record(
        key=key, value=value, headers=headers, timestamp_ms=at if pick.random() < 0.8 else integer(pick, 41)
    )


def hostile_batch(pick: random.Random, *, may_be_large: bool = True) -> bytes:
    if may_be_large and pick.random() < BOMB_CHANCE:
        return bytes(bomb(pick.choice(CODECS), record_count=pick.choice((1, 3))))
    if may_be_large and pick.random() < CROWD_CHANCE:
        return _crowd(pick)
    records = [record(pick) for _ in range(pick.choice((1, 1, 2, 5)))]
    batch = build_batch(records, compression=pick.choice((Compression.NONE, Compression.NONE, *CODECS)))
    match pick.randrange(8):
        case 0 | 1:
            return bytes(batch)
        case 2 | 3:
            return _with_header(pick, batch)
        case 4:
            return _sealed(read_header(batch), damaged(pick, bytes(batch[HEADER_BYTES:])))
        case 5:
            plain = build_batch(records)
            codec = pick.choice(CODECS)
            return bytes(batch_with_body(compress(codec, damaged(pick, bytes(plain[HEADER_BYTES:]))), codec))
        case 6:
            codec = pick.choice(CODECS)
            body = pick.choice(
                (*BODIES[codec], damaged(pick, compress(codec, bytes(5_000))), pick.randbytes(50))
            )
            return bytes(batch_with_body(body, codec))
        case _:
            return damaged(pick, bytes(batch))


def _crowd(pick: random.Random) -> bytes:
    """Very many records that are all the same, with timestamps that make a leader look at each or not."""
    at = pick.choice((1_700_000_000_000, 1_700_000_000_000, -1, 2**62))
    count, codec = pick.choice(CROWDS), pick.choice((Compression.NONE, *CODECS))
    if codec is Compression.NONE:
        count = min(count, 100_000)  # what a request carries as it is
    highest = pick.choice((at, at, 0))
    return bytes(crowd(count, codec, has_key=pick.random() < 0.5, base_timestamp=at, max_timestamp=highest))


def _sealed(header: Any, body: bytes) -> bytes:
    made = bytearray(HEADER_BYTES)
    HEADER.pack_into(made, 0, *header._replace(batch_length=HEADER_BYTES - OVERHEAD_BYTES + len(body)))
    made += body
    reseal(made, 0, len(made))
    return bytes(made)


def _with_header(pick: random.Random, batch: bytearray) -> bytes:
    """One or two fields of the header say something else; the checksum is right."""
    changes: dict[str, int] = {}
    for _ in range(pick.choice((1, 1, 2))):
        name, value = pick.choice(
            (
                ("attributes", pick.randrange(-(2**15), 2**15)),
                ("attributes", pick.choice((0x05, 0x06, 0x07, 0x08, 0x10, 0x20, 0x30, 0x40, 0x48))),
                ("last_offset_delta", integer(pick, 32)),
                ("record_count", integer(pick, 32)),
                ("base_timestamp", integer(pick, 64)),
                ("max_timestamp", integer(pick, 64)),
                ("base_offset", integer(pick, 64)),
                ("leader_epoch", integer(pick, 32)),
                ("producer_id", pick.choice((0, 1, 7, integer(pick, 64)))),
                ("producer_epoch", integer(pick, 16)),
                ("base_sequence", integer(pick, 32)),
            )
        )
        changes[name] = value
    return _sealed(read_header(batch)._replace(**changes), bytes(batch[HEADER_BYTES:]))


def inputs(pick: random.Random, topic_ids: list[UUID]) -> Iterator[Input]:
    while True:
        for _ in range(pick.randrange(1, 6)):
            yield _produce(pick)
        yield _reader(pick)


def _request(pick: random.Random, key: ApiKey, version: int, what: str, **fields: Any) -> Input:
    frame = encode_request(key, version, pick.randrange(1 << 31), "fuzz", fields)
    return Input(what=what, port="kafka", pieces=(Piece(0, frame),), answers=1)


def _produce(pick: random.Random) -> Input:
    topic = pick.choice(TOPICS)
    batch = b"".join(hostile_batch(pick) for _ in range(pick.choice((1, 1, 1, 2))))
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}]
    return _request(pick, ApiKey.PRODUCE, 9, f"produce to {topic}", acks=-1, timeout=10_000, topic_data=data)


def _reader(pick: random.Random) -> Input:
    topic = pick.choice(TOPICS)
    offset = pick.choice((0, 0, pick.randrange(500), -1, 2**62))
    match pick.randrange(6):
        case 0:
            partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
            topics = [{"topic": topic, "partitions": [partition]}]
            return _request(
                pick,
                ApiKey.FETCH,
                12,
                f"fetch {topic}",
                max_wait=0,
                max_bytes=1 << 20,
                session_epoch=-1,
                topics=topics,
            )
        case 1:
            at = pick.choice((-1, -2, -3, -4, 1_700_000_000_000 + pick.randrange(10**6), *LONG_NUMBERS))
            partition = {"partition_index": 0, "timestamp": at, "current_leader_epoch": -1}
            topics = [{"name": topic, "partitions": [partition]}]
            what = f"offset of {topic} at {at}"
            return _request(
                pick, ApiKey.LIST_OFFSETS, 7, what, replica_id=-1, isolation_level=0, topics=topics
            )
        case 2:
            path = (
                f"/admin/topics/{topic}/messages?limit=50&partition=0&offset={pick.choice((0, -20, offset))}"
            )
            return http_door.request("GET", path)
        case 3:
            return http_door.request(
                "POST", f"/{SEARCHABLE}/_search", {"query": {"match_all": {}}, "size": 50}
            )
        case 4:
            form = pick.choice(("json", "csv", "arrow"))
            columns = pick.choice(("*", "count(*)", '"offset", key, value', "max(id)"))
            query = f'SELECT {columns} FROM "{topic}" LIMIT 20'
            return http_door.request("POST", "/_sql", {"query": query, "format": form})
        case _:
            query = pick.choice(({"match": {"note": text(pick)}}, {"exists": {"field": "id"}}))
            return http_door.request("POST", "/_search", json.loads(json.dumps({"query": query})))
