"""The metrics of a node, put together when somebody asks. Nothing is kept between scrapes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from chronik import __version__
from chronik.admin.context import AdminContext
from chronik.metadata.state import ClusterState
from chronik.metrics import METRICS, Histogram, ObjectStats, TieringStats
from chronik.model import NO_LEADER, NodeId, RequestError
from chronik.replication.partition import Partition
from chronik.security.quotas import USER_KEYS
from chronik.wire.api import ApiKey

__all__ = ["Scrape", "is_ready", "why_not_ready"]

SAMPLES_AT_ONCE: Final = 100
"""Half a millisecond of work."""
_NAMING: Final = frozenset(
    name.removesuffix("_total") for name, metric in METRICS.items() if {"topic", "group"} & set(metric.labels)
)
"""Families whose time series carry names that clients gave."""
Labels: TypeAlias = tuple[str, ...]
Labelled: TypeAlias = Mapping[Any, float]
"""The value of each time series, by the values of its labels."""


class Scrape:
    """The metrics of one node."""

    def __init__(self, context: AdminContext, *, with_names: bool = True) -> None:
        """Without names, figures by topic or group are left out."""
        self._node = NodeCollector(context)
        self._with_names = with_names
        self._process = ProcessCollector(registry=None)

    async def text(self) -> bytes:
        """Piece by piece: thousands of partitions take long, and clients must not wait for all of them."""
        parts: list[bytes] = []
        last = ""
        for piece in itertools.chain(self._node.collect(), self._process.collect()):
            if not self._with_names and piece.name in _NAMING:
                continue
            text = generate_latest(_Piece(piece))
            parts.append(_without_head(text) if piece.name == last else text)
            last = piece.name
            await asyncio.sleep(0)
        return b"".join(parts)


class _Piece(Collector):
    """A part of the metrics, in the form that the Prometheus library encodes."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def collect(self) -> Iterator[Family]:
        yield self._family


def _without_head(text: bytes) -> bytes:
    """Only the first piece of a family says what it is, in two lines."""
    return text.split(b"\n", 2)[2]


