"""Puts a backup into a cluster: topics, configs, users, then records at their offsets, then groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from chronik.cli.backup_files import BackupFolder, BackupManifest, TopicFiles, read_piece
from chronik.cli.client import CommandFailed, explain
from chronik.metadata.topic_config import TIERING_CONFIGS
from chronik.model import RequestError, TopicPartition
from chronik.records.batch import headers
from chronik.records.writer import build_batch

if TYPE_CHECKING:
    from chronik.cli.http import Http
    from chronik.client import Cluster
    from chronik.client.admin import Admin, NewTopic

SEND_BYTES: Final = 2 * 1024 * 1024

Tell = Callable[[int], None]
"""Called with how many bytes were done."""


async def make_topics(
    cluster: Cluster, manifest: BackupManifest, names: Mapping[str, str], *, go_on: bool
) -> list[str]:
    """`names` are those that the topics get, by those they had. `go_on` with what an earlier run left.

    Returns a sentence for each topic that could not be made as it was.
    """
    from chronik.client.admin import Admin, NewTopic

    admin = Admin(cluster)
    there = {info.name for info in await admin.list_topics()}
    taken = sorted(there & set(names.values()))
    if taken and not go_on:
        raise CommandFailed(
            f"topic {taken[0]!r} exists: restore into a cluster without it, or pass --continue if an earlier "
            "restore was interrupted"
        )
    nodes = len(await cluster.node_ids())
    wanted = [
        NewTopic(
            name=names[topic.name],
            partitions=len(topic.partitions),
            replication_factor=min(topic.replication_factor, nodes),
            configs=topic.configs,
        )
        for topic in manifest.topics
        if names[topic.name] not in there
    ]
    wanted, told = await _untiered(admin, wanted)
    for result in await admin.create_topics(wanted) if wanted else ():
        if isinstance(result, RequestError):
            raise CommandFailed(explain(result))
    return told


async def _untiered(admin: Admin, wanted: list[NewTopic]) -> tuple[list[NewTopic], list[str]]:
    """The topics, without the configs of tiered storage where the cluster refuses these. All records are in
    the backup, whether they were in the object store or not."""
    tiered = [topic for topic in wanted if topic.configs.get("remote.storage.enable") == "true"]
    refused = await _refusals(admin, tiered)
    plain = {
        topic.name: replace(
            topic, configs={k: v for k, v in topic.configs.items() if k not in TIERING_CONFIGS}
        )
        for topic in tiered
        if topic.name in refused
    }
    for name in await _refusals(admin, list(plain.values())):
        del plain[name]  # tiered storage is not what is wrong with it
    told = [
        f"{name} is made without tiered storage, all its records go to disks: {refused[name]}"
        for name in plain
    ]
    return [plain.get(topic.name, topic) for topic in wanted], told


async def _refusals(admin: Admin, topics: list[NewTopic]) -> dict[str, RequestError]:
    results = await admin.create_topics(topics, validate_only=True) if topics else []
    return {
        topic.name: result
        for topic, result in zip(topics, results, strict=True)
        if isinstance(result, RequestError)
    }


async def put_records(
    cluster: Cluster,
    http: Http,
    folder: BackupFolder,
    manifest: BackupManifest,
    names: Mapping[str, str],
    tell: Tell,
) -> None:
    from chronik.client.admin import Admin
    from chronik.client.offsets import LATEST, list_offsets

    homes = [
        (TopicPartition(names[topic.name], one.partition), one)
        for topic in manifest.topics
        for one in topic.partitions
    ]
    ends = await list_offsets(cluster, dict.fromkeys((tp for tp, _ in homes), LATEST))
    done = 0
    starts = {}
    for tp, one in homes:
        end = ends[tp].offset
        for piece in one.pieces:
            for chunk in _chunks(await asyncio.to_thread(read_piece, folder, piece), end):
                end = await _put(http, tp, end, chunk)
            done += piece.size_bytes
            tell(done)
        if end < one.end_offset:
            # Nothing is left of what stood there: an empty batch keeps its offsets from being used again.
            empty = bytes(build_batch([], base_offset=one.end_offset - 1))
            end = await _put(http, tp, end, empty)
        if end != one.end_offset:
            raise CommandFailed(
                f"{tp} ends at {end} and the backup at {one.end_offset}: it got records from elsewhere"
            )
        if one.start_offset:
            starts[tp] = one.start_offset
    if starts:
        await Admin(cluster).delete_records(starts)


async def _put(http: Http, tp: TopicPartition, log_end_offset: int, batches: bytes) -> int:
    """Returns where the partition ends now."""
    body = {
        "topic": tp.topic,
        "partition": tp.partition,
        "log_end_offset": log_end_offset,
        "batches": batches,
    }
    return int((await http.post("/admin/restore/records", body))["log_end_offset"])


def _chunks(data: bytes, end: int) -> Iterator[bytes]:
    """Whole batches from offset `end` on, a few megabytes at a time."""
    start = stop = 0
    for position, header in headers(data):
        if header.next_offset <= end:
            start = stop = position + header.size_bytes
            continue
        if stop > start and position + header.size_bytes - start > SEND_BYTES:
            yield data[start:stop]
            start = stop
        stop = position + header.size_bytes
    if stop > start:
        yield data[start:stop]


async def put_groups(cluster: Cluster, manifest: BackupManifest, names: Mapping[str, str]) -> None:
    from chronik.client.groups import Groups

    groups = Groups(cluster)
    for group_id, offsets in manifest.groups.items():
        for metadata in sorted({one.metadata for one in offsets}):
            chosen = {
                TopicPartition(names[one.topic], one.partition): one.offset
                for one in offsets
                if one.metadata == metadata and one.topic in names
            }
            if chosen:
                await groups.commit(group_id, chosen, metadata=metadata)


def as_named(topics: list[TopicFiles]) -> dict[str, str]:
    return {topic.name: topic.name for topic in topics}


async def put_shape(http: Http, manifest: BackupManifest) -> int:
    """Users, ACLs, quotas, configs; how many changes that were."""
    shape: dict[str, Any] = manifest.shape
    return int((await http.post("/admin/restore/metadata", shape))["changes"]) if shape else 0
