"""Which link a message takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from chronik.cluster.transport import METADATA, RAFT, ClusterTransport
from chronik.model import Unavailable
from chronik.raft.messages import AppendResponse

LEADER = 4


class FakeLink:
    writable = True
    is_open = True

    def __init__(self, purpose: str, *, is_dialed: bool) -> None:
        self.purpose = purpose
        self.is_dialed = is_dialed
        self.peer_id = LEADER
        self.sent: list[bytes] = []

    def send(self, head: bytes) -> None:
        self.sent.append(head)


def link(purpose: str, *, is_dialed: bool) -> Any:
    return cast(Any, FakeLink(purpose, is_dialed=is_dialed))


def run(check: Callable[[ClusterTransport], Any]) -> None:
    async def main() -> None:
        outcome = check(ClusterTransport(node_id=3, use_fast_path=True))
        if outcome is not None:
            await outcome

    asyncio.run(main())


def answer() -> AppendResponse:
    return AppendResponse(sender=3, to=LEADER, term=1, index=0)


def test_a_peer_that_cannot_be_dialed_is_answered_on_its_own_link() -> None:
    """It joined while this node was down: its address comes with the metadata that it waits to send."""

    def check(transport: ClusterTransport) -> None:
        dialed_by_peer = link(METADATA, is_dialed=False)
        transport.on_open(dialed_by_peer)
        transport.send(answer())
        assert len(dialed_by_peer.sent) == 1
        own = link(METADATA, is_dialed=True)
        transport.on_open(own)
        transport.send(answer())
        assert (len(dialed_by_peer.sent), len(own.sent)) == (1, 1)
        transport.on_closed(own)
        transport.send(answer())
        assert (len(dialed_by_peer.sent), len(own.sent)) == (2, 1)
        newer = link(METADATA, is_dialed=False)
        transport.on_open(newer)
        transport.on_closed(dialed_by_peer)
        transport.send(answer())
        assert len(newer.sent) == 1

    run(check)


def test_a_command_reaches_a_leader_that_cannot_be_dialed() -> None:
    async def forward(transport: ClusterTransport) -> None:
        dialed_by_peer = link(RAFT, is_dialed=False)
        transport.on_open(dialed_by_peer)
        forwarding = asyncio.ensure_future(transport.forward(LEADER, b"command"))
        await asyncio.sleep(0)
        assert dialed_by_peer.sent[0].endswith(b"command")
        transport.on_closed(dialed_by_peer)
        with pytest.raises(Unavailable):
            await forwarding

    run(forward)
