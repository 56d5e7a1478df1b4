"""Carries a leader's batches to its followers: one stream per follower node, all partitions in it.

Catching up and live feed are the same code: a follower is fed from `next_offset` out of the log, which serves
recent batches from memory, as long as its window has room. An append marks the partition; what was appended
in one turn of the loop leaves in one frame per partition, read once for all followers that are at the same
offset. What followers answer goes to `leader`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from chronik.links import frames
from chronik.links.frames import FrameType
from chronik.links.link import Link
from chronik.model import NodeId, RequestError
from chronik.records.batch import Buffer
from chronik.replication.cursor import CursorState, FeedCursor
from chronik.replication.propagation import Propagation
from chronik.replication.replica import Replica
from chronik.storage import reading
from chronik.tasks import Tasks

log = logging.getLogger(__name__)

CHUNK_BYTES: Final = 1024 * 1024
WATERMARK_SECONDS: Final = 0.002
"""How long a new watermark waits, to be sent in a DATA frame instead of its own. No answer waits for it. On a
busy node it saves each follower a message and a wake-up per round of batches."""
REOPEN_SECONDS: Final = 0.05


class FollowerStream:
    """The link to one follower node, and a cursor for each partition that it follows here."""

    __slots__ = ("cursors", "link")

    def __init__(self) -> None:
        self.link: Link | None = None
        """None while the node is not connected."""
        self.cursors: dict[Replica, FollowerCursor] = {}


class FollowerCursor(FeedCursor):
    """A cursor with its place: which partition, in which leader epoch, for which node."""

    __slots__ = ("leader_epoch", "partition", "peer", "stream")

    def __init__(self, partition: Replica, peer: NodeId, stream: FollowerStream) -> None:
        super().__init__()
        self.partition = partition
        self.peer = peer
        self.stream = stream
        self.leader_epoch = partition.leader_epoch


class _Chunk(NamedTuple):
    """A DATA frame, shared by all followers that are at the same offset."""

    head: bytes
    buffers: list[Buffer]
    next_offset: int
    size_bytes: int


class FollowerFeed:
    """Sends the followers of every partition that this node leads what they lack."""

    def __init__(self, *, window_bytes: int, address_of: Callable[[NodeId], str]) -> None:
        """`window_bytes`: unacknowledged bytes per follower and partition; one chunk may exceed it.
        `address_of` is where a node listens, for people."""
        self._address_of = address_of
        self._window_bytes = window_bytes
        self._chunk_bytes = min(CHUNK_BYTES, window_bytes)
        self._loop = asyncio.get_running_loop()
        self.propagation = Propagation()
        self.streams: dict[NodeId, FollowerStream] = {}
        self._cursors: dict[Replica, dict[NodeId, FollowerCursor]] = {}
        self._dirty: dict[Replica, None] = {}
        self._feed_scheduled = False
        self._unsent_watermarks: dict[Replica, None] = {}
        """Partitions whose watermark moved and was not sent, neither with batches nor alone."""
        self._watermark_timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks("feed")

    async def stop(self) -> None:
        if self._watermark_timer is not None:
            self._watermark_timer.cancel()
        await self._tasks.close()

    # --- links and followers -------------------------------------------------------------------------

    def connected(self, link: Link) -> None:
        stream = self._stream(link.peer_id)
        stream.link = link
        for cursor in stream.cursors.values():
            self.open(cursor)

    def disconnected(self, link: Link) -> None:
        stream = self._stream(link.peer_id)
        if stream.link is link:
            stream.link = None
            for cursor in stream.cursors.values():
                cursor.reset()

    def writable(self, link: Link) -> None:
        for partition in self._stream(link.peer_id).cursors:
            self.appended(partition)

    def _stream(self, peer: NodeId) -> FollowerStream:
        found = self.streams.get(peer)
        if found is None:
            found = self.streams[peer] = FollowerStream()
        return found

    def is_feeding(self, partition: Replica, peer: NodeId) -> bool:
        cursor = self._cursors.get(partition, {}).get(peer)
        return cursor is not None and cursor.state is CursorState.FEEDING

    def followers_changed(self, partition: Replica) -> None:
        """Feed exactly the followers that there are now, from the start if the leader epoch is new."""
        cursors = self._cursors.setdefault(partition, {})
        before = sorted(cursors)
        is_new = False
        for peer, cursor in list(cursors.items()):
            if peer not in partition.followers or cursor.leader_epoch != partition.leader_epoch:
                cursor.end()
                del cursors[peer], cursor.stream.cursors[partition]
        for peer in partition.followers:
            if peer not in cursors:
                is_new = True
                stream = self._stream(peer)
                cursors[peer] = stream.cursors[partition] = FollowerCursor(partition, peer, stream)
                self.open(cursors[peer])
        if not cursors:
            del self._cursors[partition]
        if (is_new or sorted(cursors) != before) and log.isEnabledFor(logging.DEBUG):
            was = self._addresses(before) if before else None
            log.debug("Updated followers for %s: %s (was: %s)", partition.tp, self._addresses(cursors), was)

    def _addresses(self, peers: Iterable[NodeId]) -> str:
        return f"[{', '.join(map(self._address_of, sorted(peers)))}]"

    # --- batches -----------------------------------------------------------------------------------

    def appended(self, partition: Replica) -> None:
        """New batches, or a new start: send them at the end of this turn."""
        self._dirty[partition] = None
        if not self._feed_scheduled:
            self._feed_scheduled = True
            self._loop.call_soon(self._feed_all)

    def _feed_all(self) -> None:
        self._feed_scheduled = False
        dirty, self._dirty = self._dirty, {}
        for partition in dirty:
            chunks: dict[int, _Chunk] = {}
            for cursor in self._cursors.get(partition, {}).values():
                self.feed(cursor, chunks)

    def feed(self, cursor: FollowerCursor, chunks: dict[int, _Chunk]) -> None:
        """Send as much as there is, and as the window and the link allow.

        `chunks` are those read in this turn, by offset: followers that keep up get the same ones.
        """
        link = cursor.stream.link
        if link is None or cursor.state is not CursorState.FEEDING or cursor.is_reading:
            return
        partition = cursor.partition
        log_, outbox = partition.log, link.outbox
        while outbox.is_writable and cursor.in_flight_bytes < self._window_bytes:
            offset = cursor.next_offset
            if offset >= log_.log_end_offset:
                break
            chunk = chunks.get(offset)
            if chunk is None:
                try:
                    run = reading.read_run_now(log_, offset, self._chunk_bytes)
                except RequestError as error:
                    self.reset(cursor, error)
                    return
                if run is None:
                    cursor.is_reading = True
                    feeding = self._feed_from_disk(cursor)
                    self._tasks.spawn(feeding, f"reading {partition.tp} for node {cursor.peer}")
                    return
                if not run.size_bytes:
                    break
                chunk = chunks[offset] = _chunk(cursor, run)
            outbox.send(chunk.head, chunk.buffers)
            cursor.sent(chunk.next_offset, chunk.size_bytes, partition.high_watermark, log_.log_start_offset)
        if cursor.sent_log_start < log_.log_start_offset:
            self._send_watermark(link, cursor)

    async def _feed_from_disk(self, cursor: FollowerCursor) -> None:
        offset = cursor.next_offset
        try:
            run = await reading.read_run(cursor.partition.log, offset, self._chunk_bytes)
        except RequestError as error:
            if cursor.state is CursorState.FEEDING:
                self.reset(cursor, error)
            return
        finally:
            cursor.is_reading = False
        # The follower may have been reopened at another offset meanwhile; then drop what was read.
        if cursor.state is CursorState.FEEDING:
            is_next = cursor.next_offset == offset
            self.feed(cursor, {offset: _chunk(cursor, run)} if run.size_bytes and is_next else {})

    # --- watermarks --------------------------------------------------------------------------------

    def watermark_moved(self, partition: Replica) -> None:
        now = self._loop.time()
        if now >= self.propagation.next_at:
            sample = self.propagation.begin(now)
            for peer, cursor in self._cursors.get(partition, {}).items():
                if peer in partition.isr and cursor.state is CursorState.FEEDING and not cursor.sample:
                    cursor.sample = sample
        self._send_watermark_later(partition)

    def _send_watermark_later(self, partition: Replica) -> None:
        self._unsent_watermarks[partition] = None
        if self._watermark_timer is None:
            self._watermark_timer = self._loop.call_later(WATERMARK_SECONDS, self._send_watermarks)

    def check_watermark(self, partition: Replica) -> None:
        """Periodic check: send the watermark to each follower that was not sent the newest one (S25)."""
        for cursor in self._cursors.get(partition, {}).values():
            if cursor.state is CursorState.FEEDING and cursor.sent_watermark < partition.high_watermark:
                self._send_watermark_later(partition)

    def _send_watermarks(self) -> None:
        self._watermark_timer = None
        unsent, self._unsent_watermarks = self._unsent_watermarks, {}
        for partition in unsent:
            for cursor in self._cursors.get(partition, {}).values():
                link = cursor.stream.link
                if link is None or cursor.state is not CursorState.FEEDING:
                    continue
                if cursor.sent_watermark < partition.high_watermark or cursor.sample:
                    self._send_watermark(link, cursor)

    def _send_watermark(self, link: Link, cursor: FollowerCursor) -> None:
        partition = cursor.partition
        log_ = partition.log
        watermark, start = partition.high_watermark, log_.log_start_offset
        sample, cursor.sample = cursor.sample, 0
        cursor.sent_watermark, cursor.sent_log_start = watermark, start
        epoch = cursor.leader_epoch
        link.outbox.send(
            frames.bounds_frame(
                FrameType.WATERMARK,
                log_.topic_id_bytes,
                partition.tp.partition,
                epoch,
                watermark,
                start,
                sample,
            )
        )

    # --- the handshake -------------------------------------------------------------------------------

    def open(self, cursor: FollowerCursor) -> None:
        """Ask where the follower's log stands."""
        link = cursor.stream.link
        if link is not None and cursor.state is not CursorState.ENDED:
            cursor.asked()
            opening = frames.encode_opening(cursor.partition.partition_epoch)
            link.outbox.send(_head(FrameType.OPEN, cursor) + opening)

    def start(self, cursor: FollowerCursor, start: frames.Start) -> None:
        """The follower answered OPEN: send START with the offset that it is fed from, then batches."""
        link = cursor.stream.link
        if link is not None:
            cursor.start(start.offset)
            link.outbox.send(_head(FrameType.START, cursor) + frames.encode_start(start))
            self.feed(cursor, {})

    def reset(self, cursor: FollowerCursor, why: object) -> None:
        """The follower's position is unknown: send OPEN again after `REOPEN_SECONDS`."""
        log.debug("%s: sending OPEN to node %d again: %s", cursor.partition.tp, cursor.peer, why)
        cursor.reset()
        if not cursor.is_reopening:
            cursor.is_reopening = True
            self._loop.call_later(REOPEN_SECONDS, self._reopen, cursor)

    def _reopen(self, cursor: FollowerCursor) -> None:
        cursor.is_reopening = False
        if cursor.state is CursorState.IDLE:
            self.open(cursor)


def _head(type_: FrameType, cursor: FollowerCursor) -> bytes:
    partition = cursor.partition
    return frames.head(type_, partition.log.topic_id_bytes, partition.tp.partition, cursor.leader_epoch)


def _chunk(cursor: FollowerCursor, run: reading.BatchRun) -> _Chunk:
    partition = cursor.partition
    log_ = partition.log
    head = frames.data_frame(
        log_.topic_id_bytes,
        partition.tp.partition,
        cursor.leader_epoch,
        cursor.next_offset,
        partition.high_watermark,
        log_.log_start_offset,
    )
    return _Chunk(head, run.buffers, run.next_offset, run.size_bytes)
