"""The leader's side of replication: one stream per follower node, all partitions in it.

Catching up and live feed are the same code: a follower is fed from `next_offset` out of the log,
which serves recent batches from memory, as long as its window has room. An append marks the
partition; what was appended in one turn of the loop leaves in one frame per partition.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from chronik.model import NodeId, PeerError, RequestError
from chronik.records.batch import headers
from chronik.replication import frames
from chronik.replication.divergence import where_to_start
from chronik.replication.frames import FrameType
from chronik.replication.link import Link
from chronik.replication.partition import Partition
from chronik.replication.progress import FollowerProgress, FollowerState
from chronik.replication.propagation import Propagation
from chronik.storage import reading
from chronik.storage.reading import BatchRun

log = logging.getLogger(__name__)

WINDOW_BYTES: Final = 8 * 1024 * 1024
"""Unacknowledged bytes per partition and follower."""
CHUNK_BYTES: Final = 1024 * 1024
WATERMARK_SECONDS: Final = 0.002
"""How long a watermark waits for batches to go with. Nobody is answered later for it; on a busy node it saves
each follower a message and a wake-up for every round of batches."""
CHECK_SECONDS: Final = 0.25
REOPEN_SECONDS: Final = 0.05
RETRY_SECONDS: Final = 1.0
PROPOSE_AGAIN_SECONDS: Final = 0.1

ProposeIsr = Callable[[Partition, tuple[NodeId, ...] | None], Awaitable[bool | None]]
"""Asks the controller for another ISR, or with None for a new epoch. False if it was refused, None if nobody
knows: it may be granted yet."""


class LeaderSide:
    """Feeds the followers of every partition that this node leads. Handler of outgoing data links."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        partitions: Callable[[], Iterable[Partition]],
        find: Callable[[bytes, int], Partition | None],
        propose_isr: ProposeIsr,
        is_alive: Callable[[NodeId], bool],
        lag_seconds_max: float,
    ) -> None:
        self._node_id = node_id
        self._partitions = partitions
        self._find = find
        self._propose_isr = propose_isr
        self._is_alive = is_alive
        self._lag_seconds_max = lag_seconds_max
        self._loop = asyncio.get_running_loop()
        self.propagation = Propagation(self._loop.time)
        self._links: dict[NodeId, Link] = {}
        self._dirty: dict[Partition, None] = {}
        self._feed_scheduled = False
        self._untold: dict[Partition, None] = {}
        """Partitions whose watermark moved: followers hear of it with the next batches, or soon without."""
        self._tell_timer: asyncio.TimerHandle | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._checker: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._checker = self._loop.call_later(CHECK_SECONDS, self._check)

    async def stop(self) -> None:
        for timer in (self._checker, self._tell_timer):
            if timer is not None:
                timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def is_alive(self, node_id: NodeId) -> bool:
        return self._is_alive(node_id)

    @property
    def connected(self) -> list[NodeId]:
        return sorted(self._links)

    # --- links -------------------------------------------------------------------------------------

    def on_open(self, link: Link) -> None:
        self._links[link.peer_id] = link
        for partition in self._partitions():
            if link.peer_id in partition.followers:
                self._open(partition, partition.followers[link.peer_id])

    def on_closed(self, link: Link) -> None:
        if self._links.get(link.peer_id) is link:
            del self._links[link.peer_id]
            for partition in self._partitions():
                if link.peer_id in partition.followers:
                    partition.followers[link.peer_id].lost()

    def on_writable(self, link: Link) -> None:
        for partition in self._partitions():
            if link.peer_id in partition.followers:
                self.appended(partition)

    def on_frame(self, link: Link, frame: memoryview) -> None:
        head = frames.read_head(frame)
        partition = self._find(head.topic_id, head.partition)
        if partition is None or head.leader_epoch != partition.leader_epoch or not partition.is_leader:
            return  # an answer to something this node no longer says
        progress = partition.followers.get(link.peer_id)
        if progress is None:
            return
        match head.type:
            case FrameType.ACK:
                self._acked(partition, progress, frames.decode_bounds(frame))
                sample = frames.decode_sample(frame)
                if sample:
                    self.propagation.arrived(link.peer_id, sample)
            case FrameType.STATE:
                self._start(link, partition, progress, frames.decode_position(frame))
            case FrameType.REFUSE:
                if progress.state is FollowerState.FED or progress.state is FollowerState.ASKED:
                    self._begin_anew(partition, progress, "it asks for that")
            case _:
                raise PeerError(f"a follower does not send frames of type {head.type}")

    # --- feeding -----------------------------------------------------------------------------------

    def partition_changed(self, partition: Partition) -> None:
        """Leadership or replicas changed: feed exactly the followers that there are now."""
        if not partition.is_leader:
            partition.followers.clear()
            return
        wanted = {replica for replica in partition.replicas if replica != self._node_id}
        before = sorted(partition.followers) or None
        for gone in set(partition.followers) - wanted:
            del partition.followers[gone]
        added = False
        for peer in sorted(wanted - set(partition.followers)):
            added = True
            progress = FollowerProgress(peer, partition.log_end_offset, self._loop.time())
            partition.followers[peer] = progress
            self._open(partition, progress)
        if added:
            log.info("Updated followers for %s: %s (was: %s)", partition.tp, sorted(wanted), before)

    def appended(self, partition: Partition) -> None:
        """New batches, or a new start: tell the followers at the end of this turn."""
        if partition.followers:
            self._dirty[partition] = None
            if not self._feed_scheduled:
                self._feed_scheduled = True
                self._loop.call_soon(self._feed_all)

    def watermark_moved(self, partition: Partition) -> None:
        if self.propagation.is_due:
            sample = self.propagation.begin()
            for peer, progress in partition.followers.items():
                if peer in partition.isr and progress.state is FollowerState.FED and not progress.sample:
                    progress.sample = sample
        self._untold[partition] = None
        if self._tell_timer is None:
            self._tell_timer = self._loop.call_later(WATERMARK_SECONDS, self._tell_watermarks)

    def _tell_watermarks(self) -> None:
        self._tell_timer = None
        untold, self._untold = self._untold, {}
        for partition in untold:
            for progress in partition.followers.values():
                link = self._links.get(progress.peer)
                if link is not None and progress.state is FollowerState.FED:
                    self._tell(link, partition, progress)

    def _feed_all(self) -> None:
        self._feed_scheduled = False
        dirty, self._dirty = self._dirty, {}
        for partition in dirty:
            for progress in partition.followers.values():
                self._feed(partition, progress)

    def _feed(self, partition: Partition, progress: FollowerProgress) -> None:
        link = self._links.get(progress.peer)
        if link is None or progress.state is not FollowerState.FED or progress.is_reading:
            return
        while link.writable and progress.in_flight_bytes < WINDOW_BYTES:
            if progress.next_offset >= partition.log.log_end_offset:
                break
            try:
                run = reading.read_run_now(partition.log, progress.next_offset, CHUNK_BYTES)
            except RequestError as error:
                self._begin_anew(partition, progress, error)
                return
            if run is None:
                progress.is_reading = True
                self._spawn(self._feed_from_disk(partition, progress, partition.leader_epoch))
                return
            if not run.size_bytes:
                break
            self._send_run(link, partition, progress, run)
        if progress.told_start < partition.log_start_offset:
            self._send_watermark(link, partition, progress)

    def _tell(self, link: Link, partition: Partition, progress: FollowerProgress) -> None:
        if progress.told_watermark < partition.high_watermark or progress.sample:
            self._send_watermark(link, partition, progress)

    async def _feed_from_disk(self, partition: Partition, progress: FollowerProgress, epoch: int) -> None:
        try:
            run = await reading.read_run(partition.log, progress.next_offset, CHUNK_BYTES)
        except RequestError as error:
            if partition.leader_epoch == epoch and partition.followers.get(progress.peer) is progress:
                self._begin_anew(partition, progress, error)
            return
        finally:
            progress.is_reading = False
        link = self._links.get(progress.peer)
        if (
            link is not None
            and partition.leader_epoch == epoch
            and partition.followers.get(progress.peer) is progress
            and progress.state is FollowerState.FED
        ):
            if run.size_bytes:
                self._send_run(link, partition, progress, run)
            self.appended(partition)

    def _send_run(self, link: Link, partition: Partition, progress: FollowerProgress, run: BatchRun) -> None:
        watermark, start = partition.high_watermark, partition.log_start_offset
        data = frames.Data(progress.next_offset, watermark, start)
        link.send(self._head(FrameType.DATA, partition) + frames.encode_data(data), run.buffers)
        progress.sent(run.next_offset, run.size_bytes)
        progress.told(watermark, start)

    def _send_watermark(self, link: Link, partition: Partition, progress: FollowerProgress) -> None:
        bounds = frames.Bounds(partition.high_watermark, partition.log_start_offset)
        progress.told(*bounds)
        sample, progress.sample = progress.sample, 0
        link.send(self._head(FrameType.WATERMARK, partition) + frames.encode_bounds(bounds, sample))

    def _head(self, type_: FrameType, partition: Partition) -> bytes:
        return frames.head(
            type_, partition.log.topic_id_bytes, partition.tp.partition, partition.leader_epoch
        )

    # --- the handshake -------------------------------------------------------------------------------

    def _open(self, partition: Partition, progress: FollowerProgress) -> None:
        link = self._links.get(progress.peer)
        if link is not None and partition.is_leader:
            progress.asked()
            opening = frames.encode_opening(partition.partition_epoch)
            link.send(self._head(FrameType.OPEN, partition) + opening)

    def _begin_anew(self, partition: Partition, progress: FollowerProgress, why: object) -> None:
        """What the follower needs next cannot be told from here, or not any more: ask where it stands."""
        log.debug("%s: begins anew with node %d: %s", partition.tp, progress.peer, why)
        progress.lost()
        if not progress.is_reopening:
            progress.is_reopening = True
            self._loop.call_later(REOPEN_SECONDS, self._reopen, partition, progress)

    def _reopen(self, partition: Partition, progress: FollowerProgress) -> None:
        progress.is_reopening = False
        if partition.followers.get(progress.peer) is progress and progress.state is FollowerState.IDLE:
            self._open(partition, progress)

    def _start(
        self,
        link: Link,
        partition: Partition,
        progress: FollowerProgress,
        position: frames.LogPosition,
    ) -> None:
        if progress.state is not FollowerState.ASKED:
            return
        own = frames.LogPosition(
            partition.log_start_offset, partition.log_end_offset, list(partition.log.epochs.entries)
        )
        start = where_to_start(own, position)
        if start.is_reset and start.offset < partition.log_end_offset:
            self._spawn(self._start_at_batch(link, partition, progress, start.offset, partition.leader_epoch))
        else:
            self._start_from(link, partition, progress, start)

    async def _start_at_batch(
        self, link: Link, partition: Partition, progress: FollowerProgress, offset: int, epoch: int
    ) -> None:
        """The log may start inside a batch, and only whole batches are sent: begin where that one does."""
        run = await reading.read_run(partition.log, offset, 1)
        first = min(
            (header.base_offset for buffer in run.buffers for _, header in headers(buffer)), default=offset
        )
        if (
            progress.state is FollowerState.ASKED
            and self._links.get(progress.peer) is link
            and partition.leader_epoch == epoch
            and partition.followers.get(progress.peer) is progress
        ):
            self._start_from(link, partition, progress, frames.Start(min(first, offset), True))

    def _start_from(
        self, link: Link, partition: Partition, progress: FollowerProgress, start: frames.Start
    ) -> None:
        progress.fed_from(start.offset)
        link.send(self._head(FrameType.START, partition) + frames.encode_start(start))
        self._feed(partition, progress)

    # --- acknowledgements and the ISR ------------------------------------------------------------------

    def _acked(self, partition: Partition, progress: FollowerProgress, has: frames.Bounds) -> None:
        if progress.state is not FollowerState.FED:
            return
        progress.acked(has.end_offset, partition.log_end_offset, self._loop.time())
        partition.update_watermark()
        if has.log_start_offset != progress.log_start_offset:
            progress.log_start_offset = has.log_start_offset
            partition.check_low_watermark()
        if progress.next_offset < partition.log.log_end_offset:
            self.appended(partition)
        if progress.peer not in partition.isr:
            self._maybe_expand(partition, progress)

    def _maybe_expand(self, partition: Partition, progress: FollowerProgress) -> None:
        """Into the ISR: it has everything that was committed, and something of this epoch's beginning.

        It need not have everything the leader has, or it would never get in while clients keep writing.
        """
        peer = progress.peer
        if (
            partition.pending_isr is None
            and progress.acked_end >= max(partition.high_watermark, partition.leader_epoch_start_offset)
            and self._is_alive(peer)
        ):
            self._change_isr(partition, tuple(r for r in partition.replicas if r in (*partition.isr, peer)))

    def _change_isr(self, partition: Partition, isr: tuple[NodeId, ...]) -> None:
        partition.pending_isr = isr
        self._spawn(self._propose(partition, isr))

    async def _propose(self, partition: Partition, isr: tuple[NodeId, ...]) -> None:
        """Until it is settled the watermark counts both, the old ISR and the new: either may be in force.

        A change of the partition settles it too, since proposals are made against a partition epoch.
        """
        answer: bool | None = None
        try:
            while answer is None and partition.pending_isr is isr and partition.is_leader:
                answer = await self._propose_isr(partition, isr)
                if answer is None:
                    await asyncio.sleep(PROPOSE_AGAIN_SECONDS)
        finally:
            if partition.pending_isr is isr:
                partition.pending_isr = None
                partition.update_watermark()
        if answer:
            log.info("ISR of %s is %s", partition.tp, list(partition.isr))

    def ask_for_new_epoch(self, partition: Partition) -> None:
        """This node's disk refused an append that followers may have: begin a new epoch."""
        self._spawn(self._ask_for_new_epoch(partition, partition.leader_epoch))

    async def _ask_for_new_epoch(self, partition: Partition, epoch: int) -> None:
        while partition.leader_epoch == epoch:
            if await self._propose_isr(partition, None):
                return
            await asyncio.sleep(RETRY_SECONDS)

    def _check(self) -> None:
        """A quarter second's look at what events may have missed: lagging followers, lost openings."""
        self._checker = self._loop.call_later(CHECK_SECONDS, self._check)
        now = self._loop.time()
        for partition in self._partitions():
            if not partition.followers or not partition.is_leader:
                continue
            partition.check_low_watermark()
            lagging = []
            for peer, progress in partition.followers.items():
                if progress.state is FollowerState.IDLE:
                    self._open(partition, progress)
                lag = progress.lags_since(partition.log_end_offset, now)
                if peer in partition.isr and lag > self._lag_seconds_max:
                    lagging.append(peer)
                elif peer not in partition.isr and progress.state is FollowerState.FED:
                    self._maybe_expand(partition, progress)
            if lagging and partition.pending_isr is None:
                log.warning("%s: nodes %s lag and leave the ISR", partition.tp, lagging)
                self._change_isr(partition, tuple(r for r in partition.isr if r not in lagging))

    def _spawn(self, work: object) -> None:
        task: asyncio.Task[None] = self._loop.create_task(work)  # type: ignore[arg-type]
        self._tasks[task] = None
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("replication: %s", error)
