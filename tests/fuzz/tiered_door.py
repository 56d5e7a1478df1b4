"""A topic whose segments go to an object store, which is a folder: objects are damaged while clients read.

The store is not believed: what is damaged is answered as an error of the storage and costs its segment alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.wire.api import ApiKey
from chronik.wire.schema import encode_request
from tests.fuzz import http_door
from tests.fuzz.inputs import Input, Piece
from tests.fuzz.values import damaged

PORT: Final = "objects"
"""No port of the node: what is done to a file of the store."""
TOPIC: Final = "fuzz-tiered"
CONFIGS: Final = {
    "remote.storage.enable": "true",
    "segment.bytes": "4000",
    "index.interval.bytes": "200",
    "local.retention.bytes": "0",
    "file.delete.delay.ms": "0",
}
HOW: Final = ("bytes", "bytes", "bytes", "bytes", "cut", "gone", "grown", "folder", "swapped")
GROWN_BYTES: Final = 8 << 30


def inputs(pick: random.Random, topic_ids: list[UUID]) -> Iterator[Input]:
    yield from (_produce(pick) for _ in range(30))
    while True:
        for _ in range(pick.randrange(1, 5)):
            yield _produce(pick)
        yield _damage(pick)
        for _ in range(pick.randrange(2, 12)):
            yield _read(pick)


def _produce(pick: random.Random) -> Input:
    records = [Record(key=b"k%d" % n, value=pick.randbytes(pick.choice((1, 200)))) for n in range(10)]
    data = [{"name": TOPIC, "partition_data": [{"index": 0, "records": bytes(build_batch(records))}]}]
    return _request(pick, ApiKey.PRODUCE, 9, acks=-1, timeout=10_000, topic_data=data)


def _damage(pick: random.Random) -> Input:
    told = {"place": pick.random(), "seed": pick.getrandbits(32), "how": pick.choice(HOW)}
    return Input(what=f"object {told['how']}", port=PORT, pieces=(Piece(0, json.dumps(told).encode()),))


def _read(pick: random.Random) -> Input:
    offset = pick.choice((0, 0, pick.randrange(3_000), pick.randrange(3_000), 2**62))
    match pick.randrange(5):
        case 0 | 1:
            size = pick.choice((1, 1_000, 1 << 20, 2**31 - 1))
            partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": size}
            topics = [{"topic": TOPIC, "partitions": [partition]}]
            return _request(
                pick, ApiKey.FETCH, 12, max_wait=0, max_bytes=size, session_epoch=-1, topics=topics
            )
        case 2:
            at = pick.choice((-1, -2, -3, -4, -5, 0, 1_700_000_000_000, 2**62))
            partition = {"partition_index": 0, "timestamp": at, "current_leader_epoch": -1}
            topics = [{"name": TOPIC, "partitions": [partition]}]
            return _request(pick, ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
        case 3:
            what = pick.choice(
                (f"messages?partition=0&offset={offset}", f"explain?partition=0&offset={offset}")
            )
            return http_door.request("GET", f"/admin/topics/{TOPIC}/{what}")
        case _:
            query = f'SELECT count(*) FROM "{TOPIC}" WHERE "offset" >= {offset}'
            return http_door.request("POST", "/_sql", {"query": query})


def _request(pick: random.Random, key: ApiKey, version: int, **fields: Any) -> Input:
    frame = encode_request(key, version, pick.randrange(1 << 31), "fuzz", fields)
    return Input(what=f"{key.name} {TOPIC}", port="kafka", pieces=(Piece(0, frame),), answers=1)


def damage(store: Path, told: bytes) -> None:
    """Do something to one object; the node may be deleting it at the same time."""
    given = json.loads(told)
    pick = random.Random(given["seed"])
    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
        paths = sorted(path for path in store.rglob("*.*") if path.is_file() and path.name[0] != ".")
        paths = [path for path in paths if path.stat().st_size < GROWN_BYTES]  # what has grown stays so
        if not paths:
            return
        path = paths[int(given["place"] * len(paths))]
        match given["how"]:
            case "bytes":
                path.write_bytes(damaged(pick, path.read_bytes()))
            case "cut":
                os.truncate(path, pick.randrange(path.stat().st_size + 1))
            case "gone":
                path.unlink()
            case "grown":
                os.truncate(path, GROWN_BYTES)  # a hole: it takes no space
            case "folder":
                path.unlink()
                path.mkdir()
            case _:
                path.write_bytes(pick.choice(paths).read_bytes())
