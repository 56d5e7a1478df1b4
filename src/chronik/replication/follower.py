"""The follower's side of replication: takes what leaders send, tells them what is on disk.

A partition is opened before it is fed: the follower says where its log stands, drops what the
leader does not have, and takes batches that continue it. An opening that arrives before the
metadata that explains it waits (bounded in number and time) instead of being dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from chronik.model import ErrorCode, NodeId, PeerError, RequestError, StorageError
from chronik.records.batch import check_batch
from chronik.replication import frames
from chronik.replication.frames import FrameType, Head
from chronik.replication.link import Link
from chronik.replication.partition import Partition

log = logging.getLogger(__name__)

EARLY_SECONDS_MAX: Final = 10.0
EARLY_POLL_SECONDS: Final = 0.1
EARLY_COUNT_MAX: Final = 100_000


class _Early(NamedTuple):
    link: Link
    head: Head
    partition_epoch: int
    until: float

    def is_known(self, partition: Partition) -> bool:
        """Whether this node's metadata is as new as the leader's was."""
        is_this_epoch = self.head.leader_epoch == partition.leader_epoch
        return self.head.leader_epoch < partition.leader_epoch or (
            is_this_epoch and self.partition_epoch <= partition.partition_epoch
        )


class FollowerSide:
    """Handler of incoming data links."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        find: Callable[[bytes, int], Partition | None],
        now_ms: Callable[[], int],
    ) -> None:
        self._node_id = node_id
        self._find = find
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._early: dict[tuple[bytes, int], _Early] = {}
        self._early_timer: asyncio.TimerHandle | None = None
        self._fed: dict[Link, set[Partition]] = {}
        self._to_ack: dict[Partition, None] = {}
        self._ack_scheduled = False
        self.early_count = 0
        """Openings that came before their metadata."""

    async def stop(self) -> None:
        if self._early_timer is not None:
            self._early_timer.cancel()

    # --- links -------------------------------------------------------------------------------------

    def on_open(self, link: Link) -> None:
        self._fed[link] = set()

    def on_closed(self, link: Link) -> None:
        for partition in self._fed.pop(link, ()):
            if partition.feeder is link:
                partition.feeder = None
        for key in [key for key, early in self._early.items() if early.link is link]:
            del self._early[key]

    def on_writable(self, link: Link) -> None:
        pass

    def on_frame(self, link: Link, frame: memoryview) -> None:
        head = frames.read_head(frame)
        partition = self._find(head.topic_id, head.partition)
        if partition is None or head.leader_epoch > partition.leader_epoch:
            self._on_early(link, head, frame)
            return
        if head.leader_epoch < partition.leader_epoch or partition.leader_id != link.peer_id:
            self._refuse(link, head)  # a deposed leader: it has to learn that first
            return
        try:
            self._take(link, head, partition, frame)
        except (RequestError, StorageError) as error:
            log.error("%s: what node %d sent cannot be taken: %s", partition.tp, link.peer_id, error)
            self._refuse(link, head)

    def _take(self, link: Link, head: Head, partition: Partition, frame: memoryview) -> None:
        match head.type:
            case FrameType.DATA:
                self._on_data(link, head, partition, frame)
            case FrameType.WATERMARK:
                if partition.feeder is link:
                    told = frames.decode_bounds(frame)
                    partition.on_told_watermark(told.end_offset)
                    partition.follow_log_start(told.log_start_offset)
                    sample = frames.decode_sample(frame)
                    if sample and partition.high_watermark >= told.end_offset:
                        self._send_ack(link, partition, sample)
            case FrameType.OPEN:
                if frames.decode_opening(frame) > partition.partition_epoch:
                    self._on_early(link, head, frame)
                else:
                    self._on_opening(link, head, partition)
            case FrameType.START:
                self._on_start(link, head, partition, frames.decode_start(frame))
            case _:
                raise PeerError(f"a leader does not send frames of type {head.type}")

    # --- the handshake -------------------------------------------------------------------------------

    def _on_opening(self, link: Link, head: Head, partition: Partition) -> None:
        partition.feeder = None
        log_ = partition.log
        position = frames.LogPosition(log_.log_start_offset, log_.log_end_offset, list(log_.epochs.entries))
        link.send(self._head(FrameType.STATE, head) + frames.encode_position(position))

    def _on_start(self, link: Link, head: Head, partition: Partition, start: frames.Start) -> None:
        log_ = partition.log
        if start.is_reset:
            log.warning("%s begins anew at %d: the leader keeps nothing older", partition.tp, start.offset)
            log_.restart_at(start.offset)
            partition.log_restarted()
        elif start.offset < log_.log_end_offset:
            if start.offset < partition.high_watermark:
                # Committed records are on every in-sync replica: an honest leader has them.
                log.error(
                    "%s: node %d, epoch %d, would have committed records dropped (%d < %d)",
                    partition.tp,
                    link.peer_id,
                    head.leader_epoch,
                    start.offset,
                    partition.high_watermark,
                )
                self._refuse(link, head)
                return
            log.info(
                "%s: dropping offsets %d to %d, which node %d does not have",
                partition.tp,
                start.offset,
                log_.log_end_offset - 1,
                link.peer_id,
            )
            log_.truncate(start.offset)
        if start.offset > log_.log_end_offset:
            self._refuse(link, head)
            return
        partition.feeder = link
        self._fed[link].add(partition)
        self.acknowledge(partition)

    def _on_early(self, link: Link, head: Head, frame: memoryview) -> None:
        """Metadata is late. Only openings can be early: data follows an answered opening."""
        if head.type != FrameType.OPEN:
            self._refuse(link, head)
            return
        waiting = self._early.get(head.key)
        if len(self._early) >= EARLY_COUNT_MAX or (waiting and waiting.head.leader_epoch > head.leader_epoch):
            self._refuse(link, head)
            return
        if waiting is not None and waiting.link is not link:
            self._refuse(waiting.link, waiting.head)  # a deposed leader
        self.early_count += 1
        until = self._loop.time() + EARLY_SECONDS_MAX
        self._early[head.key] = _Early(link, head, frames.decode_opening(frame), until)
        if self._early_timer is None:
            self._early_timer = self._loop.call_later(EARLY_POLL_SECONDS, self._poll_early)

    def partition_changed(self, partition: Partition) -> None:
        """Metadata arrived: an opening that waited for it goes on at once."""
        if partition.is_leader:
            partition.feeder = None
        early = self._early.get((partition.log.topic_id_bytes, partition.tp.partition))
        if early is not None:
            self._try_early(early)

    def _try_early(self, early: _Early) -> None:
        partition = self._find(early.head.topic_id, early.head.partition)
        if partition is None or not early.is_known(partition):
            return
        del self._early[early.head.key]
        if early.head.leader_epoch == partition.leader_epoch and partition.leader_id == early.link.peer_id:
            self._on_opening(early.link, early.head, partition)
        else:
            self._refuse(early.link, early.head)

    def _poll_early(self) -> None:
        self._early_timer = None
        now = self._loop.time()
        for early in list(self._early.values()):
            self._try_early(early)
            if early.head.key in self._early and now >= early.until:
                del self._early[early.head.key]
                self._refuse(early.link, early.head)
        if self._early:
            self._early_timer = self._loop.call_later(EARLY_POLL_SECONDS, self._poll_early)

    # --- data --------------------------------------------------------------------------------------

    def _on_data(self, link: Link, head: Head, partition: Partition, frame: memoryview) -> None:
        data = frames.decode_data(frame)
        log_ = partition.log
        if partition.feeder is not link or data.prev_end_offset != log_.log_end_offset:
            self._refuse(link, head)
            return
        batches = frame[frames.DATA_BYTES :]
        _check_batches(batches)
        log_.append_replicated(batches, self._now_ms())
        partition.on_told_watermark(data.high_watermark)
        partition.follow_log_start(data.log_start_offset)

    def acknowledge(self, partition: Partition) -> None:
        """The log grew on disk, or starts later: tell the leader at the end of this turn."""
        self._to_ack[partition] = None
        if not self._ack_scheduled:
            self._ack_scheduled = True
            self._loop.call_soon(self._send_acks)

    def _send_acks(self) -> None:
        self._ack_scheduled = False
        to_ack, self._to_ack = self._to_ack, {}
        for partition in to_ack:
            if partition.feeder is not None:
                self._send_ack(partition.feeder, partition)

    def _send_ack(self, link: Link, partition: Partition, sample: int = 0) -> None:
        topic_id, epoch = partition.log.topic_id_bytes, partition.leader_epoch
        head = frames.head(FrameType.ACK, topic_id, partition.tp.partition, epoch)
        has = frames.Bounds(partition.log.durable_end_offset, partition.log_start_offset)
        link.send(head + frames.encode_bounds(has, sample))

    def begin_anew(self, partition: Partition) -> None:
        """This disk took back what the leader takes to be on its way: nothing else would tell the leader."""
        link, partition.feeder = partition.feeder, None
        if link is not None:
            topic_id, epoch = partition.log.topic_id_bytes, partition.leader_epoch
            link.send(frames.head(FrameType.REFUSE, topic_id, partition.tp.partition, epoch))

    def _refuse(self, link: Link, head: Head) -> None:
        link.send(self._head(FrameType.REFUSE, head))

    def _head(self, type_: FrameType, head: Head) -> bytes:
        return frames.head(type_, head.topic_id, head.partition, head.leader_epoch)


def _check_batches(batches: memoryview) -> None:
    position = 0
    while position < len(batches):
        position += check_batch(batches, position).size_bytes
    if position != len(batches):
        raise RequestError(ErrorCode.corrupt_message, "replicated batches do not end where their frame does")
