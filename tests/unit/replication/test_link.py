"""Links over a simulated network: what a peer's end looks like, in every way in which it may end."""

from __future__ import annotations

import asyncio
import random

from chronik.replication.connections import Acceptor, Dialer
from chronik.replication.link import SILENCE_SECONDS_MAX, Link, LinkIdentity
from chronik.sim.loop import SimLoop
from chronik.sim.network import Network
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
        self.network = Network(self.loop, random.Random(1))
        self.near, self.far = Recorder(), Recorder()
        self.host = Process("two", "2")

    def identity(self, node_id: int) -> LinkIdentity:
        return LinkIdentity(node_id, b"secret", lambda: bytes(32))

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
            )
            dialer.start()
            await asyncio.sleep(1)
            await main()
            await dialer.stop()

        self.loop.run(both(), seconds_max=200, steps_max=1_000_000)

    def lose_power(self) -> None:
        self.network.process_died(self.host, power_lost=True)
        self.loop.kill(self.host)

    def restart(self) -> None:
        self.host = Process("two again", "2")
        self.network.power_on("2")
        self.loop.spawn(self.host, self.listen())


def test_an_idle_link_stays_open_and_hands_on_no_sign_of_life() -> None:
    pair = Pair()

    async def main() -> None:
        await asyncio.sleep(60)
        pair.near.opened[0].send(b"hello")
        await asyncio.sleep(1)

    pair.run(main)
    assert len(pair.near.opened) == len(pair.far.opened) == 1
    assert pair.near.frames == []
    assert pair.far.frames == [b"hello"]


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


def test_a_silent_peer_is_given_up() -> None:
    pair = Pair()

    async def main() -> None:
        pair.network.block("2", "world")
        await asyncio.sleep(SILENCE_SECONDS_MAX + 2)
        assert pair.near.closed == pair.near.opened[:1]

    pair.run(main)