class NodeCollector:
    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def collect(self) -> Iterator[Family]:
        yield from self._node()
        yield from self._server()
        yield from self._wal()
        yield from self._partitions()
        yield from self._replication()
        yield from self._metadata()
        yield from self._groups()
        yield from self._cleaning()
        yield from self._tiering()
        yield from self._queries()

    def _node(self) -> Iterator[Family]:
        context = self._context
        yield from _family("chronik_build_info", {(__version__, str(context.node_id)): 1})
        yield from _family("chronik_up_seconds", {(): context.up_seconds})
        yield from _family("chronik_ready", {(): is_ready(context)})
        answers = {(method, str(status)): n for (method, status), n in context.http.answers.items()}
        yield from _family("chronik_http_requests_total", answers)
        yield from _family("chronik_http_sessions", {(): len(context.callers.sessions)})
        yield from _family("chronik_http_sessions_evicted_total", {(): context.callers.sessions.evicted})

    def _server(self) -> Iterator[Family]:
        listener, stats = self._context.listener, self._context.listener.stats
        requests = {(ApiKey(key).name.lower(),): found for key, found in stats.requests.items()}
        yield _histograms("chronik_request_seconds", requests)
        yield from _family("chronik_received_bytes_total", {(): stats.received_bytes})
        yield from _family("chronik_sent_bytes_total", {(): stats.sent_bytes})
        yield from _family("chronik_connections", {(): listener.connection_count})
        yield from _family("chronik_connections_max", {(): listener.connection_limits().total})
        refused = {(limit,): stats.refused[limit] for limit in ("max", "per_ip", "per_ip_rate", "rate")}
        refused["http",] = self._context.http.refused
        refused["links",] = self._context.strangers_refused()
        yield from _family("chronik_connections_refused_total", refused)
        yield from _family("chronik_request_memory_bytes", {(): listener.memory.held_bytes})
        yield from _family("chronik_stalled_memory_bytes", {(): listener.stalled.held_bytes})
        yield from _family("chronik_stalled_closed_total", {(): listener.stalled.closed})
        yield from _family("chronik_held_back_total", {(): stats.held_back})
        yield from _family("chronik_held_back_seconds_total", {(): stats.held_back_seconds})
        sessions = self._context.services.fetch_sessions
        yield from _family("chronik_fetch_sessions", {(): len(sessions)})
        yield from _family("chronik_fetch_session_partitions", {(): sessions.partitions})
        yield from _family("chronik_fetch_sessions_evicted_total", {(): sessions.evicted})
        shares = list(self._context.services.client_state)
        yield from _family("chronik_client_state_bytes", {(one.kind,): one.held_bytes for one in shares})
        yield from _family("chronik_client_state_bytes_max", {(one.kind,): one.bytes_max for one in shares})
        yield from _family("chronik_client_state_refused_total", {(one.kind,): one.refused for one in shares})
        yield from self._schema_registry()
        telemetry = self._context.services.telemetry
        yield from _family("chronik_telemetry_clients", {(): len(telemetry)})
        pushes = {(code.name,): count for code, count in telemetry.pushes.items()}
        yield from _family("chronik_telemetry_pushes_total", pushes)
        yield from _family("chronik_telemetry_bytes_total", {(): telemetry.pushed_bytes})
        yield from _family("chronik_telemetry_unreadable_total", {(): telemetry.unreadable})
        throttled = {(quota,): stats.throttled_seconds[quota] for quota in USER_KEYS}
        yield from _family("chronik_throttled_seconds_total", throttled)
        yield from _family("chronik_throttled_connections", {(): stats.throttled_connections})
        logins_failed, denied = self._context.refusals()
        yield from _family("chronik_logins_failed_total", {(): logins_failed})
        yield from _family("chronik_denied_total", {(): denied})
        audit = self._context.security.audit
        yield from _family("chronik_audit_entries_total", {(): self._context.audit.written})
        yield from _family("chronik_audit_waiting_entries", {(): len(audit)})
        yield from _family("chronik_audit_dropped_total", {(): audit.dropped})

    def _schema_registry(self) -> Iterator[Family]:
        schemas = self._context.services.schemas
        held = schemas.state_here
        subjects, versions = (0, 0) if held is None else (held.subject_count, held.version_count)
        yield from _family("chronik_schema_registry_subjects", {(): subjects})
        yield from _family("chronik_schema_registry_versions", {(): versions})
        yield from _family("chronik_schema_registry_bytes", {(): schemas.share.held_bytes})
        yield from _family("chronik_schema_registry_bytes_max", {(): schemas.share.bytes_max})
        yield from _family("chronik_schema_registry_refused_total", {(): schemas.share.refused})
        judging = schemas.judging
        yield from _family("chronik_schema_registry_processes_total", {(): judging.processes})
        yield from _family("chronik_schema_registry_waiting", {(): judging.waiting})
        yield from _family("chronik_schema_registry_turned_away_total", {(): judging.refused})

    def _wal(self) -> Iterator[Family]:
        store = self._context.store
        stats = store.wal.stats
        handles = store.disk.handles
        yield from _family("chronik_open_segments", {(): len(handles)})
        yield from _family("chronik_open_segments_max", {(): handles.limit})
        yield from _family("chronik_open_segments_evicted_total", {(): handles.evicted})
        yield _histograms("chronik_wal_round_seconds", {(): stats.round_seconds})
        yield _histograms("chronik_wal_round_entries", {(): stats.round_entries})
        yield from _family("chronik_wal_written_bytes_total", {(): stats.bytes})
        yield from _family("chronik_wal_failed_rounds_total", {(): stats.failed_rounds})
        yield from _family("chronik_wal_queue_depth", {(): store.wal.depth})
        yield from _family("chronik_wal_full_total", {(): store.wal.times_waited_for})
        yield from _family("chronik_wal_relaxed_rounds_total", {(): stats.relaxed_rounds})
        yield _histograms("chronik_wal_relaxed_sync_seconds", {(): stats.relaxed_sync_seconds})
        yield from _family("chronik_wal_unsynced_bytes", {(): store.wal.unsynced_bytes})
        yield from _family("chronik_wal_unsynced_seconds", {(): store.wal.unsynced_seconds})
        yield from _family("chronik_flush_pending_bytes", {(): store.flusher.unflushed_bytes})

    def _partitions(self) -> Iterator[Family]:
        context = self._context
        replicas = list(context.services.replicas.all())
        led = [one for one in replicas if one.is_leader]
        yield from _family("chronik_topics", {(): len(context.state.topics)})
        yield from _family(
            "chronik_partitions", {("leader",): len(led), ("follower",): len(replicas) - len(led)}
        )
        producers = sum(len(one.log.producers or ()) for one in replicas)
        yield from _family("chronik_producer_ids", {(): producers})
        short = sum(len(one.isr) < len(one.replicas) for one in led)
        yield from _family("chronik_under_replicated_partitions", {(): short})
        made = sum(len(topic.partitions) for topic in context.state.topics.values())
        yield from _family("chronik_cluster_partitions", {(): made})
        allowed = context.services.limits.cluster_partitions_max
        yield from _family("chronik_cluster_partitions_max", {(): allowed})
        yield from _family("chronik_offline_partitions", {(): offline_partitions(context)})
        by_tp: dict[Labels, Partition] = {(p.tp.topic, str(p.tp.partition)): p for p in replicas}
        columns: dict[str, Callable[[Partition], float]] = {
            "chronik_partition_log_start_offset": lambda p: p.log_start_offset,
            "chronik_partition_log_end_offset": lambda p: p.log_end_offset,
            "chronik_partition_high_watermark": lambda p: p.high_watermark,
            "chronik_partition_watermark_lag_records": lambda p: p.log_end_offset - p.high_watermark,
            "chronik_partition_size_bytes": lambda p: p.size_bytes,
        }
        for name, value in columns.items():
            yield from _family(name, {key: value(p) for key, p in by_tp.items()})

    def _replication(self) -> Iterator[Family]:
        context, events = self._context, self._context.events
        lag: dict[Labels, float] = {}
        for partition in context.services.replicas.all():
            if partition.is_leader:
                for follower, progress in partition.followers.items():
                    end = max(progress.acked_end, partition.log_start_offset)
                    key = (str(follower),)
                    lag[key] = lag.get(key, 0) + max(0, partition.log_end_offset - end)
        yield from _family("chronik_replication_lag_records", lag)
        seconds = {(str(node),): value for node, value in context.replication_lag_seconds().items()}
        yield from _family("chronik_replication_lag_seconds", seconds)
        moves = {(str(node),): found for node, found in context.watermark_propagation.items()}
        yield _histograms("chronik_watermark_propagation_seconds", moves)
        changes = {("shrink",): events.isr_shrinks, ("expand",): events.isr_expands}
        yield from _family("chronik_isr_changes_total", changes)
        yield from _family("chronik_replica_repairs_total", {(): context.services.replicas.repaired})
        yield from _family("chronik_leader_changes_total", {(): events.leader_changes})
        yield from _family("chronik_topics_created_total", {(): events.topics_created})
        yield from _family("chronik_topics_deleted_total", {(): events.topics_deleted})

    def _metadata(self) -> Iterator[Family]:
        context = self._context
        brokers = context.state.brokers.values()
        fenced = sum(broker.fenced for broker in brokers)
        yield from _family("chronik_brokers", {("alive",): len(brokers) - fenced, ("fenced",): fenced})
        stages = context.services.metadata.stages.by_name()
        named = {(stage,): seconds for stage, seconds in stages.items()}
        yield _histograms("chronik_metadata_write_seconds", named)
        commands = context.services.metadata.stages.by_command
        yield _histograms(
            "chronik_metadata_command_seconds", {(name,): seconds for name, seconds in commands.items()}
        )
        budget = context.services.metadata.budget
        yield from _family("chronik_metadata_bytes", {(): context.state.size_bytes})
        yield from _family("chronik_metadata_bytes_max", {(): budget.bytes_max})
        yield from _family("chronik_metadata_refused_total", {(): budget.refused})
        raft = context.raft_status()
        yield from _family("chronik_metadata_apply_queue_depth", {(): raft.apply_queue_depth})
        yield from _family("chronik_event_bus_depth", {(): raft.event_bus_depth})
        yield from _family("chronik_raft_snapshot_index", {(): raft.last_snapshot_index})
        paths = {("fast",): raft.fast_messages, ("fallback",): raft.fallback_messages}
        yield from _family("chronik_metadata_messages_total", paths)
        yield from _family("chronik_metadata_waits_total", {(): raft.waits})
        links = raft.carried.items()
        yield from _family("chronik_metadata_sent_entries_total", {(to,): one.entries for to, one in links})
        yield from _family("chronik_metadata_sent_bytes_total", {(to,): one.bytes for to, one in links})
        yield from _family("chronik_raft_term", {(): raft.term})
        yield from _family("chronik_raft_is_leader", {(): raft.leader_id == raft.node_id})
        yield from _family("chronik_raft_elections_total", {(): raft.elections})
        moves = {(kind,): count for kind, count in context.load_moves.items()}
        yield from _family("chronik_load_moves_total", moves)
        yield from _family("chronik_raft_committed_index", {(): raft.last_committed_index})
        yield from _family("chronik_raft_applied_index", {(): raft.last_applied_index})
        lags = {(str(one.node_id),): one.lag_entries for one in raft.followers}
        yield from _family("chronik_raft_follower_lag_entries", lags)

    def _groups(self) -> Iterator[Family]:
        context = self._context
        coordinator = context.services.groups
        states: dict[Labels, float] = {}
        lag: dict[Labels, float] = {}
        if coordinator is not None:
            with contextlib.suppress(RequestError):  # still loading
                for listed in coordinator.list():
                    states[(listed.state,)] = states.get((listed.state,), 0) + 1
            for group_id, tp, offset in coordinator.committed():
                here = context.services.replicas.get(tp)
                if here is not None and offset >= 0:
                    key = (group_id, tp.topic, str(tp.partition))
                    lag[key] = max(0, here.high_watermark - offset)
            offsets = sum(1 for _ in coordinator.committed())
            yield from _family("chronik_committed_offsets", {(): offsets})
        yield from _family("chronik_groups", states)
        yield from _family("chronik_group_lag_records", lag)

    def _cleaning(self) -> Iterator[Family]:
        stats = self._context.cleaner
        yield from _family("chronik_cleaner_compacting", {(): stats.is_compacting})
        yield from _family("chronik_cleaner_compactions_total", {(): stats.compactions})
        yield from _family("chronik_cleaner_processed_bytes_total", {(): stats.compacted_bytes})
        yield from _family("chronik_cleaner_removed_records_total", {(): stats.removed_records})
        yield from _family("chronik_cleaner_removed_bytes_total", {(): stats.removed_bytes})
        yield _histograms("chronik_cleaner_step_seconds", {(): stats.step_seconds})
        yield from _family("chronik_cleaner_dirty_ratio_max", {(): stats.dirty_ratio_max})
        yield from _family("chronik_cleaner_failing_partitions", {(): stats.failing_partitions})
        yield from _family("chronik_cleaner_unreadable_batches_total", {(): stats.unreadable_batches})
        yield from _family("chronik_retention_deletions_total", {(): stats.retention_moves})

    def _tiering(self) -> Iterator[Family]:
        tiering = self._context.tiering
        stats = TieringStats() if tiering is None else tiering.stats
        objects = ObjectStats() if tiering is None else tiering.objects
        led = [one for one in self._context.services.replicas.all() if one.is_leader]
        remote_bytes = sum(0 if one.remote is None else one.remote.size_bytes for one in led)
        figures: dict[str, float] = {
            "chronik_remote_uploaded_segments_total": stats.uploaded_segments,
            "chronik_remote_uploaded_bytes_total": stats.uploaded_bytes,
            "chronik_remote_lag_segments": stats.lag_segments,
            "chronik_remote_lag_bytes": stats.lag_bytes,
            "chronik_remote_log_bytes": remote_bytes,
            "chronik_remote_failing_partitions": stats.failing_partitions,
            "chronik_remote_removed_objects_total": stats.removed_objects,
            "chronik_remote_reads_total": stats.reads,
            "chronik_remote_read_bytes_total": stats.read_bytes,
            "chronik_remote_failed_reads_total": stats.failed_reads,
            "chronik_remote_slow_reads_total": stats.slow_reads,
            "chronik_remote_deferred_reads_total": stats.deferred_reads,
            "chronik_remote_read_memory_bytes": stats.read_memory_bytes,
            "chronik_remote_damaged_total": stats.damaged,
            "chronik_remote_manifest_bytes": stats.manifest_bytes,
            "chronik_remote_deletes": stats.deletes,
            "chronik_remote_refused_deletes_total": stats.refused_deletes,
            "chronik_remote_cache_bytes": stats.cache_bytes,
            "chronik_remote_cache_hits_total": stats.cache_hits,
            "chronik_remote_cache_misses_total": stats.cache_misses,
            "chronik_object_store_written_bytes_total": objects.written_bytes,
            "chronik_object_store_read_bytes_total": objects.read_bytes,
        }
        for name, value in figures.items():
            yield from _family(name, {(): value})
        calls = {(call,): seconds for call, seconds in objects.seconds.items()}
        yield _histograms("chronik_object_store_seconds", calls)
        errors = {(call,): objects.errors[call] for call in objects.seconds}
        yield from _family("chronik_object_store_errors_total", errors)

    def _queries(self) -> Iterator[Family]:
        queries = self._context.queries
        up = {(process.kind,): process.is_up for process in queries.processes}
        restarts = {(process.kind,): process.restarts for process in queries.processes}
        skipped = {(process.kind,): process.skipped for process in queries.processes}
        yield from _family("chronik_query_skipped_records_total", skipped)
        yield from _family("chronik_query_child_up", up)
        yield from _family("chronik_query_child_restarts_total", restarts)
        columns = sum(process.columns_bytes for process in queries.processes)
        yield from _family("chronik_sql_columns_bytes", {(): columns})
        dropped = sum(process.columns_dropped for process in queries.processes)
        yield from _family("chronik_sql_columns_dropped_total", {(): dropped})
        documents = {(tp.topic, str(tp.partition)): one.documents for tp, one in queries.progress.items()}
        lag = {(tp.topic, str(tp.partition)): n for tp, n in queries.lag().items()}
        yield from _family("chronik_index_documents", documents)
        yield from _family("chronik_index_lag_records", lag)
        times = {(kind,): histogram for kind, histogram in queries.seconds.items()}
        yield _histograms("chronik_query_seconds", times)


