"""Comparing replicas: what differs is told, what only moves is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

import pytest

from chronik.model import ErrorCode, NodeId, RequestError, TopicPartition
from chronik.testing import replicas
from chronik.testing.replicas import ReplicaReader, ReplicasDiffer, ReplicaView

TP = TopicPartition("orders", 0)


class Reader:
    """A replica with three batches of one record, whose node refuses the first so many times."""

    def __init__(self, *digests: bytes, refusals: int = 0) -> None:
        self.digests = digests
        self.refusals = refusals

    async def view(self, _tp: TopicPartition) -> ReplicaView:
        return ReplicaView(log_start_offset=0, high_watermark=3, log_end_offset=3)

    async def batches(self, _tp: TopicPartition, start: int, end: int) -> list[replicas._Batch]:
        if self.refusals:
            self.refusals -= 1
            raise RequestError(ErrorCode.not_leader_or_follower, "leadership moves")
        return [replicas._Batch(at, at + 1, self.digests[at]) for at in range(start, end)]


def compared(*readers: Reader, seconds: float) -> None:
    async def run() -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        named = cast(Mapping[NodeId, ReplicaReader], dict(enumerate(readers, 1)))
        await replicas._compare_one(TP, named, deadline)

    asyncio.run(run())


def test_a_node_that_does_not_answer_for_a_moment_is_asked_again() -> None:
    slow = Reader(b"a", b"b", b"c", refusals=2)
    compared(Reader(b"a", b"b", b"c"), slow, seconds=60)
    assert slow.refusals == 0


def test_a_node_that_goes_on_refusing_is_told_of() -> None:
    with pytest.raises(RequestError, match="leadership moves"):
        compared(Reader(b"a", b"b", b"c", refusals=10), seconds=-1)


def test_other_bytes_are_told_at_once() -> None:
    with pytest.raises(ReplicasDiffer, match="nodes 1 and 2 hold different bytes from 1 on"):
        compared(Reader(b"a", b"b", b"c"), Reader(b"a", b"x", b"c"), seconds=60)
