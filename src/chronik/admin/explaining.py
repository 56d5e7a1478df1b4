"""What one node knows of one record: where its own replica has it, and which followers, index and archive
have it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import msgspec

from chronik.admin.context import AdminContext
from chronik.admin.explaining_remote import look_into_store
from chronik.model import ChronikError, ErrorCode, Int32, Int64, NodeId, RequestError, TopicPartition
from chronik.published.documents import read_manifest
from chronik.published.steps import META, PublishedStep
from chronik.records.batch import BatchHeader
from chronik.records.compression import Compression
from chronik.replication.partition import Partition
from chronik.storage.locating import (
    BatchPlace,
    TooManyEntries,
    is_checkpointed,
    locate_batch,
    locate_in_wal,
    transaction_end,
)

__all__ = [
    "ArchiveState",
    "BatchFacts",
    "ClientFacts",
    "FollowerAck",
    "IndexState",
    "RecordQuestion",
    "ReplicaFacts",
    "WalState",
    "facts_here",
    "look_into_archive",
]

STEPS_READ_MAX: Final = 1_000
"""Steps of an archive that are looked through for a record, newest first."""


class RecordQuestion(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    topic_id: str
    """A topic may have been deleted and created again; a replica of the old one must not answer."""
    partition: Int32
    offset: Int64


class BatchFacts(msgspec.Struct, frozen=True, kw_only=True):
    base_offset: int
    last_offset: int
    record_count: int
    size_bytes: int
    compression: str
    leader_epoch: int
    """The epoch of the leader that appended the record."""
    producer_id: int | None
    """Null: neither idempotent nor transactional."""
    producer_epoch: int | None
    base_sequence: int | None
    timestamp_type: str
    base_timestamp_ms: int
    max_timestamp_ms: int
    is_transactional: bool
    transaction: str | None
    """open, committed or aborted; null for a batch of no transaction."""
    marker: str | None
    """commit or abort, if this is not a record but the marker that ends a transaction."""


class IndexState(msgspec.Struct, frozen=True, kw_only=True):
    state: str
    """indexed, waiting, not_searchable, not_installed, off or unreadable."""
    next_offset: int | None = None
    """The index holds everything before it."""


class ArchiveState(msgspec.Struct, frozen=True, kw_only=True):
    state: str
    """archived, waiting, expired (its files were removed), not_configured or unreadable."""
    next_offset: int | None = None
    """The archive holds everything before it."""
    step: int | None = None
    """The step that took the record along, if it is among the newest ones."""
    files: tuple[str, ...] = ()
    """Files of that step, relative to the archive; none where the archive is an Iceberg or Delta table."""


class WalState(msgspec.Struct, frozen=True, kw_only=True):
    state: str
    """held, waiting (not written yet), gone (its file was given up), unknown (too many entries after it)."""
    file: str | None = None
    """Relative to the data directory."""
    position: int | None = None
    round: int | None = None
    """Number of the commit round that made it durable, unique on this node."""


class ClientFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The connection that a batch came by."""

    client_id: str | None
    """The client id in its requests, cut if it is very long."""
    host: str
    port: int


class FollowerAck(msgspec.Struct, frozen=True, kw_only=True):
    """When a replica had the record, by the leader's clock: of a follower, when it told the leader that it
    has it on its disk; of the leader, when it appended it."""

    node_id: NodeId
    after_ms: int | None
    """The last known time at which it was not acknowledged; null: the time at which the record was
    written."""
    by_ms: int
    """The first known time at which it was."""


