"""What leaders tell a follower: handler of the data links that other nodes dial.

A partition is opened before it is fed: the follower says where its log stands, drops what the leader does not
have, and takes batches that continue it. An OPEN that arrives before the metadata of its leader epoch waits
(up to `EARLY_COUNT_MAX` of them, for up to `EARLY_SECONDS_MAX`) instead of being refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from chronik.links import frames
from chronik.links.frames import DATA_BYTES, Data, FrameType, Head, LogBounds
from chronik.links.link import Link
from chronik.model import PeerError, Pressure, RequestError, StorageError
from chronik.replication.ack_sender import AckSender
from chronik.replication.partition import Partition
from chronik.replication.partitions import Partitions

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


class FollowerLinks:
    def __init__(
        self,
        *,
        partitions: Partitions,
        acks: AckSender,
        pressures: tuple[Pressure, ...],
        now_ms: Callable[[], int],
    ) -> None:
        """Links that carry batches are not read while one of `pressures` is full (S04)."""
        self._by_id = partitions.by_id
        self._pressures = pressures
        self._held_back: dict[Link, None] = {}
        self._acks = acks
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._early: dict[tuple[bytes, int], _Early] = {}
        self._early_timer: asyncio.TimerHandle | None = None
        self._fed: dict[Link, set[Partition]] = {}
        self.early_count = 0
        """OPEN frames that wait for the metadata of their leader epoch."""

    async def stop(self) -> None:
        if self._early_timer is not None:
            self._early_timer.cancel()

    # --- links -------------------------------------------------------------------------------------

    def on_open(self, link: Link) -> None:
        self._fed[link] = set()

    def on_closed(self, link: Link) -> None:
        self._held_back.pop(link, None)
        for partition in self._fed.pop(link, ()):
            partition.stop_following(link)
        for key in [key for key, early in self._early.items() if early.link is link]:
            del self._early[key]

    def on_writable(self, link: Link) -> None:
        pass

    def on_frame(self, link: Link, frame: memoryview) -> None:
        head, body = frames.read(frame)
        partition = self._by_id.get((head.topic_id, head.partition))
        if partition is None or head.leader_epoch > partition.leader_epoch:
            self._on_early(link, head, frame)
            return
        if head.leader_epoch < partition.leader_epoch or partition.leader_id != link.peer_id:
            self._refuse(link, head)  # a deposed leader
            return
        try:
            if isinstance(body, Data):
                is_taken = partition.append_replicated(link, body, frame[DATA_BYTES:], self._now_ms())
                for pressure in self._pressures:
                    if pressure.full:
                        self._hold_back(link, pressure)
            else:
                is_taken = self._take(link, head, body, partition, frame)
        except (RequestError, StorageError) as error:
            log.error("%s: cannot take what node %d sent: %s", partition.tp, link.peer_id, error)
            is_taken = False
        if not is_taken:
            self._refuse(link, head)

    def _hold_back(self, link: Link, pressure: Pressure) -> None:
        """Stop reading from this leader. It stops sending once the socket's buffers are full."""
        if not self._held_back:
            pressure.when_room(self._relieved)
        self._held_back[link] = None
        link.pause_reading()

    def _relieved(self) -> None:
        for pressure in self._pressures:
            if pressure.full:
                pressure.when_room(self._relieved)
                return
        held_back, self._held_back = self._held_back, {}
        for link in held_back:
            link.resume_reading()

    def _take(
        self, link: Link, head: Head, body: LogBounds | None, partition: Partition, frame: memoryview
    ) -> bool:
        """Handle a frame. Returns False if it does not continue this log: the caller sends REFUSE."""
        match head.type:
            case FrameType.WATERMARK if body is not None:
                if partition.feeder is link:
                    self._on_watermark(partition, body, frames.decode_sample(frame))
            case FrameType.OPEN:
                if frames.decode_opening(frame) > partition.partition_epoch:
                    self._on_early(link, head, frame)
                else:
                    self._on_opening(link, head, partition)
            case FrameType.START:
                start = frames.decode_start(frame)
                if not partition.follow(link, start.offset, is_reset=start.is_reset):
                    return False
                self._fed[link].add(partition)
            case _:
                raise PeerError(f"a leader does not send frames of type {head.type}")
        return True

    def _on_watermark(self, partition: Partition, bounds: LogBounds, sample: int) -> None:
        partition.leader_reported(bounds.end_offset, bounds.log_start_offset)
        if sample and partition.high_watermark >= bounds.end_offset:
            self._acks.send_soon(partition, sample)

    # --- the handshake -------------------------------------------------------------------------------

    def _on_opening(self, link: Link, head: Head, partition: Partition) -> None:
        partition.stop_following()
        log_ = partition.log
        position = frames.LogPosition(log_.log_start_offset, log_.log_end_offset, list(log_.epochs.entries))
        link.outbox.send(_head(FrameType.STATE, head) + frames.encode_position(position))

    def _on_early(self, link: Link, head: Head, frame: memoryview) -> None:
        """The frame's epoch is newer than this node's metadata. Only an OPEN may wait. Other frames are
        refused, since a leader sends them only after its OPEN was answered."""
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

    def partition_assigned(self, partition: Partition) -> None:
        """The partition's metadata arrived: answer an OPEN frame that waited for it."""
        early = self._early.get((partition.log.topic_id_bytes, partition.tp.partition))
        if early is not None:
            self._try_early(early)

    def _try_early(self, early: _Early) -> None:
        partition = self._by_id.get(early.head.key)
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

    def _refuse(self, link: Link, head: Head) -> None:
        link.outbox.send(_head(FrameType.REFUSE, head))


def _head(type_: FrameType, head: Head) -> bytes:
    return frames.head(type_, head.topic_id, head.partition, head.leader_epoch)
