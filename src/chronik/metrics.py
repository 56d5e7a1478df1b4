"""What a node can tell about itself: one table of names, and the plain objects that hot paths count in.

Counting costs an attribute's increment; nothing is formatted, locked or looked up by name until somebody
scrapes. Each node has objects of its own, so several nodes can live in one process. The table is the only
place where a metric is named: the scrape, the reference page, the dashboard and the alerts are checked
against it.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

__all__ = [
    "COUNTS",
    "METRICS",
    "SECONDS",
    "CleanerStats",
    "Histogram",
    "Metric",
    "ObjectStats",
    "ServerStats",
    "TieringStats",
    "WriteStages",
    "clock",
]

clock: Final = time.perf_counter
"""For durations alone: the event loop's own clock may stand still for a millisecond."""

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]

SECONDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
)  # fmt: skip
STAGE_SECONDS: Final = (
    *(round(step * decade, 6) for decade in (0.0001, 0.001, 0.01, 0.1)
      for step in (1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.3, 8.0)),
    1.0, 2.0, 5.0, 10.0, 30.0,
)  # fmt: skip
"""Ten to a power of ten: what is held against a bar must not be told to the nearest half only."""
COUNTS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 10_000.0)


class Histogram:
    """Counts of observations per bucket; `bounds` are upper ends, the last bucket has none."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, share: float) -> float | None:
        """Upper end of the bucket in which this share of observations ends; None before the first one."""
        wanted = share * self.count
        seen = 0
        for index, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return self.bounds[min(index, len(self.bounds) - 1)]
        return None


@dataclass(slots=True)
class ServerStats:
    """Counted by the Kafka listener and its connections."""

    received_bytes: int = 0
    sent_bytes: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Connections that were closed at once, by the limit that was reached: for all connections, or for one
    address."""
    held_back: int = 0
    """How often a socket was not read because the node had enough to do."""
    held_back_seconds: float = 0.0
    """Time in which at least one socket was not read."""
    throttled_seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Waits that clients were given for taking more than their quotas, by quota."""
    throttled_connections: int = 0
    """Connections that are not read because of that."""
    requests: defaultdict[int, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    """Seconds from a request's last byte to its answer, by API key."""


def _of_a_stage() -> Histogram:
    return Histogram(STAGE_SECONDS)


@dataclass(slots=True)
class WriteStages:
    """How long metadata writes take. Counted by the log underneath, and where commands are submitted."""

    wal: Histogram = field(default_factory=_of_a_stage)
    """How long until the entry is durable in the leader's WAL."""
    sent: Histogram = field(default_factory=_of_a_stage)
    """How long until it is handed to the streams to the followers."""
    committed: Histogram = field(default_factory=_of_a_stage)
    """How long until a majority has it."""
    applied: Histogram = field(default_factory=_of_a_stage)
    """How long until it is applied on the node that submitted it."""
    followers: Histogram = field(default_factory=_of_a_stage)
    """How long until the leader hears that a follower has applied it; once for each follower."""
    by_command: dict[str, Histogram] = field(default_factory=dict)
    """The same as `applied`, separately for each kind of command."""

    def took(self, command: str, seconds: float) -> None:
        """A command submitted here was applied here."""
        self.applied.observe(seconds)
        found = self.by_command.get(command)
        if found is None:
            found = self.by_command[command] = Histogram()
        found.observe(seconds)

    def by_name(self) -> dict[str, Histogram]:
        return {
            "wal": self.wal,
            "sent": self.sent,
            "committed": self.committed,
            "applied": self.applied,
            "followers": self.followers,
        }


@dataclass(slots=True)
class CleanerStats:
    """Counted by retention and compaction."""

    is_compacting: bool = False
    compactions: int = 0
    compacted_bytes: int = 0
    removed_records: int = 0
    removed_bytes: int = 0
    step_seconds: Histogram = field(default_factory=Histogram)
    """Work between two pauses: how long appends may have had to wait for the interpreter."""
    dirty_ratio_max: float = 0.0
    failing_partitions: int = 0
    unreadable_batches: int = 0
    retention_moves: int = 0


