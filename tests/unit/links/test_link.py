"""Links over a simulated network: what a peer's end looks like, in every way in which it may end."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from chronik.links.connections import (
    JITTER_SECONDS,
    LINKS_PER_PEER_MAX,
    RETRY_SECONDS,
    Acceptor,
    Dialer,
    is_refusal,
)
from chronik.links.handshake import LinkIdentity, NodeKey
from chronik.links.link import SILENCE_SECONDS_MAX, Link
from chronik.open_files import FileBudget
from chronik.sim.loop import SimLoop
from chronik.sim.network import SimNetwork
from chronik.sim.process import Process


class Recorder:
    def __init__(self) -> None:
        self.opened: list[Link] = []
        self.closed: list[Link] = []
        self.frames: list[bytes] = []

    def on_open(self, link: Link) -> None:
        self.opened.append(link)

    def on_closed(self, link: Link) -> None:
        self.closed.append(link)

    def on_frame(self, link: Link, frame: memoryview) -> None:
        self.frames.append(bytes(frame))

    def on_writable(self, link: Link) -> None:
        pass


class Pair:
    """Node 1 dials node 2."""

    def __init__(self) -> None:
        self.loop = SimLoop(random.Random(1))
        self.network = SimNetwork(self.loop, random.Random(1))
        self.near, self.far = Recorder(), Recorder()
        self.host = Process("two", "2")
        self.refused: list[tuple[int, float]] = []

    def identity(self, node_id: int) -> LinkIdentity:
        return LinkIdentity(
            node_id, (b"secret",), random.Random(node_id).randbytes, NodeKey(bytes([node_id]) * 32)
        )

    async def listen(self) -> None:
        await Acceptor(self.identity(2), {"data": self.far}).start("2", 9291)

    def run(self, main) -> None:
        async def both() -> None:
            await self.loop.spawn(self.host, self.listen())
            dialer = Dialer(
                identity=self.identity(1),
                peer_id=2,
                address=("2", 9291),
                purpose="data",
                handler=self.near,
                jitter=random.Random(1).random,
                on_refused=lambda peer, dialed_at: self.refused.append((peer, dialed_at)),
            )
            dialer.start()
            self.dialer = dialer
            await asyncio.sleep(1)
            await main()
            await dialer.stop()

        self.loop.run(both(), seconds_max=200, steps_max=1_000_000)

    def lose_power(self) -> None:
        self.die(power_lost=True)

    def die(self, *, power_lost: bool) -> None:
        self.network.process_died(self.host, power_lost=power_lost)
        self.loop.kill(self.host)

    def restart(self) -> None:
        self.host = Process("two again", "2")
        self.network.power_on("2")
        self.loop.spawn(self.host, self.listen())


def test_an_idle_link_stays_open_and_hands_on_no_sign_of_life() -> None:
    pair = Pair()

    async def main() -> None:
        await asyncio.sleep(60)
        pair.near.opened[0].outbox.send(b"hello")
        await asyncio.sleep(1)

    pair.run(main)
    assert len(pair.near.opened) == len(pair.far.opened) == 1
    assert pair.near.frames == []
    assert pair.far.frames == [b"hello"]


def test_a_link_that_is_not_read_from_is_not_taken_for_silent() -> None:
    pair = Pair()

    async def main() -> None:
        far = pair.far.opened[0]
        far.pause_reading()
        pair.near.opened[0].outbox.send(b"hello")
        await asyncio.sleep(4 * SILENCE_SECONDS_MAX)
        assert pair.far.frames == []
        far.resume_reading()
        await asyncio.sleep(1)
        assert pair.far.frames == [b"hello"]
        await asyncio.sleep(SILENCE_SECONDS_MAX)

    pair.run(main)
    assert len(pair.near.opened) == len(pair.far.opened) == 1


def test_a_peer_that_lost_power_and_came_back_is_found_although_nobody_has_anything_to_say() -> None:
    pair = Pair()

    async def main() -> None:
        pair.lose_power()
        await asyncio.sleep(0.05)
        pair.restart()
        await asyncio.sleep(5)

    pair.run(main)
    assert len(pair.near.opened) == 2
    assert pair.near.opened[1].is_open or pair.near.closed[1:] == [pair.near.opened[1]]


def test_a_host_without_the_process_refuses_and_one_without_power_does_not() -> None:
    for power_lost in (False, True):
        pair = Pair()

        async def main(pair: Pair = pair, power_lost: bool = power_lost) -> None:
            died = pair.loop.time()
            pair.die(power_lost=power_lost)
            await asyncio.sleep(10)
            assert all(peer == 2 and dialed_at > died for peer, dialed_at in pair.refused)

        pair.run(main)
        assert bool(pair.refused) is not power_lost
        assert len(pair.near.opened) == 1


def test_a_dialer_in_a_hurry_does_not_wait() -> None:
    pair = Pair()

    async def main() -> None:
        pair.die(power_lost=False)
        await asyncio.sleep(20)
        before = len(pair.refused)
        pair.dialer.hurry()
        await asyncio.sleep(0.06)
        assert len(pair.refused) == before + 1
        pair.dialer.hurry()
        await asyncio.sleep(0.06)
        assert len(pair.refused) == before + 2

    pair.run(main)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (ConnectionRefusedError(111, "Connect call failed"), True),
        (
            OSError(
                "Multiple exceptions: [Errno 111] failed ('::1', 1), [Errno 111] failed ('127.0.0.1', 1)"
            ),
            True,
        ),
        (
            OSError(
                "Multiple exceptions: [Errno 111] failed ('::1', 1), [Errno 110] failed ('127.0.0.1', 1)"
            ),
            False,
        ),
        (TimeoutError(), False),
        (ConnectionResetError(104, "reset"), False),
        (OSError(113, "No route to host"), False),
    ],
)
def test_what_counts_as_a_refusal(failure: OSError, expected: bool) -> None:
    assert is_refusal(failure) is expected


def test_a_silent_peer_is_given_up() -> None:
    pair = Pair()

    async def main() -> None:
        pair.network.block("2", "world")
        await asyncio.sleep(SILENCE_SECONDS_MAX + 2)
        assert pair.near.closed == pair.near.opened[:1]

    pair.run(main)


def test_a_peer_has_only_so_many_links_open() -> None:
    """Who knows the secret, or needs none, could open them until there are no descriptors left."""
    pair = Pair()

    async def main() -> None:
        acceptor = Acceptor(pair.identity(3), {"data": pair.far})
        links = []
        for _ in range(20):
            links.append(acceptor._accept())
            links[-1].opened, links[-1].peer_id, links[-1].purpose = True, 2, "data"
        other = acceptor._accept()
        other.opened, other.peer_id, other.purpose = True, 2, "metadata"
        acceptor._accept()
        assert list(acceptor._links)[:-2] == links[-LINKS_PER_PEER_MAX:]
        assert other in acceptor._links
        assert acceptor.refused == 16

    pair.run(main)


def test_all_peers_together_have_only_so_many_links_open() -> None:
    """Where nodes have no secret, anybody can say that he is node 1 to 100,000."""
    pair = Pair()

    async def main() -> None:
        acceptor = Acceptor(pair.identity(3), {"data": pair.far})
        most = 2 * FileBudget.of_process().strangers
        for number in range(most + 10):
            link = acceptor._accept()
            link.opened, link.peer_id, link.purpose = True, number, "data"
        acceptor._accept()
        assert sum(link.opened for link in acceptor._links) < most + 1

    pair.run(main)


def test_the_address_of_a_node_is_known_from_its_proof_to_the_end_of_its_link() -> None:
    pair = Pair()

    async def main() -> None:
        acceptor = Acceptor(pair.identity(3), {"data": pair.far})
        link = acceptor._accept()
        link.peer_host = "192.0.2.7"
        assert not acceptor.has_peer_at("192.0.2.7"), "a stranger so far"
        link.opened = True
        assert acceptor.has_peer_at("192.0.2.7")
        assert not acceptor.has_peer_at("192.0.2.8")
        link.connection_lost(None)
        await asyncio.sleep(0)
        assert not acceptor.has_peer_at("192.0.2.7")

    pair.run(main)


def test_strangers_do_not_keep_a_node_out() -> None:
    """Only so many connections stay open before a proof; the oldest goes, and an honest peer gets in."""
    pair = Pair()

    async def main() -> None:
        acceptor = Acceptor(pair.identity(3), {"data": pair.far})
        most = FileBudget.of_process().strangers
        links = [acceptor._accept() for _ in range(most + 5)]
        assert acceptor.refused == 5
        assert list(acceptor._links) == links[5:]
        links[10].opened = True
        for _ in range(most):
            acceptor._accept()
        assert links[10] in acceptor._links

    pair.run(main)


def test_a_peer_that_refuses_is_tried_at_once_and_then_every_second_with_jitter() -> None:
    """T03: nodes start in any order, and one that was refused must not sit out half a minute."""
    pair = Pair()
    died = back = 0.0

    async def main() -> None:
        nonlocal died, back
        died = pair.loop.time()
        pair.die(power_lost=False)
        await asyncio.sleep(60)
        back = pair.loop.time()
        pair.restart()
        await asyncio.sleep(RETRY_SECONDS + 2 * JITTER_SECONDS)
        assert pair.near.opened[-1].is_open

    pair.run(main)
    times = [at for _, at in pair.refused]
    assert times[0] - died < 0.5, "at once"
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert sum(gaps[:4]) < 3, "soon again"
    steady = gaps[4:]
    assert len(steady) > 40
    assert all(RETRY_SECONDS <= gap <= RETRY_SECONDS + JITTER_SECONDS + 0.1 for gap in steady)
    assert len({round(gap, 2) for gap in steady}) > 5, "peers of one dead node must not dial together"


def test_a_node_that_starts_before_its_peer_dials_at_once() -> None:
    """T03, on the way up: the first attempt does not wait for anything."""
    loop = SimLoop(random.Random(1))
    SimNetwork(loop, random.Random(1))
    refused: list[float] = []

    async def main() -> None:
        identity = LinkIdentity(1, (b"secret",), random.Random(1).randbytes, NodeKey(b"1" * 32))
        dialer = Dialer(
            identity=identity,
            peer_id=2,
            address=("2", 9291),
            purpose="data",
            handler=Recorder(),
            jitter=random.Random(1).random,
            on_refused=lambda _peer, dialed_at: refused.append(dialed_at),
        )
        began = loop.time()
        dialer.start()
        await asyncio.sleep(3)
        assert refused[0] - began < 0.001
        assert len(refused) >= 4
        await dialer.stop()

    loop.run(main(), seconds_max=20, steps_max=100_000)
