"""What followers tell the leader: where their logs stand, what is on their disks.

Handler of the data links that this node dials. It reports progress to the partition and tells the feed where
to go on; what is sent, and when, is the feed's business.
"""

from __future__ import annotations

import asyncio

from chronik.links import frames
from chronik.links.frames import FrameType, LogBounds
from chronik.links.link import Link
from chronik.model import PeerError, RequestError
from chronik.records.batch import headers
from chronik.replication.cursor import CursorState
from chronik.replication.feed import FollowerCursor, FollowerFeed
from chronik.replication.partitions import Partitions
from chronik.replication.truncation_point import where_to_start
from chronik.storage import reading
from chronik.tasks import Tasks


class FollowerReports:
    def __init__(self, *, partitions: Partitions, feed: FollowerFeed) -> None:
        self._by_id = partitions.by_id
        self._feed = feed
        self._streams = feed.streams
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks("replication")

    async def stop(self) -> None:
        await self._tasks.close()

    def on_open(self, link: Link) -> None:
        self._feed.connected(link)

    def on_closed(self, link: Link) -> None:
        self._feed.disconnected(link)

    def on_writable(self, link: Link) -> None:
        self._feed.writable(link)

    def on_frame(self, link: Link, frame: memoryview) -> None:
        head, body = frames.read(frame)
        peer = link.peer_id
        partition = self._by_id.get((head.topic_id, head.partition))
        stream = self._streams.get(peer)
        if partition is None or stream is None:
            return
        cursor = stream.cursors.get(partition)
        if cursor is None or head.leader_epoch != cursor.leader_epoch:
            return  # an answer to a frame of another leader epoch
        match head.type:
            case FrameType.ACK if isinstance(body, LogBounds):
                if cursor.state is CursorState.FEEDING:
                    end_offset, log_start_offset = body
                    cursor.acknowledged(end_offset)
                    partition.follower_acknowledged(peer, end_offset, log_start_offset, self._loop.time())
                    if cursor.next_offset < partition.log.log_end_offset:
                        self._feed.appended(partition)
                if len(frame) > frames.BOUNDS_BYTES:
                    self._feed.propagation.arrived(peer, frames.decode_sample(frame))
            case FrameType.STATE:
                if cursor.state is CursorState.ASKED:
                    self._start(link, cursor, frames.decode_position(frame))
            case FrameType.REFUSE:
                if cursor.state is not CursorState.IDLE:
                    self._feed.reset(cursor, "it refused what it was sent")
            case _:
                raise PeerError(f"a follower does not send frames of type {head.type}")

    # --- the handshake -------------------------------------------------------------------------------

    def _start(self, link: Link, cursor: FollowerCursor, position: frames.LogPosition) -> None:
        log_ = cursor.partition.log
        own = frames.LogPosition(log_.log_start_offset, log_.log_end_offset, list(log_.epochs.entries))
        start = where_to_start(own, position)
        if start.is_reset and start.offset < log_.log_end_offset:
            starting = self._start_at_batch(link, cursor, start.offset)
            about = f"reading the start of {cursor.partition.tp} for node {cursor.peer}"
            self._tasks.spawn(starting, about)
        else:
            self._start_from(cursor, start)

    async def _start_at_batch(self, link: Link, cursor: FollowerCursor, offset: int) -> None:
        """The log start may lie inside a batch. Only whole batches are sent, so start at its base offset."""
        try:
            run = await reading.read_run(cursor.partition.log, offset, 1)
        except RequestError as error:
            if cursor.state is CursorState.ASKED:
                self._feed.reset(cursor, error)
            return
        first = min(
            (header.base_offset for buffer in run.buffers for _, header in headers(buffer)), default=offset
        )
        if cursor.state is CursorState.ASKED and cursor.stream.link is link:
            self._start_from(cursor, frames.Start(min(first, offset), True))

    def _start_from(self, cursor: FollowerCursor, start: frames.Start) -> None:
        cursor.partition.follower_starts_at(cursor.peer, start.offset)
        self._feed.start(cursor, start)
