"""Takes a backup of a running cluster.

Consistent by offset: committed offsets of groups are asked first, then where each partition ends, and records
are read up to there. So no group is ahead of the records, and no transaction is half there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from chronik.cli.backup_files import (
    BackupFolder,
    BackupManifest,
    BackupPiece,
    GroupOffset,
    PartitionFiles,
    TopicFiles,
    manifest_ids,
    read_manifest,
    write_manifest,
    write_piece,
)
from chronik.model import ErrorCode, RequestError, TopicPartition, is_internal_topic

if TYPE_CHECKING:
    from chronik.client import Cluster
    from chronik.client.fetching import Fetched

PIECE_BYTES: Final = 8 * 1024 * 1024
HELD_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of unfinished pieces of all partitions together."""

Tell = Callable[[int, int], None]
"""Called with how many offsets are done, and how many there are."""


async def take(
    cluster: Cluster, shape: Mapping[str, Any], folder: BackupFolder, tell: Tell
) -> BackupManifest:
    """Write what `shape` names (the answer of `/admin/backup/metadata`) into the folder."""
    shapes = {one["name"]: one for one in shape["topics"] if not is_internal_topic(one["name"])}
    groups = await _group_offsets(cluster) if "users" in shape else {}
    bounds = await _bounds(cluster, shapes)
    former = await asyncio.to_thread(_former, folder, shapes)
    pieces = await _copy(cluster, shapes, bounds, former, folder, tell)
    now = time.time()
    manifest = BackupManifest(
        backup_id=time.strftime("%Y%m%dT%H%M%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z",
        created_ms=int(now * 1000),
        cluster_id=shape.get("cluster_id"),
        topics=[
            TopicFiles(
                name=name,
                topic_id=one["topic_id"],
                replication_factor=one["replication_factor"],
                configs=one["configs"],
                partitions=[
                    PartitionFiles(
                        partition=number,
                        start_offset=bounds[TopicPartition(name, number)][0],
                        end_offset=bounds[TopicPartition(name, number)][1],
                        pieces=pieces[TopicPartition(name, number)],
                    )
                    for number in range(one["partitions"])
                ],
            )
            for name, one in shapes.items()
        ],
        groups=_capped(groups, bounds),
        shape={key: value for key, value in shape.items() if key != "topics"},
    )
    await asyncio.to_thread(write_manifest, folder, manifest)
    return manifest


async def _group_offsets(cluster: Cluster) -> dict[str, list[GroupOffset]]:
    from chronik.client.groups import Groups

    groups = Groups(cluster)
    found: dict[str, list[GroupOffset]] = {}
    for listing in await groups.list():
        try:
            committed = await groups.offsets(listing.group_id)
        except RequestError as error:
            if error.code != ErrorCode.group_id_not_found:  # it went meanwhile
                raise
            continue
        found[listing.group_id] = [
            GroupOffset(topic=tp.topic, partition=tp.partition, offset=one.offset, metadata=one.metadata)
            for tp, one in committed.items()
            if one.offset >= 0
        ]
    return {group_id: offsets for group_id, offsets in found.items() if offsets}


def _capped(
    groups: Mapping[str, list[GroupOffset]], bounds: Mapping[TopicPartition, tuple[int, int]]
) -> dict[str, list[GroupOffset]]:
    """A group may have read behind an open transaction: it goes back to what the backup has."""
    return {
        group_id: [
            GroupOffset(
                topic=one.topic,
                partition=one.partition,
                offset=min(one.offset, bounds[TopicPartition(one.topic, one.partition)][1]),
                metadata=one.metadata,
            )
            for one in offsets
            if TopicPartition(one.topic, one.partition) in bounds
        ]
        for group_id, offsets in groups.items()
    }


async def _bounds(
    cluster: Cluster, shapes: Mapping[str, Mapping[str, Any]]
) -> dict[TopicPartition, tuple[int, int]]:
    """Where each partition starts, and how far it is decided."""
    from chronik.client.offsets import EARLIEST, LATEST, list_offsets

    tps = [TopicPartition(name, n) for name, one in shapes.items() for n in range(one["partitions"])]
    ends = await list_offsets(cluster, dict.fromkeys(tps, LATEST), read_committed=True)
    starts = await list_offsets(cluster, dict.fromkeys(tps, EARLIEST))
    return {tp: (min(starts[tp].offset, ends[tp].offset), ends[tp].offset) for tp in tps}


def _former(
    folder: BackupFolder, shapes: Mapping[str, Mapping[str, Any]]
) -> dict[TopicPartition, PartitionFiles]:
    """What the newest backup here has of the same topics; a topic that was created again has another id."""
    if not manifest_ids(folder):
        return {}
    return {
        TopicPartition(topic.name, one.partition): one
        for topic in read_manifest(folder).topics
        if topic.name in shapes and shapes[topic.name]["topic_id"] == topic.topic_id
        for one in topic.partitions
    }


class _GrowingPieces:
    """Gathers batches of each partition until they are worth a file."""

    def __init__(self, folder: BackupFolder, shapes: Mapping[str, Mapping[str, Any]]) -> None:
        self._folder = folder
        self._shapes = shapes
        self._held: dict[TopicPartition, tuple[int, bytearray]] = {}
        self._ends: dict[TopicPartition, int] = {}
        self.written: dict[TopicPartition, list[BackupPiece]] = {}

    async def take(self, fetched: Fetched, end: int) -> None:
        from chronik.records.batch import headers

        for position, header in headers(fetched.data):
            if header.base_offset >= end or header.base_offset < self._ends.get(fetched.tp, 0):
                continue
            _, data = self._held.setdefault(fetched.tp, (header.base_offset, bytearray()))
            data += fetched.data[position : position + header.size_bytes]
            self._ends[fetched.tp] = header.next_offset
        if len(self._held.get(fetched.tp, (0, b""))[1]) >= PIECE_BYTES:
            await self._write(fetched.tp)
        if sum(len(data) for _, data in self._held.values()) >= HELD_BYTES_MAX:
            await self.finish()

    async def _write(self, tp: TopicPartition) -> None:
        base, data = self._held.pop(tp)
        topic_id = self._shapes[tp.topic]["topic_id"]
        piece = await asyncio.to_thread(
            write_piece, self._folder, topic_id, tp.partition, base, self._ends[tp], data
        )
        self.written[tp].append(piece)

    async def finish(self) -> None:
        for tp in list(self._held):
            await self._write(tp)


async def _copy(
    cluster: Cluster,
    shapes: Mapping[str, Mapping[str, Any]],
    bounds: Mapping[TopicPartition, tuple[int, int]],
    former: Mapping[TopicPartition, PartitionFiles],
    folder: BackupFolder,
    tell: Tell,
) -> dict[TopicPartition, list[BackupPiece]]:
    from chronik.client import Consumer

    pieces = _GrowingPieces(folder, shapes)
    positions = {}
    for tp, (start, end) in bounds.items():
        before = former.get(tp)
        kept = [piece for piece in before.pieces if piece.next_offset > start] if before else []
        if before is not None and before.end_offset > end:
            kept = []  # an unclean election cut the log: what was backed up is not what is there
        pieces.written[tp] = kept
        positions[tp] = max(start, before.end_offset if before is not None and kept else start)
    until = {tp: end for tp, (_, end) in bounds.items() if positions[tp] < end}
    total = sum(end - positions[tp] for tp, end in until.items())
    tell(0, total)
    async with Consumer(cluster, on_out_of_range="earliest") as consumer:
        consumer.assign({tp: positions[tp] for tp in until})
        async for fetched in consumer.batches(until):
            await pieces.take(fetched, until[fetched.tp])
            left = sum(max(0, end - consumer.position(tp)) for tp, end in until.items())
            tell(total - left, total)
    await pieces.finish()
    return pieces.written