class ReplicaFacts(msgspec.Struct, frozen=True, kw_only=True):
    node_id: NodeId
    log_start_offset: int
    log_end_offset: int
    durable_end_offset: int
    """Everything before it is on this node's disk, in the WAL or in a segment."""
    high_watermark: int
    last_stable_offset: int
    has_record: bool
    """The offset lies within the log on this node's disk; compaction may have removed the record all the
    same. What is before it, from `log_start_offset` on, is in the object store alone."""
    stage: str | None
    """memory (on its way to the WAL), wal (a restart replays it) or checkpointed (in a synced segment); null
    if it is not on this node's disk."""
    is_in_file: bool
    """Whether its segment file has been written, synced or not."""
    segment: str | None
    """File relative to the data directory; null for a gap that compaction left."""
    position: int | None
    batch: BatchFacts | None
    index: IndexState | None
    """Only where the leader tells."""
    archive: ArchiveState
    wal: WalState | None = None
    """Null: the node is of a release that does not tell."""
    followers: tuple[FollowerAck, ...] = ()
    """Only where the leader tells, of records that were written since it leads."""
    client: ClientFacts | None = None
    """Who wrote the batch. Only where the leader tells, of what it appended since it leads; it remembers the
    last changes of a partition's writer."""
    remote_object: str | None = None
    """The object in the store that holds the record. Only where the leader tells."""


async def facts_here(context: AdminContext, question: RecordQuestion) -> ReplicaFacts:
    tp = TopicPartition(question.topic, question.partition)
    here = context.services.replicas.get(tp)
    if here is None or str(here.topic_id) != question.topic_id:
        raise RequestError(
            ErrorCode.unknown_topic_or_partition, f"Node {context.node_id} has no replica of {tp}."
        )
    log_, offset = here.log, question.offset
    has_record = log_.log_start_offset <= offset < log_.log_end_offset
    place, stage = None, None
    if has_record:
        place = await locate_batch(log_, offset)
        stage = "memory"
        if offset < log_.durable_end_offset:
            header = None if place is None else place.header
            saved = await is_checkpointed(context.store.disk, context.store.root, log_, offset, header)
            stage = "checkpointed" if saved else "wal"
    in_store = await look_into_store(context, here, offset) if here.is_leader else None
    batch = None
    if place is not None:
        batch = _batch_facts(place.header, place.is_commit, transaction_end(here.log, place.header))
    elif in_store is not None and in_store.batch is not None:
        batch = _batch_facts(*in_store.batch)
    return ReplicaFacts(
        node_id=context.node_id,
        log_start_offset=here.log_start_offset,
        log_end_offset=log_.log_end_offset,
        durable_end_offset=log_.durable_end_offset,
        high_watermark=here.high_watermark,
        last_stable_offset=here.last_stable_offset,
        has_record=has_record,
        stage=stage,
        is_in_file=has_record and offset < log_.flushed_offset,
        segment=None if place is None else str(place.path.relative_to(context.store.root)),
        position=None if place is None else place.position,
        batch=batch,
        index=await _index_state(context, here, offset) if here.is_leader else None,
        archive=await _archive_state(context, question),
        wal=None if place is None else await _wal_state(context, here, place, is_durable=stage != "memory"),
        followers=_follower_acks(context, here, offset) if here.is_leader else (),
        client=_client(here, offset) if here.is_leader else None,
        remote_object=None if in_store is None else in_store.object_name,
    )


def _client(here: Partition, offset: int) -> ClientFacts | None:
    writer = here.writers.of(offset)
    if writer is None:
        return None
    return ClientFacts(client_id=writer.client_id, host=writer.host, port=writer.port)


async def _wal_state(
    context: AdminContext, here: Partition, place: BatchPlace, *, is_durable: bool
) -> WalState:
    if not is_durable:
        return WalState(state="waiting")
    store = context.store
    files = list(store.wal.files)
    try:
        found = await asyncio.to_thread(locate_in_wal, store.disk, files, here.log, place.header.base_offset)
    except (TooManyEntries, OSError):
        return WalState(state="unknown")
    if found is None:
        return WalState(state="gone")
    return WalState(state="held", file=f"wal/{found.file_name}", position=found.position, round=found.round)


