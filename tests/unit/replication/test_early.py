"""OPEN before its metadata (S13): it waits, is answered when the partition appears, is given back in time.

On a virtual clock.

Guards T02.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from chronik.links import frames
from chronik.links.frames import FrameType
from chronik.links.link import Link
from chronik.replication import follower
from chronik.replication.ack_sender import AckSender
from chronik.replication.follower import EARLY_POLL_SECONDS, EARLY_SECONDS_MAX, FollowerLinks
from chronik.replication.partition import Partition
from chronik.replication.partitions import Partitions
from chronik.sim.loop import SimLoop

LEADER = 2
TOPIC_ID = UUID(int=7).bytes
KEY = (TOPIC_ID, 0)


class Leader:
    """The far end of a link to a node that knows no partition yet."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.partitions = Partitions()
        self.side = FollowerLinks(
            partitions=self.partitions, acks=AckSender(), pressures=(), now_ms=lambda: 1
        )
        self.peer_id = LEADER
        self.outbox = self
        self.heard: list[tuple[FrameType, float]] = []
        self.side.on_open(cast(Link, self))

    def send(self, frame: bytes, body: object = ()) -> None:
        self.heard.append((FrameType(frames.read(memoryview(frame))[0].type), self.loop.time()))

    def open(self, partition: int = 0) -> float:
        """When it was asked."""
        head = frames.head(FrameType.OPEN, TOPIC_ID, partition, 1)
        self.side.on_frame(cast(Link, self), memoryview(head + frames.encode_opening(1)))
        return self.loop.time()

    def appear(self) -> Partition:
        """The partition, as its metadata makes it."""
        log = SimpleNamespace(
            topic_id_bytes=TOPIC_ID,
            log_start_offset=0,
            log_end_offset=0,
            epochs=SimpleNamespace(entries=()),
        )
        made = SimpleNamespace(
            tp=SimpleNamespace(partition=0),
            log=log,
            leader_id=LEADER,
            leader_epoch=1,
            partition_epoch=1,
            stop_following=lambda *_: None,
        )
        self.partitions.by_id[KEY] = cast(Partition, made)
        return cast(Partition, made)


def in_virtual_time(main: Callable[[Leader], Awaitable[Any]]) -> None:
    async def run() -> None:
        leader = Leader()
        await main(leader)
        await leader.side.stop()

    SimLoop(random.Random(1)).run(run(), seconds_max=100, steps_max=100_000)


def test_what_nobody_explains_is_given_back_after_ten_seconds_and_not_before() -> None:
    async def main(leader: Leader) -> None:
        asked = leader.open()
        await asyncio.sleep(3 * EARLY_SECONDS_MAX)
        [(answer, at)] = leader.heard
        assert answer is FrameType.REFUSE, "the leader asks again"
        assert EARLY_SECONDS_MAX == 10.0
        assert EARLY_SECONDS_MAX <= at - asked <= EARLY_SECONDS_MAX + 2 * EARLY_POLL_SECONDS
        # Asked again, it waits again.
        leader.open()
        await asyncio.sleep(EARLY_SECONDS_MAX / 2)
        leader.side.partition_assigned(leader.appear())
        assert [answer for answer, _ in leader.heard[1:]] == [FrameType.STATE]

    in_virtual_time(main)


def test_it_is_answered_in_the_turn_in_which_its_metadata_arrives() -> None:
    async def main(leader: Leader) -> None:
        leader.open()
        await asyncio.sleep(1.01)
        assert leader.heard == []
        leader.side.partition_assigned(leader.appear())
        assert [answer for answer, _ in leader.heard] == [FrameType.STATE], "without waiting for the poll"
        await asyncio.sleep(2 * EARLY_SECONDS_MAX)
        assert len(leader.heard) == 1

    in_virtual_time(main)


@pytest.mark.parametrize("after_s", [0.05, 3.33, 9.5])
def test_the_poll_finds_what_no_event_told_of(after_s: float) -> None:
    async def main(leader: Leader) -> None:
        leader.open()
        await asyncio.sleep(after_s)
        leader.appear()
        appeared = leader.loop.time()
        await asyncio.sleep(1)
        [(answer, at)] = leader.heard
        assert answer is FrameType.STATE
        assert at - appeared <= 0.101

    in_virtual_time(main)


def test_as_many_wait_as_may_and_one_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a leader could make a follower keep any number of them."""
    monkeypatch.setattr(follower, "EARLY_COUNT_MAX", 2)

    async def main(leader: Leader) -> None:
        for partition in (1, 2):
            leader.open(partition)
        assert leader.heard == []
        for partition in (3, 4):
            asked = leader.open(partition)
            assert leader.heard.pop() == (FrameType.REFUSE, asked), "the leader asks again later"
            assert {number for _, number in leader.side._early} == {1, 2}
            assert (leader.heard, leader.side.early_count) == ([], 2)
        await asyncio.sleep(2 * EARLY_SECONDS_MAX)
        assert len(leader.heard) == 2
        leader.open(3)
        assert len(leader.heard) == 2, "there is room again"

    in_virtual_time(main)