OBJECT_CALLS: Final = ("put", "get", "delete", "list")


@dataclass(slots=True)
class ObjectStats:
    """Counted by the door to the object store."""

    written_bytes: int = 0
    """Failed attempts included."""
    read_bytes: int = 0
    deleted: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """Attempts that failed, by call."""
    seconds: dict[str, Histogram] = field(
        default_factory=lambda: {call: Histogram() for call in OBJECT_CALLS}
    )
    """How long calls that succeeded took, with their retries."""


@dataclass(slots=True)
class TieringStats:
    """Counted by tiered storage."""

    uploaded_segments: int = 0
    uploaded_bytes: int = 0
    lag_segments: int = 0
    """Sealed segments of partitions led here that are not in the store yet, at the last look."""
    lag_bytes: int = 0
    failing_partitions: int = 0
    """Partitions whose last upload or clean-up failed."""
    removed_objects: int = 0
    reads: int = 0
    read_bytes: int = 0
    failed_reads: int = 0
    slow_reads: int = 0
    """Fetches that were answered without what the store did not give in time."""
    deferred_reads: int = 0
    """Reads that found no room, because too much was read from the store already."""
    read_memory_bytes: int = 0
    """What reads of the store that are under way may take."""
    manifest_bytes: int = 0
    """Manifests that are kept in memory, about."""
    deletes: int = 0
    """DeleteRecords of partitions that are under way or wait for the store."""
    refused_deletes: int = 0
    damaged: int = 0
    """Answers of the store that were not what had been stored."""
    cache_hits: int = 0
    cache_misses: int = 0
    cache_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ()

    def samples(self) -> tuple[str, ...]:
        """The names of its time series, as Prometheus sees them."""
        if self.kind == "histogram":
            return tuple(self.name + suffix for suffix in ("_bucket", "_count", "_sum"))
        return (self.name,)


