"""Batches whose timestamps, attributes or counts are unusual, and how they are stored."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from typing import Final

from chronik.records.batch import ATTRIBUTES_OFFSET, MAX_TIMESTAMP_OFFSET, reseal
from chronik.records.compression import Compression
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.wire.api import ApiKey
from tests.compat.differential.makers import Make, fetch, list_offsets, produced
from tests.compat.differential.world import (
    APPENDED,
    DATED,
    FIRST_TIMESTAMP_MS,
    LIMIT_MS,
    LIMITED,
    TOPIC,
    records,
)

K = ApiKey
NOW_MS: Final = int(time.time() * 1000)
DAY_MS: Final = 86_400_000
LOG_APPEND_TIME: Final = 8
UNKNOWN_COMPRESSION: Final = 5
COUNT_OFFSET: Final = 57


def dated(*times_ms: int, top_ms: int | None = None, **options: object) -> bytes:
    """Records of these times; `top_ms` is what the header claims to be the largest."""
    made = [Record(key=b"key", value=b"value", timestamp_ms=one) for one in times_ms]
    batch = build_batch(made, **options)  # type: ignore[arg-type]
    if top_ms is not None:
        struct.pack_into(">q", batch, MAX_TIMESTAMP_OFFSET, top_ms)
        reseal(batch, 0, len(batch))
    return bytes(batch)


def sent(
    topic: str, *times_ms: int, top_ms: int | None = None, partition: int = 0, **options: object
) -> Make:
    return produced(topic, lambda: dated(*times_ms, top_ms=top_ms, **options), partition=partition)


def with_attributes(bits: int) -> bytes:
    batch = bytearray(records(1))
    batch[ATTRIBUTES_OFFSET + 1] |= bits
    reseal(batch, 0, len(batch))
    return bytes(batch)


def with_count(count: int) -> bytes:
    batch = bytearray(records(2))
    struct.pack_into(">i", batch, COUNT_OFFSET, count)
    reseal(batch, 0, len(batch))
    return bytes(batch)


MADE: Final[Mapping[ApiKey, Mapping[str, Make]]] = {
    K.PRODUCE: {
        "no timestamp": sent(DATED, -1, -1),
        "no timestamp, the largest 0": sent(DATED, -1, -1, top_ms=0),
        "timestamp 0": sent(DATED, 0, 0),
        "a negative timestamp": sent(DATED, -5),
        "the largest below the first": sent(DATED, FIRST_TIMESTAMP_MS, top_ms=FIRST_TIMESTAMP_MS - 7),
        "the largest above all": sent(DATED, FIRST_TIMESTAMP_MS, top_ms=FIRST_TIMESTAMP_MS + 7, partition=1),
        "the largest above all, compressed": sent(
            DATED,
            FIRST_TIMESTAMP_MS,
            top_ms=FIRST_TIMESTAMP_MS + 7,
            partition=1,
            compression=Compression.GZIP,
        ),
        "the largest in the middle": sent(
            DATED, FIRST_TIMESTAMP_MS, FIRST_TIMESTAMP_MS + 9, FIRST_TIMESTAMP_MS + 3
        ),
        "far in the future": sent(DATED, NOW_MS + DAY_MS),
        "too old": sent(LIMITED, FIRST_TIMESTAMP_MS),
        "too new": sent(LIMITED, NOW_MS + 2 * LIMIT_MS),
        "one of three too old": sent(LIMITED, NOW_MS, FIRST_TIMESTAMP_MS, NOW_MS),
        "no timestamp within bounds": sent(LIMITED, -1),
        "just now": sent(LIMITED, NOW_MS),
        "stamped by the broker": sent(APPENDED, FIRST_TIMESTAMP_MS, FIRST_TIMESTAMP_MS + 5),
        "no timestamp, stamped by the broker": sent(APPENDED, -1, -1),
        "stamped by the broker, compressed": sent(
            APPENDED, FIRST_TIMESTAMP_MS, FIRST_TIMESTAMP_MS + 5, compression=Compression.LZ4
        ),
        "a client that claims to be the broker's clock": produced(
            DATED, lambda: with_attributes(LOG_APPEND_TIME)
        ),
        "a control batch": produced(
            TOPIC,
            lambda: records(
                1,
                producer_id=4242,
                producer_epoch=0,
                base_sequence=0,
                is_transactional=True,
                is_control=True,
            ),
        ),
        "an unknown compression": produced(TOPIC, lambda: with_attributes(UNKNOWN_COMPRESSION)),
        "zstd": produced(DATED, lambda: records(3, compression=Compression.ZSTD)),
        "fewer records than it says": produced(TOPIC, lambda: with_count(3)),
        "more records than it says": produced(TOPIC, lambda: with_count(1)),
        "fewer than no records": produced(TOPIC, lambda: with_count(-1)),
    },
    K.FETCH: {
        "as dated": lambda w: fetch(w, DATED, 0),
        "as claimed": lambda w: fetch(w, DATED, 0, partition=1),
        "as dated within bounds": lambda w: fetch(w, LIMITED, 0),
        "as stamped by the broker": lambda w: fetch(w, APPENDED, 0),
    },
    K.LIST_OFFSETS: {
        "the largest time as dated": list_offsets(DATED, -3),
        "a time that is only claimed": list_offsets(DATED, FIRST_TIMESTAMP_MS + 4, 1),
        "1970": list_offsets(DATED, 0),
        "a time as dated": list_offsets(DATED, FIRST_TIMESTAMP_MS + 4),
        "no time within bounds": list_offsets(LIMITED, NOW_MS + 1),
        "1970, stamped by the broker": list_offsets(APPENDED, 0),
    },
}
