"""Writes the audit log: a topic that belongs to the nodes. Clients read it with the right to; none writes it.

The topic has one partition, so that its order is the cluster's. The node that leads it appends; the others
hand it their entries over HTTP, signed. What cannot be written stays in memory, within the audit's bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from chronik.admin.errors import HttpError
from chronik.admin.peers import HttpPeers
from chronik.log_lines import RepeatingLine
from chronik.metadata.values import Topic
from chronik.model import AUDIT_TOPIC, ChronikError, ErrorCode, RequestError, TopicPartition, Unavailable
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.server.audit import AuditEntry, AuditTrail
from chronik.server.audit_topic import audit_topic_configs
from chronik.server.coordinators import REPLICATION_FACTOR
from chronik.server.services import Services
from chronik.server.topics import plan_topic, submit_topic
from chronik.tasks import Tasks

__all__ = ["AUDIT_PATH", "AuditWriter"]

log = logging.getLogger(__name__)
_late: Final = RepeatingLine(log, logging.WARNING, "the audit log cannot be written now: %s")

AUDIT_PATH: Final = "/_node/audit"
GATHER_SECONDS: Final = 0.2
"""How long entries gather before they are written together."""
SUMS_SECONDS: Final = 10.0
"""How soon a sum is written once its window is over."""
AGAIN_SECONDS: Final = 1.0
STOP_SECONDS_MAX: Final = 1.0
AT_ONCE: Final = 500
_TP: Final = TopicPartition(AUDIT_TOPIC, 0)


class AuditWriter:
    def __init__(self, services: Services, audit: AuditTrail, peers: HttpPeers) -> None:
        self._services = services
        self._audit = audit
        self._peers = peers
        self._tasks = Tasks("audit")
        self._held: list[AuditEntry] = []
        """Taken and not written yet."""
        self.written = 0

    def start(self) -> None:
        if not self._audit.is_on:
            return
        self._tasks.spawn(self._run(), "the audit log")

    async def close(self) -> None:
        """Write what there is, if that is possible at once."""
        await self._tasks.close()
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await self._flush(with_all_sums=True)
        except (ChronikError, TimeoutError):
            pass

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SUMS_SECONDS if self._audit.has_sums else None):
                    await self._audit.due.wait()
            self._audit.due.clear()
            await asyncio.sleep(GATHER_SECONDS)
            try:
                await self._flush()
            except Exception as error:  # whatever it was, the audit goes on
                is_expected = isinstance(error, ChronikError | TimeoutError)
                _late("audit", str(error) if is_expected else repr(error))
                await asyncio.sleep(AGAIN_SECONDS)
                self._audit.due.set()

    async def _flush(self, *, with_all_sums: bool = False) -> None:
        while True:
            self._held = self._held or self._audit.take(AT_ONCE, with_all_sums=with_all_sums)
            if not self._held:
                return
            await self._write(self._held)
            self.written += len(self._held)
            self._held = []

    async def _write(self, entries: Sequence[AuditEntry]) -> None:
        services = self._services
        topic = services.state.topics.get(AUDIT_TOPIC)
        if topic is None:
            topic = await self._create()
        leader = topic.partitions[0].leader
        if leader == services.settings.node_id:
            await self.append(entries)
            return
        try:
            await self._peers.ask(leader, "POST", AUDIT_PATH, {"entries": list(entries)}, timeout_s=5.0)
        except HttpError as error:
            raise Unavailable(str(error)) from None

    async def append(self, entries: Sequence[AuditEntry]) -> None:
        """Leader: put entries, this node's or another's, into the log; returns when they are committed."""
        partition = self._services.replicas.get(_TP)
        if partition is None:
            raise RequestError(ErrorCode.not_leader_or_follower)
        now_ms = self._services.now_ms()
        records = [
            Record(key=None, value=msgspec.json.encode(entry), timestamp_ms=entry.time_ms)
            for entry in entries
        ]
        done: asyncio.Future[RequestError | None] = asyncio.get_running_loop().create_future()
        appended = partition.append_internal(build_batch(records), now_ms)
        partition.when_acked(
            appended.next_offset, -1, lambda error: None if done.done() else done.set_result(error)
        )
        error = await done
        if error is not None:
            raise error

    async def _create(self) -> Topic:
        services = self._services
        replicas = max(1, min(REPLICATION_FACTOR, len(services.state.live_brokers())))
        plan = plan_topic(
            services,
            AUDIT_TOPIC,
            partitions=1,
            replication_factor=replicas,
            configs=audit_topic_configs(replicas),
            is_internal=True,
        )
        topic = await submit_topic(services, plan)
        if topic is None:
            raise Unavailable(f"{AUDIT_TOPIC} was deleted as soon as it was created")
        return topic