def is_ready(context: AdminContext) -> bool:
    """The node serves clients: it is registered, not fenced, somebody leads the metadata log, and its
    replicas have caught up since it started, so that the next node may be stopped."""
    phase = context.phase
    is_led = context.raft_status().leader_id != NO_LEADER
    if not (phase.is_serving and is_led and context.state.is_alive(context.node_id)):
        return False
    phase.has_caught_up = phase.has_caught_up or not replicas_behind(context.state, context.node_id)
    return phase.has_caught_up


def replicas_behind(state: ClusterState, node_id: NodeId) -> int:
    """How many replicas of this node are not in sync though they could be. One whose leader is dead does
    not count: the leader may be waiting for this node to be ready. Nor does one that is being moved here:
    a move may take hours, and the others have all that it copies."""
    return sum(
        node_id in partition.replicas
        and node_id not in (*partition.isr, *partition.adding)
        and state.is_alive(partition.leader)
        for topic in state.topics.values()
        for partition in topic.partitions
    )


def why_not_ready(context: AdminContext) -> str:
    """A sentence for people, about a node that is not ready."""
    if context.raft_status().leader_id == NO_LEADER:
        nodes = ", ".join(str(peer.id) for peer in context.settings.peers)
        return f"Nobody leads the cluster: the node waits for a majority of nodes {nodes}."
    if not context.phase.is_serving:
        return "The node is starting: it is not registered with its cluster yet."
    behind = replicas_behind(context.state, context.node_id)
    if behind and context.state.is_alive(context.node_id):
        return f"The node is catching up: {behind} of its replicas are not in sync yet."
    return "The cluster does not count the node among those alive: it was cut off, or is on its way out."


def offline_partitions(context: AdminContext) -> int:
    state = context.state
    return sum(
        not state.is_alive(partition.leader)
        for topic in state.topics.values()
        for partition in topic.partitions
    )


def _family(name: str, samples: Labelled) -> Iterator[Family]:
    """In pieces, if there are many samples; also if there are none, in one."""
    metric = METRICS[name]
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    left = list(samples.items())
    for start in range(0, max(1, len(left)), SAMPLES_AT_ONCE):
        family = kind(metric.name, metric.doc, labels=metric.labels)
        for labels, value in left[start : start + SAMPLES_AT_ONCE]:
            family.add_metric(labels, value)
        yield family


def _histograms(name: str, samples: Mapping[Any, Histogram]) -> Family:
    metric = METRICS[name]
    family = HistogramMetricFamily(metric.name, metric.doc, labels=metric.labels)
    for labels, histogram in samples.items():
        buckets, seen = [], 0
        for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            seen += count
            buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), float(seen)))
        family.add_metric(labels, buckets, histogram.total)
    return family