def _follower_acks(context: AdminContext, here: Partition, offset: int) -> tuple[FollowerAck, ...]:
    """A record that is older than the leadership was acknowledged to another leader, nobody knows when."""
    if offset < here.leader_epoch_start_offset:
        return ()
    ago = context.services.now_ms() - asyncio.get_running_loop().time() * 1000

    def wall_ms(seconds: float) -> int:
        return round(ago + seconds * 1000)

    return tuple(
        FollowerAck(
            node_id=peer, after_ms=None if ack.after is None else wall_ms(ack.after), by_ms=wall_ms(ack.by)
        )
        for peer, progress in here.followers.items()
        if (ack := progress.when_acknowledged(offset)) is not None
    )


def _batch_facts(header: BatchHeader, is_commit: bool | None, transaction: str | None) -> BatchFacts:
    has_producer = header.producer_id >= 0
    return BatchFacts(
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        record_count=header.record_count,
        size_bytes=header.size_bytes,
        compression=Compression(header.compression).name.lower(),
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id if has_producer else None,
        producer_epoch=header.producer_epoch if has_producer else None,
        base_sequence=header.base_sequence if has_producer and not header.is_control else None,
        timestamp_type="LogAppendTime" if header.is_log_append_time else "CreateTime",
        base_timestamp_ms=header.base_timestamp,
        max_timestamp_ms=header.max_timestamp,
        is_transactional=header.is_transactional,
        transaction=transaction,
        marker=None if is_commit is None else ("commit" if is_commit else "abort"),
    )


async def _index_state(context: AdminContext, here: Partition, offset: int) -> IndexState:
    settings = context.settings
    if not here.config.searchable:
        return IndexState(state="not_searchable")
    if not context.queries.is_installed:
        return IndexState(state="not_installed")
    if not settings.disable_realtime_index:
        seen = context.queries.progress.get(here.tp)
        reached = here.log_start_offset if seen is None else seen.next_offset
    elif settings.published_index_dir is not None:
        folder = Path(settings.published_index_dir) / here.tp.topic
        try:
            manifest = await asyncio.to_thread(read_manifest, folder)
        except (ValueError, OSError):
            return IndexState(state="unreadable")
        is_ours = manifest is not None and manifest.topic_id == str(here.topic_id)
        reached = manifest.offsets.get(str(here.tp.partition), 0) if manifest is not None and is_ours else 0
    else:
        return IndexState(state="off")
    return IndexState(state="indexed" if offset < reached else "waiting", next_offset=reached)


async def _archive_state(context: AdminContext, question: RecordQuestion) -> ArchiveState:
    if context.settings.archive_dir is None:
        return ArchiveState(state="not_configured")
    root = Path(context.settings.archive_dir)
    try:
        return await asyncio.to_thread(look_into_archive, root, question)
    except (ValueError, OSError, ChronikError):
        return ArchiveState(state="unreadable")


def look_into_archive(root: Path, question: RecordQuestion) -> ArchiveState:
    """Blocking. Goes from the newest step to the oldest, since newer ones may replace files of older ones."""
    folder = root / META / question.topic
    paths = sorted((path for path in folder.glob("*.json") if path.stem.isdecimal()), reverse=True)
    number, reached = str(question.partition), 0
    replaced: dict[str, frozenset[str]] = {}
    for path in paths[:STEPS_READ_MAX]:
        step = msgspec.json.decode(path.read_bytes(), type=PublishedStep)
        if step.topic_id != question.topic_id:
            break
        reached = max(reached, step.offsets.get(number, 0))
        files = frozenset[str]().union(*(replaced.get(one, {one}) for one in step.moves.values()))
        replaced |= dict.fromkeys(step.removes, files)
        low, high = step.ranges.get(number, (0, 0))
        if low <= question.offset < high:
            state = "expired" if step.moves and not files else "archived"
            kept = tuple(sorted(files))
            return ArchiveState(state=state, next_offset=reached, step=step.version, files=kept)
    return ArchiveState(state="archived" if question.offset < reached else "waiting", next_offset=reached)
