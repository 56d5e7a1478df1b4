"""Which link a message takes (S18)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, cast

import pytest

from chronik.cluster.transport import FORWARDING_BYTES_MAX, METADATA, RAFT, ClusterTransport
from chronik.model import Unavailable
from chronik.raft import Entry, EntryKind
from chronik.raft.messages import AppendEntries, AppendResponse

LEADER = 4


class FakeLink:
    is_writable = True
    is_open = True

    def __init__(self, purpose: str, *, is_dialed: bool) -> None:
        self.purpose = purpose
        self.is_dialed = is_dialed
        self.peer_id = LEADER
        self.outbox = self
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


def test_what_went_over_which_port_is_counted() -> None:
    """S19: with and without the fast path, by what was sent and not by the setting."""

    async def main(use_fast_path: bool) -> dict[str, tuple[int, int, int]]:
        transport = ClusterTransport(node_id=3, use_fast_path=use_fast_path)
        links = {purpose: link(purpose, is_dialed=True) for purpose in (METADATA, RAFT)}
        for each in links.values():
            transport.connected(each)
        entries = tuple(Entry(term=1, index=index, kind=EntryKind.COMMAND, data=b"x") for index in (1, 2))
        transport.send(
            AppendEntries(sender=3, to=LEADER, term=1, prev_index=0, prev_term=0, commit=0, entries=entries)
        )
        transport.send(answer())
        transport.tick()
        sizes = {purpose: sum(map(len, each.sent)) for purpose, each in links.items()}
        assert sizes == {purpose: one.bytes for purpose, one in transport.carried.items()}
        return {
            purpose: (one.messages, one.entries, bool(one.bytes))
            for purpose, one in transport.carried.items()
        }

    assert asyncio.run(main(True)) == {METADATA: (2, 2, True), RAFT: (0, 0, False)}
    assert asyncio.run(main(False)) == {METADATA: (0, 0, False), RAFT: (2, 2, True)}


def answer() -> AppendResponse:
    return AppendResponse(sender=3, to=LEADER, term=1, index=0)


def test_a_peer_that_cannot_be_dialed_is_answered_on_its_own_link() -> None:
    """It joined while this node was down: its address comes with the metadata that it waits to send."""

    def check(transport: ClusterTransport) -> None:
        dialed_by_peer = link(METADATA, is_dialed=False)
        transport.connected(dialed_by_peer)
        transport.send(answer())
        assert len(dialed_by_peer.sent) == 1
        own = link(METADATA, is_dialed=True)
        transport.connected(own)
        transport.send(answer())
        assert (len(dialed_by_peer.sent), len(own.sent)) == (1, 1)
        transport.disconnected(own)
        transport.send(answer())
        assert (len(dialed_by_peer.sent), len(own.sent)) == (2, 1)
        newer = link(METADATA, is_dialed=False)
        transport.connected(newer)
        transport.disconnected(dialed_by_peer)
        transport.send(answer())
        assert len(newer.sent) == 1

    run(check)


def test_a_command_reaches_a_leader_that_cannot_be_dialed() -> None:
    async def forward(transport: ClusterTransport) -> None:
        dialed_by_peer = link(RAFT, is_dialed=False)
        transport.connected(dialed_by_peer)
        forwarding = asyncio.ensure_future(transport.forward(LEADER, b"command"))
        await asyncio.sleep(0)
        assert dialed_by_peer.sent[0].endswith(b"command")
        transport.disconnected(dialed_by_peer)
        with pytest.raises(Unavailable):
            await forwarding

    run(forward)


def test_commands_wait_while_the_leader_does_not_read_or_has_not_answered_enough() -> None:
    """S04: nothing is queued without bounds, nothing is refused, and nobody overtakes."""

    async def forward(transport: ClusterTransport) -> None:
        to_leader = link(METADATA, is_dialed=True)
        transport.connected(to_leader)
        to_leader.is_writable = False
        half = bytes(FORWARDING_BYTES_MAX // 2)
        forwarding = [asyncio.ensure_future(transport.forward(LEADER, half + b"%d" % n)) for n in range(3)]
        await asyncio.sleep(0.01)
        assert to_leader.sent == []
        to_leader.is_writable = True
        transport.waiting.changed()
        await asyncio.sleep(0.01)
        assert [frame[-1:] for frame in to_leader.sent] == [b"0"], "more is under way than may be"
        transport.forwarded(to_leader, 1, 7, 0, "")
        assert await forwarding[0] == 7
        await asyncio.sleep(0.01)
        assert [frame[-1:] for frame in to_leader.sent] == [b"0", b"1"]
        transport.disconnected(to_leader)
        for one in forwarding[1:]:
            with pytest.raises(Unavailable):
                await one
        assert transport.waiting.waits == 3

    run(forward)


def test_the_log_says_how_long_a_command_took_and_why_appends_go_by_ticks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Words that the operations page has operators search for."""
    caplog.set_level("DEBUG", "chronik.raft.transport")

    async def forward(transport: ClusterTransport) -> None:
        to_leader = link(RAFT, is_dialed=True)
        transport.connected(to_leader)
        forwarding = asyncio.ensure_future(transport.forward(LEADER, b"command"))
        await asyncio.sleep(0)
        transport.forwarded(to_leader, 1, 7, 0, "")
        await forwarding
        transport.send(answer())

    run(forward)
    taken, fallback = (record.getMessage() for record in caplog.records)
    assert re.fullmatch(r"Raft RPC took \d+\.\d ms \(node 4\)", taken)
    assert fallback == "Raft fallback: metadata for node 4 goes by ticks on the Raft port (no stream)"


@pytest.mark.parametrize("is_status", [False, True])
async def test_only_the_node_that_was_asked_answers(is_status: bool) -> None:
    """The numbers of questions can be guessed: another node must not answer in its place."""

    transport = ClusterTransport(node_id=3, use_fast_path=True)
    asked, other = link(METADATA, is_dialed=True), link(METADATA, is_dialed=False)
    other.peer_id = 99
    transport.connected(asked)
    transport.connected(other)
    waiting: asyncio.Task[Any] = asyncio.ensure_future(
        transport.ask_status(LEADER) if is_status else transport.forward(LEADER, b"x")
    )
    await asyncio.sleep(0)
    if is_status:
        transport.answered(other, 1, b"forged")
        transport.answered(asked, 1, b"true")
    else:
        transport.forwarded(other, 1, 66, 0, "")
        transport.forwarded(asked, 1, 7, 0, "")
    assert await waiting == (b"true" if is_status else 7)
