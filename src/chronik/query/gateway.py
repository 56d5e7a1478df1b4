"""The node's side of search and SQL: tells the search process what to index, and passes questions on.

Search and SQL have a process each, since only SQL runs programs of strangers: what it does to its process
must not end searches. Nothing else in the node waits for either.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from chronik.config import Settings
from chronik.metadata import events as e
from chronik.metadata.store import MetadataStore
from chronik.metrics import Histogram, clock
from chronik.model import TopicPartition
from chronik.query.confinement import offered
from chronik.query.installed import NOT_INSTALLED, is_installed
from chronik.query.messages import (
    Assignment,
    Credentials,
    IndexProgress,
    LogLosses,
    Logs,
    PartitionProgress,
    QueryError,
)
from chronik.query.process import QueryProcess
from chronik.replication.manager import ReplicaManager
from chronik.replication.partition import Partition
from chronik.tasks import Tasks

__all__ = ["QueryGateway", "log_states"]

log = logging.getLogger(__name__)

SEARCH_GRACE_SECONDS: Final = 10.0
"""How long a cancelled search may go on. It cannot be interrupted."""
SQL_GRACE_SECONDS: Final = 3.0
SQL_SILENCE_CPU_SECONDS_MAX: Final = 5.0
"""Processor time without a ping answer. Converting a value of millions of elements blocks the loop."""
RESULTS_OPEN_MAX: Final = 16
"""SQL results that clients may read at once. Each is a file of at most `sql_result_bytes_max`."""
TELL_SECONDS: Final = 1.0
"""How often the search process hears what logs have deleted. Each search says so, too."""
TELL_AT_ONCE: Final = 500
"""Partitions that are checked before other tasks get a turn."""

_RELEVANT: Final = (
    e.TopicCreated,
    e.TopicDeleted,
    e.PartitionAssigned,
    e.LeaderChanged,
    e.ConfigChanged,
    e.BrokerRegistered,
    e.Resync,
)


class QueryGateway:
    def __init__(
        self,
        settings: Settings,
        metadata: MetadataStore,
        replicas: ReplicaManager,
        *,
        kafka: tuple[str, int],
        endpoint: str = "kafka",
        credentials: Callable[[], Credentials | None] = lambda: None,
    ) -> None:
        """`kafka` is where query processes find this node, `endpoint` the listener that they use on others,
        `credentials` what they log in with now, where brokers ask for any."""
        self._settings = settings
        self._metadata = metadata
        self._replicas = replicas
        self._kafka = kafka
        self._endpoint = endpoint
        self._ask_credentials = credentials
        self._root = Path(settings.data_dir) / "query"
        self.search = QueryProcess(
            "search",
            lambda: self._options("search"),
            grace_seconds=SEARCH_GRACE_SECONDS,
            on_start=self._first_messages,
            on_progress=self._on_progress,
        )
        self.sql = QueryProcess(
            "sql",
            lambda: self._options("sql"),
            grace_seconds=SQL_GRACE_SECONDS,
            silence_cpu_seconds_max=SQL_SILENCE_CPU_SECONDS_MAX,
            on_start=self._credentials,
            on_abandoned=self._discard,
        )
        self._results_open = 0
        self._ports: list[int] = []
        self._assigned: Assignment | None = None
        self._assign_scheduled = False
        self._reported: dict[TopicPartition, LogLosses] = {}
        self._tasks = Tasks("query gateway")
        self._is_telling = False
        self._closed = False
        self.is_installed = is_installed()
        """False on a node without the extra `query`: every question is refused, nothing is indexed."""
        self.progress: dict[TopicPartition, PartitionProgress] = {}
        self.seconds: dict[str, Histogram] = {}

    @property
    def processes(self) -> tuple[QueryProcess, ...]:
        return self.search, self.sql

    def start(self) -> None:
        """Follow the metadata; the process itself waits for a reason to exist."""
        if not self.is_installed:
            log.info("%s", NOT_INSTALLED)
            return
        kernel = offered()
        for process in self.processes:
            process.confinement = process.confinement or kernel
        holds = ", ".join(f"{name}: {how}" for name, how in kernel.items())
        log.info("search and SQL run confined as soon as they are used: %s", holds)
        self._metadata.bus.listen(self._on_event)
        self._update_assignment()

    async def close(self) -> None:
        self._closed = True
        await self._tasks.close()
        await asyncio.gather(*(process.close() for process in self.processes))

    # --- what to index -----------------------------------------------------------------------------

    def _on_event(self, event: e.Event) -> None:
        own = self._settings.node_id
        is_own = isinstance(event, e.BrokerRegistered) and event.broker_id == own
        if is_own or isinstance(event, e.Resync | e.CertificatesReloaded):
            self._renew_credentials()  # those of an earlier registration are void
        if isinstance(event, _RELEVANT) and not self._assign_scheduled and not self._closed:
            self._assign_scheduled = True
            asyncio.get_running_loop().call_soon(self._update_assignment)

    def _update_ports(self) -> None:
        """A process may connect only to ports that it was started with, so a new broker port restarts it."""
        brokers = self._metadata.state.brokers.values()
        endpoints = (broker.endpoints.get(self._endpoint) for broker in brokers)
        ports = {endpoint.port for endpoint in endpoints if endpoint is not None}
        if not ports <= set(self._ports):
            self._ports = sorted(ports | set(self._ports))
            for process in self.processes:
                process.replace()

    def _update_assignment(self) -> None:
        self._assign_scheduled = False
        self._update_ports()
        if self._settings.disable_realtime_index or self._closed:
            return
        topics: dict[str, tuple[str, list[int]]] = {}
        for partition in self._replicas.all():
            if partition.is_leader and partition.config.searchable:
                topics.setdefault(partition.tp.topic, (str(partition.topic_id), []))[1].append(
                    partition.tp.partition
                )
        for _, numbers in topics.values():
            numbers.sort()
        assignment = Assignment(topics=dict(sorted(topics.items())))
        if assignment == self._assigned or (self._assigned is None and not topics):
            return
        self._assigned = assignment
        kept = {TopicPartition(name, number) for name, (_, ns) in topics.items() for number in ns}
        self.progress = {tp: seen for tp, seen in self.progress.items() if tp in kept}
        if not self._is_telling:
            self._is_telling = True
            self._tasks.spawn(self._keep_telling(), "what logs lost")
        if self.search.is_up:
            self._reported = {}
            self.search.send(self._news(self._followed()))
            self.search.send(assignment)
        else:
            self.search.keep()

    def _credentials(self) -> tuple[Credentials, ...]:
        found = self._ask_credentials()
        return () if found is None else (found,)

    def _renew_credentials(self) -> None:
        """Tell processes that run what to connect with from now on."""
        for process in self.processes:
            for credentials in self._credentials():
                process.send(credentials)

    def _first_messages(self) -> Sequence[Assignment | Credentials | Logs]:
        if self._assigned is None:
            return self._credentials()
        self._reported = {}
        return *self._credentials(), self._news(self._followed()), self._assigned

    def _followed(self) -> list[Partition]:
        """The partitions that the search process indexes."""
        topics = {} if self._assigned is None else self._assigned.topics
        wanted = [TopicPartition(name, number) for name, (_, numbers) in topics.items() for number in numbers]
        return [here for tp in wanted if (here := self._replicas.get(tp)) is not None]

    def _news(self, partitions: Iterable[Partition]) -> Logs:
        """Losses of these partitions that the search process does not know yet."""
        news = [one for one in partitions if self._reported.get(one.tp) != _state(one)]
        self._reported |= {one.tp: _state(one) for one in news}
        return log_states(news)

    async def _keep_telling(self) -> None:
        """DeleteRecords, retention and compaction raise no event, so logs are polled."""
        while True:
            await asyncio.sleep(TELL_SECONDS)
            followed = self._followed()
            self._reported = {
                one.tp: seen for one in followed if (seen := self._reported.get(one.tp)) is not None
            }
            for first in range(0, len(followed), TELL_AT_ONCE):
                await asyncio.sleep(0)
                if self.search.is_up and (news := self._news(followed[first : first + TELL_AT_ONCE])).topics:
                    self.search.send(news)

    def _on_progress(self, progress: IndexProgress) -> None:
        self.progress = {TopicPartition(one.topic, one.partition): one for one in progress.partitions}

    # --- questions ---------------------------------------------------------------------------------

    async def ask(self, method: str, body: Any, *, timeout_s: float) -> Any:
        """The answer of the process that does this; QueryError with the answer for an HTTP client."""
        return (await self._ask(method, body, timeout_s))[1]

    async def ask_rows(self, body: Any, *, timeout_s: float) -> tuple[Mapping[str, Any], BinaryIO]:
        """The description of a SQL result, and its file, which is deleted when it is closed."""
        if self._results_open >= RESULTS_OPEN_MAX:
            raise QueryError(503, "too_busy", f"{RESULTS_OPEN_MAX} results of SQL are being read.")
        self._results_open += 1
        try:
            number, answer = await self._ask("sql", body, timeout_s)
            return answer, self._open_result(number)
        except BaseException:
            self._results_open -= 1
            raise

    def close_rows(self, file: BinaryIO) -> None:
        file.close()
        self._results_open -= 1

    async def _ask(self, method: str, body: Any, timeout_s: float) -> tuple[int, Any]:
        began = clock()
        self.require_installed()
        process = self.search if method in ("search", "indices") else self.sql
        answered = await process.ask(method, body, timeout_s=timeout_s)
        self.seconds.setdefault(method, Histogram()).observe(clock() - began)
        return answered

    def require_installed(self) -> None:
        if not self.is_installed:
            raise QueryError(501, "query_not_installed", NOT_INSTALLED)

    def _result_path(self, number: int) -> Path:
        """Made of the question's number alone: the child has no say in what the node opens."""
        return self._root / "sql" / ".results" / str(number)

    def _open_result(self, number: int) -> BinaryIO:
        path = self._result_path(number)
        try:
            found = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            path.unlink()
        except OSError as error:
            log.error("the result of a query cannot be read: %s", error)
            raise QueryError(500, "internal_error", "The result is gone; the node's log says why.") from None
        file = os.fdopen(found, "rb", buffering=0)
        if not stat.S_ISREG(os.fstat(found).st_mode):
            file.close()
            raise QueryError(500, "internal_error", "The result is no file.")
        return file

    def _discard(self, number: int) -> None:
        with contextlib.suppress(OSError):
            self._result_path(number).unlink()

    def _options(self, kind: str) -> Mapping[str, Any]:
        settings = self._settings
        return {
            "kind": kind,
            "data_dir": str(self._root),
            "host": self._kafka[0],
            "port": self._kafka[1],
            "ports": self._ports,
            "log_level": settings.log_level.upper(),
            "search_memory_bytes": settings.search_memory_bytes_max,
            "sql_memory_bytes": settings.sql_memory_bytes_max,
            "sql_result_bytes_max": settings.sql_result_bytes_max,
            "sql_columns_bytes_max": settings.sql_columns_bytes_max,
            "sql_rows_max": settings.sql_rows_max,
            "sql_seconds_max": settings.sql_timeout_ms / 1000,
            "archive_dir": _path(settings.archive_dir),
            "realtime_index": not settings.disable_realtime_index,
            "published_index_dir": _path(settings.published_index_dir),
            "decompressed_bytes_max": settings.decompressed_bytes_max,
        }

    # --- figures -----------------------------------------------------------------------------------

    def lag(self) -> Mapping[TopicPartition, int]:
        """Committed records that are not indexed yet, per searchable partition led here."""
        if not self.is_installed:
            return {}
        out = {}
        for partition in self._replicas.all():
            if partition.is_leader and partition.config.searchable:
                seen = self.progress.get(partition.tp)
                reached = partition.log_start_offset if seen is None else seen.next_offset
                out[partition.tp] = max(0, partition.last_stable_offset - reached)
        return out


def log_states(partitions: Iterable[Partition]) -> Logs:
    topics: dict[str, dict[int, LogLosses]] = {}
    for one in partitions:
        topics.setdefault(str(one.topic_id), {})[one.tp.partition] = _state(one)
    return Logs(topics=topics)


def _state(partition: Partition) -> LogLosses:
    lost = partition.log.retirement
    compaction = lost.last_compaction if partition.config.is_compacted else -1
    return LogLosses(partition.log_start_offset, compaction, lost.compacted_below)


def _path(given: Path | None) -> str | None:
    return None if given is None else str(given)