_TP: Final = ("topic", "partition")
_TABLE: Final = (
    Metric("chronik_build_info", "gauge", "Always 1; its labels say what runs.", ("version", "node_id")),
    Metric("chronik_up_seconds", "gauge", "Seconds since the node started."),
    Metric("chronik_ready", "gauge", "1 when the node serves clients and knows a controller."),
    # Kafka clients
    Metric(
        "chronik_request_seconds",
        "histogram",
        "From a request's last byte to its answer; Fetch includes the wait for data.",
        ("api",),
    ),
    Metric("chronik_received_bytes_total", "counter", "Bytes received on the Kafka port."),
    Metric("chronik_sent_bytes_total", "counter", "Bytes sent on the Kafka port."),
    Metric("chronik_connections", "gauge", "Open connections of Kafka clients."),
    Metric("chronik_connections_max", "gauge", "Connections of Kafka clients that the node takes at once."),
    Metric(
        "chronik_connections_refused_total",
        "counter",
        "Connections closed because of a limit: of all (max), of one address (per_ip), of one address per "
        "second (per_ip_rate), of one listener per second (rate), of HTTP (http), of those that have not "
        "proven to be a node (links).",
        ("limit",),
    ),
    Metric("chronik_request_memory_bytes", "gauge", "Request frames that are being worked on."),
    Metric("chronik_stalled_memory_bytes", "gauge", "Held for clients that do not send or read on."),
    Metric("chronik_stalled_closed_total", "counter", "Connections of such clients that were closed."),
    Metric("chronik_held_back_total", "counter", "Times a socket was not read because a queue was full."),
    Metric(
        "chronik_held_back_seconds_total", "counter", "Time in which sockets were not read for that reason."
    ),
    Metric(
        "chronik_throttled_seconds_total",
        "counter",
        "Waits of clients that took more than their quota.",
        ("quota",),
    ),
    Metric("chronik_throttled_connections", "gauge", "Connections not read because of a quota."),
    Metric("chronik_logins_failed_total", "counter", "Clients that did not prove who they are."),
    Metric("chronik_denied_total", "counter", "Decisions of the authorizer against a client."),
    Metric("chronik_audit_entries_total", "counter", "Entries that this node wrote to the audit log."),
    Metric("chronik_audit_waiting_entries", "gauge", "Audit entries that are not written yet."),
    Metric(
        "chronik_audit_dropped_total",
        "counter",
        "Refusals and changes that the audit log tells only as a sum.",
    ),
    # WAL
    Metric(
        "chronik_wal_round_seconds",
        "histogram",
        "One commit round: one write, and one sync unless all of it is relaxed.",
    ),
    Metric("chronik_wal_round_entries", "histogram", "Appends that shared a commit round."),
    Metric("chronik_wal_written_bytes_total", "counter", "Bytes written to the WAL."),
    Metric("chronik_wal_failed_rounds_total", "counter", "Commit rounds that the disk refused."),
    Metric("chronik_wal_queue_depth", "gauge", "Appends that wait for the disk or are being written."),
    Metric("chronik_wal_full_total", "counter", "Times the WAL's queue was full."),
    Metric(
        "chronik_wal_relaxed_rounds_total",
        "counter",
        "Commit rounds that were acknowledged before their sync, as their topics allow.",
    ),
    Metric(
        "chronik_wal_relaxed_sync_seconds", "histogram", "One sync of such rounds, beside those that follow."
    ),
    Metric("chronik_wal_unsynced_bytes", "gauge", "Acknowledged bytes that are not synced yet."),
    Metric("chronik_wal_unsynced_seconds", "gauge", "Age of the oldest acknowledged bytes not synced yet."),
    Metric("chronik_flush_pending_bytes", "gauge", "Durable bytes that are not yet in segment files."),
    Metric("chronik_open_segments", "gauge", "Segment files that are open."),
    Metric("chronik_open_segments_max", "gauge", "Segment files that may be open at a time."),
    Metric(
        "chronik_open_segments_evicted_total", "counter", "Segment files that were closed to open others."
    ),
    # partitions
    Metric("chronik_topics", "gauge", "Topics of the cluster."),
    Metric("chronik_partitions", "gauge", "Replicas on this node, by role.", ("role",)),
    Metric("chronik_cluster_partitions", "gauge", "Partitions of all topics of the cluster."),
    Metric("chronik_cluster_partitions_max", "gauge", "Partitions beyond which the cluster makes no more."),
    Metric("chronik_under_replicated_partitions", "gauge", "Partitions led here whose ISR is not complete."),
    Metric(
        "chronik_offline_partitions", "gauge", "Partitions of the cluster without a leader that is alive."
    ),
    Metric("chronik_partition_log_start_offset", "gauge", "First offset of a replica on this node.", _TP),
    Metric("chronik_partition_log_end_offset", "gauge", "Offset behind the last record.", _TP),
    Metric("chronik_partition_high_watermark", "gauge", "Offset up to which all of the ISR agree.", _TP),
    Metric("chronik_partition_watermark_lag_records", "gauge", "Records behind the high watermark.", _TP),
    Metric("chronik_partition_size_bytes", "gauge", "Size of a replica's log.", _TP),
    # replication
    Metric(
        "chronik_replication_lag_records",
        "gauge",
        "Records that a follower has yet to store, over all partitions led here.",
        ("follower",),
    ),
    Metric(
        "chronik_replication_lag_seconds",
        "gauge",
        "For how long a follower has not been at the end of every partition led here.",
        ("follower",),
    ),
    Metric(
        "chronik_watermark_propagation_seconds",
        "histogram",
        "From a high watermark's move until its leader hears that a follower has it; samples.",
        ("follower",),
    ),
    Metric(
        "chronik_replica_repairs_total",
        "counter",
        "Replicas on this node that were cut at a damaged segment, to be copied from another replica.",
    ),
    Metric("chronik_isr_changes_total", "counter", "Changes of an ISR in the cluster.", ("change",)),
    Metric("chronik_leader_changes_total", "counter", "Changes of a partition's leader in the cluster."),
    Metric("chronik_topics_created_total", "counter", "Topics created since the node started."),
    Metric("chronik_topics_deleted_total", "counter", "Topics deleted since the node started."),
    # metadata and consensus
    Metric("chronik_brokers", "gauge", "Registered brokers, by state.", ("state",)),
    Metric(
        "chronik_metadata_write_seconds",
        "histogram",
        "A metadata write, from submission to stage: wal (durable on the leader), sent to the followers, "
        "committed by a majority, applied where it was submitted, followers (heard to be applied on one).",
        ("stage",),
    ),
    Metric(
        "chronik_metadata_command_seconds",
        "histogram",
        "A metadata write submitted here until it is applied here, by command.",
        ("command",),
    ),
    Metric("chronik_metadata_apply_queue_depth", "gauge", "Committed metadata entries not applied here yet."),
    Metric("chronik_event_bus_depth", "gauge", "Metadata events the slowest subscriber has yet to take."),
    Metric(
        "chronik_metadata_messages_total",
        "counter",
        "Metadata messages between nodes by the path they took: fast, or fallback on ticks.",
        ("path",),
    ),
    Metric(
        "chronik_metadata_waits_total",
        "counter",
        "Times a metadata command had to wait because too many bytes of them were on their way.",
    ),
    Metric(
        "chronik_metadata_sent_entries_total",
        "counter",
        "Metadata entries sent to other nodes, by link: metadata (replication port) or raft (Raft port).",
        ("link",),
    ),
    Metric(
        "chronik_metadata_sent_bytes_total",
        "counter",
        "Bytes of metadata appends and their answers sent to other nodes, by link.",
        ("link",),
    ),
    Metric("chronik_raft_term", "gauge", "Term of the metadata log."),
    Metric("chronik_raft_is_leader", "gauge", "1 on the node that leads the metadata log."),
    Metric("chronik_raft_elections_total", "counter", "Elections this node took part in since it started."),
    Metric(
        "chronik_load_moves_total",
        "counter",
        "Leaders and replicas that this node, as the controller, moved because loads were uneven.",
        ("kind",),
    ),
    Metric("chronik_raft_committed_index", "gauge", "Last entry of the metadata log known to be committed."),
    Metric("chronik_raft_applied_index", "gauge", "Last entry of the metadata log applied here."),
    Metric("chronik_raft_snapshot_index", "gauge", "Last entry that the newest metadata snapshot covers."),
    Metric(
        "chronik_raft_follower_lag_entries",
        "gauge",
        "Entries a follower lacks; on the leader.",
        ("follower",),
    ),
    # what clients make a node remember
    Metric("chronik_fetch_sessions", "gauge", "Fetch sessions that are open (KIP-227)."),
    Metric("chronik_fetch_session_partitions", "gauge", "Partitions in all open fetch sessions."),
    Metric(
        "chronik_fetch_sessions_evicted_total", "counter", "Quiet fetch sessions that gave way to others."
    ),
    Metric("chronik_telemetry_clients", "gauge", "Clients that push, or ask for, metrics (KIP-714)."),
    Metric("chronik_telemetry_pushes_total", "counter", "Metrics pushed by clients, by result.", ("result",)),
    Metric("chronik_telemetry_bytes_total", "counter", "Bytes of metrics that were taken from clients."),
    Metric(
        "chronik_telemetry_unreadable_total",
        "counter",
        "Pushes of clients that were taken although their metrics could not be read.",
    ),
    Metric(
        "chronik_client_state_bytes",
        "gauge",
        "Memory that clients' state takes, about, by kind: groups, committed_offsets, fetch_sessions, "
        "producer_ids, transactional_ids, client_metrics.",
        ("kind",),
    ),
    Metric("chronik_client_state_bytes_max", "gauge", "What each kind of it may take.", ("kind",)),
    Metric(
        "chronik_client_state_refused_total",
        "counter",
        "How often there was no room for more of a kind; for producer_ids and client_metrics, older ones "
        "were forgotten.",
        ("kind",),
    ),
    Metric(
        "chronik_schema_registry_subjects", "gauge", "Subjects of the schema registry; 0 but on its leader."
    ),
    Metric("chronik_schema_registry_versions", "gauge", "Versions of all subjects; 0 but on its leader."),
    Metric("chronik_schema_registry_bytes", "gauge", "Memory that they take, about; 0 but on its leader."),
    Metric("chronik_schema_registry_bytes_max", "gauge", "What they may take."),
    Metric(
        "chronik_schema_registry_refused_total",
        "counter",
        "Schemas that were refused because there was no room for them.",
    ),
    Metric(
        "chronik_schema_registry_processes_total",
        "counter",
        "Schemas that were too large or too expensive for the node's event loop and judged in a process.",
    ),
    Metric(
        "chronik_schema_registry_waiting",
        "gauge",
        "Different schemas that wait for that process, at most 16, of one principal or address at most 4.",
    ),
    Metric(
        "chronik_schema_registry_turned_away_total",
        "counter",
        "Schemas that were refused because too many waited for that process.",
    ),
    Metric(
        "chronik_metadata_bytes",
        "gauge",
        "Size of the cluster's metadata, about: topics, partitions, configs, users, ACLs, quotas, tokens.",
    ),
    Metric(
        "chronik_metadata_bytes_max", "gauge", "What it may take; beyond it changes that add are refused."
    ),
    Metric("chronik_metadata_refused_total", "counter", "Changes of metadata refused here for their size."),
    Metric("chronik_committed_offsets", "gauge", "Offsets committed to groups coordinated here."),
    Metric("chronik_producer_ids", "gauge", "Producer ids that the partitions here remember."),
    # groups
    Metric("chronik_groups", "gauge", "Groups coordinated here, by state.", ("state",)),
    Metric(
        "chronik_group_lag_records",
        "gauge",
        "Records between a group's committed offset and the end, for groups coordinated here.",
        ("group", *_TP),
    ),
    # cleaning
    Metric("chronik_cleaner_compacting", "gauge", "1 while a log is being compacted."),
    Metric("chronik_cleaner_compactions_total", "counter", "Compactions of a log that were finished."),
    Metric("chronik_cleaner_processed_bytes_total", "counter", "Bytes that compaction read and wrote."),
    Metric("chronik_cleaner_removed_records_total", "counter", "Records that compaction took out."),
    Metric("chronik_cleaner_removed_bytes_total", "counter", "Bytes by which compaction made logs smaller."),
    Metric("chronik_cleaner_step_seconds", "histogram", "Work of compaction between two pauses."),
    Metric(
        "chronik_cleaner_dirty_ratio_max",
        "gauge",
        "Largest share of a compacted log that was not compacted yet, at the last look.",
    ),
    Metric(
        "chronik_cleaner_unreadable_batches_total",
        "counter",
        "Batches that compaction left as they are because they cannot be decoded.",
    ),
    Metric("chronik_cleaner_failing_partitions", "gauge", "Logs that cannot be cleaned at present."),
    Metric("chronik_retention_deletions_total", "counter", "Times that retention moved the start of a log."),
    # tiered storage
    Metric(
        "chronik_remote_uploaded_segments_total",
        "counter",
        "Segments that this node put into the object store.",
    ),
    Metric("chronik_remote_uploaded_bytes_total", "counter", "Their bytes, indexes included."),
    Metric(
        "chronik_remote_lag_segments",
        "gauge",
        "Sealed segments led here that the object store does not have yet.",
    ),
    Metric("chronik_remote_lag_bytes", "gauge", "Bytes of these segments."),
    Metric("chronik_remote_log_bytes", "gauge", "Bytes of partitions led here that are in the object store."),
    Metric("chronik_remote_failing_partitions", "gauge", "Partitions whose last upload or clean-up failed."),
    Metric(
        "chronik_remote_removed_objects_total", "counter", "Objects that counted no more and were removed."
    ),
    Metric("chronik_remote_reads_total", "counter", "Reads of records that only the object store has."),
    Metric("chronik_remote_read_bytes_total", "counter", "Bytes of records that they found."),
    Metric("chronik_remote_failed_reads_total", "counter", "Those that failed because of the object store."),
    Metric(
        "chronik_remote_slow_reads_total",
        "counter",
        "Fetches that were answered before the object store did.",
    ),
    Metric(
        "chronik_remote_deferred_reads_total",
        "counter",
        "Reads that were answered without records, because too many were under way.",
    ),
    Metric(
        "chronik_remote_read_memory_bytes",
        "gauge",
        "Memory that reads of the object store under way may take now.",
    ),
    Metric(
        "chronik_remote_damaged_total",
        "counter",
        "Answers of the object store that were not what had been stored.",
    ),
    Metric(
        "chronik_remote_manifest_bytes",
        "gauge",
        "Memory of the lists of segments that are kept, about; those used least recently go beyond 96 MiB.",
    ),
    Metric(
        "chronik_remote_deletes",
        "gauge",
        "DeleteRecords that wait for the object store, by partition; at most 64, of one partition 8.",
    ),
    Metric(
        "chronik_remote_refused_deletes_total",
        "counter",
        "DeleteRecords that were refused because so many waited (KAFKA_STORAGE_ERROR).",
    ),
    Metric("chronik_remote_cache_bytes", "gauge", "Memory that holds what was read from the object store."),
    Metric("chronik_remote_cache_hits_total", "counter", "Pieces of objects that were in that memory."),
    Metric("chronik_remote_cache_misses_total", "counter", "Pieces that had to be fetched."),
    Metric(
        "chronik_object_store_seconds",
        "histogram",
        "Calls of the object store that succeeded, retries included.",
        ("call",),
    ),
    Metric("chronik_object_store_errors_total", "counter", "Attempts that failed.", ("call",)),
    Metric(
        "chronik_object_store_written_bytes_total",
        "counter",
        "Bytes sent to the object store, failed attempts included.",
    ),
    Metric("chronik_object_store_read_bytes_total", "counter", "Bytes that the object store sent."),
    # search and SQL
    Metric(
        "chronik_query_child_up",
        "gauge",
        "1 while the process for search or for SQL runs and answers.",
        ("process",),
    ),
    Metric(
        "chronik_query_child_restarts_total",
        "counter",
        "Times that process ended, or was ended because it did not answer, and was started again.",
        ("process",),
    ),
    Metric(
        "chronik_query_skipped_records_total",
        "counter",
        "Records left out of search or SQL because they cannot be read.",
        ("process",),
    ),
    Metric(
        "chronik_sql_columns_bytes", "gauge", "Bytes on disk that SQL keeps of topics for the next query."
    ),
    Metric(
        "chronik_sql_columns_dropped_total",
        "counter",
        "Topics of which SQL dropped what it kept, for want of room.",
    ),
    Metric("chronik_index_documents", "gauge", "Searchable documents of partitions led here.", _TP),
    Metric("chronik_index_lag_records", "gauge", "Committed records that are not indexed yet.", _TP),
    Metric("chronik_query_seconds", "histogram", "Search and SQL requests answered here.", ("kind",)),
    # HTTP
    Metric("chronik_http_requests_total", "counter", "HTTP requests answered.", ("method", "status")),
    Metric("chronik_http_sessions", "gauge", "Logins of the console that have not ended."),
    Metric("chronik_http_sessions_evicted_total", "counter", "Logins that ended for want of room."),
)

METRICS: Final[Mapping[str, Metric]] = MappingProxyType({metric.name: metric for metric in _TABLE})
