"""The driver on a disk that fails: nothing is applied twice, and the node comes back by itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest

from chronik.cluster.raft_driver import ELECTION_TICKS, TICK_SECONDS, RaftDriver
from chronik.cluster.raft_storage import RaftStorage
from chronik.metadata.store import CommittedCommand
from chronik.metrics import WriteStages
from chronik.model import METADATA_TOPIC, METADATA_TOPIC_ID, TopicPartition, Unavailable
from chronik.raft import Membership, decode, encode
from chronik.raft.messages import AppendEntries, Message
from chronik.sim.disk import DiskView, SimDisk
from chronik.sim.loop import SimLoop
from chronik.storage.log import LogConfig
from chronik.storage.recovery import open_store
from chronik.storage.store import StoreOptions

ROOT = Path("/data")


class Applied:
    def __init__(self) -> None:
        self.commands: list[tuple[int, bytes]] = []

    def on_committed(self, entries: Sequence[CommittedCommand]) -> None:
        self.commands += [(entry.index, bytes(entry.data)) for entry in entries]

    def on_applied(self, index: int) -> None:
        pass

    def on_quorum_changed(self) -> None: ...

    def snapshot(self) -> bytes:
        return b""

    def on_lost(self, why: str) -> None:
        pass

    def on_snapshot(self, data: bytes | memoryview) -> None:
        raise AssertionError("no snapshot was taken")


class NoPeers:
    def send(self, message: Message) -> None:
        pass

    def tick(self) -> None:
        pass

    async def forward(self, leader: int, data: bytes) -> int:
        raise Unavailable("nobody else")

    async def ask_around(self, data: bytes) -> int:
        raise Unavailable("nobody else")


async def proposed(driver: RaftDriver, data: bytes) -> None:
    """Propose until somebody takes it."""
    while True:
        try:
            await driver.append(data)
            return
        except Unavailable:
            await asyncio.sleep(0.1)


class Wires:
    """A network in which everything arrives, in order, in a later turn of the loop."""

    def __init__(self) -> None:
        self.ticks: list[float] = []
        """When nodes ticked."""
        self.nodes: dict[int, RaftDriver] = {}
        self.loses: Callable[[Message], bool] = lambda _message: False

    def send(self, message: Message) -> None:
        if self.loses(message):
            return
        asyncio.get_running_loop().call_later(0.001, self._deliver, decode(encode(message)))

    def _deliver(self, message: Message) -> None:
        self.nodes[message.to].step(message)

    def tick(self) -> None:
        self.ticks.append(asyncio.get_running_loop().time())

    async def forward(self, leader: int, data: bytes) -> int:
        return self.nodes[leader].propose(data)

    async def ask_around(self, data: bytes) -> int:
        raise Unavailable("nobody leads")


async def three(loop: SimLoop, stages: dict[int, WriteStages], applied: dict[int, Applied]) -> Wires:
    """Drivers of nodes 1 to 3, of which one leads and has heard from the others."""
    return await several((1, 2, 3), loop, stages, applied)


async def several(
    nodes: tuple[int, ...], loop: SimLoop, stages: dict[int, WriteStages], applied: dict[int, Applied]
) -> Wires:
    wires = Wires()
    for node_id in nodes:
        view = DiskView(SimDisk(random.Random(node_id)), loop.world, loop, lambda why: None)
        store, _ = open_store(view, ROOT, StoreOptions())
        log = store.open_log(TopicPartition(METADATA_TOPIC, 0), METADATA_TOPIC_ID, LogConfig())
        stages[node_id], applied[node_id] = WriteStages(), Applied()
        wires.nodes[node_id] = RaftDriver(
            node_id=node_id,
            voters=nodes,
            storage=RaftStorage(store, log, ROOT),
            transport=wires,
            rng=random.Random(node_id),
            stages=stages[node_id],
        )
    for node_id, driver in wires.nodes.items():
        driver.subscribe(applied[node_id])
        await driver.start()
    await asyncio.sleep(10)
    return wires


def test_the_leader_hears_when_its_followers_have_applied_an_entry() -> None:
    """S06: counted on the node that proposed it, once for each follower, and no sooner than it is applied."""
    loop = SimLoop(random.Random(1))
    stages: dict[int, WriteStages] = {}
    applied: dict[int, Applied] = {}

    async def main() -> None:
        wires = await three(loop, stages, applied)
        (leader,) = [node_id for node_id, driver in wires.nodes.items() if driver.is_leader]
        heard = stages.pop(leader).followers
        for number in range(1, 11):
            wires.nodes[leader].propose(b"%d" % number)
            while heard.count < 2 * number:
                done = sum(len(one.commands) for node_id, one in applied.items() if node_id != leader)
                assert heard.count <= done
                await asyncio.sleep(0.001)
        assert heard.count == 20
        for driver in wires.nodes.values():
            await driver.stop()

    loop.run(main(), seconds_max=100, steps_max=1_000_000)
    assert loop.failures == []
    assert [len(one.commands) for one in applied.values()] == [10, 10, 10]
    assert [found.count for others in stages.values() for found in others.by_name().values()] == [0] * 10


def test_a_tick_every_50_ms_or_more_often() -> None:
    """S16. Whatever is decided by counting ticks is late by up to one."""
    loop = SimLoop(random.Random(1))

    async def main() -> None:
        wires = await several((1,), loop, {}, {})
        began = loop.time()
        wires.ticks.clear()
        await asyncio.sleep(5)
        times = [began, *wires.ticks, loop.time()]
        assert max(later - earlier for earlier, later in pairwise(times)) <= 0.05
        await wires.nodes[1].stop()

    loop.run(main(), seconds_max=100, steps_max=1_000_000)
    assert loop.failures == []


def test_the_lease_of_a_leader_that_hears_nobody_ends() -> None:
    """It counts as the leader until its next look for a quorum; the others may have another one by then."""
    loop = SimLoop(random.Random(1))

    async def main() -> None:
        wires = await three(loop, {}, {})
        (leader,) = [node_id for node_id, driver in wires.nodes.items() if driver.is_leader]
        cut_off, others = wires.nodes[leader], [n for n in wires.nodes if n != leader]
        assert loop.time() - cut_off.lease.start < ELECTION_TICKS * TICK_SECONDS / 2
        survivor, silent = (wires.nodes[node_id] for node_id in others)
        await silent.stop()
        await asyncio.sleep(2)
        assert loop.time() - cut_off.lease.start < ELECTION_TICKS * TICK_SECONDS / 2, "a majority is there"
        await survivor.stop()
        last, stepped_down = loop.time(), False
        while loop.time() - last < 3 * ELECTION_TICKS * TICK_SECONDS:
            await asyncio.sleep(TICK_SECONDS)
            assert cut_off.lease.start <= last
            stepped_down = stepped_down or not cut_off.is_leader
        assert stepped_down
        assert not cut_off.leads_alone
        await cut_off.stop()

    loop.run(main(), seconds_max=100, steps_max=1_000_000)
    assert loop.failures == []


def test_messages_that_waited_while_a_node_was_stopped_renew_no_lease() -> None:
    """The others may have done without it for long: it must not lead partitions because of old messages."""
    loop = SimLoop(random.Random(1))
    waiting: list[Message] = []

    class Buffer:
        def step(self, message: Message) -> None:
            waiting.append(message)

    async def main() -> None:
        wires = await three(loop, {}, {})
        (leader,) = [node_id for node_id, driver in wires.nodes.items() if driver.is_leader]
        stopped = leader % 3 + 1
        driver = wires.nodes[stopped]
        wires.nodes[stopped] = cast(RaftDriver, Buffer())
        assert driver._timer is not None
        driver._timer.cancel()
        began = loop.time()
        await asyncio.sleep(0.9 * ELECTION_TICKS * TICK_SECONDS)
        assert waiting
        for message in waiting:
            driver.step(message)
        wires.nodes[stopped] = driver
        driver._tick()
        for message in waiting:
            driver.step(message)
        assert driver.lease.start <= began
        await asyncio.sleep(10)
        assert loop.time() - driver.lease.start < ELECTION_TICKS * TICK_SECONDS, "it goes on as usual"
        for each in wires.nodes.values():
            await each.stop()

    loop.run(main(), seconds_max=100, steps_max=1_000_000)
    assert loop.failures == []


def test_a_leader_without_a_majority_renews_nobodys_lease() -> None:
    """The others have a leader of their own, who counts on neither of the two any more."""
    loop = SimLoop(random.Random(1))

    async def main() -> None:
        wires = await several((1, 2, 3, 4, 5), loop, {}, {})
        (leader,) = [node_id for node_id, driver in wires.nodes.items() if driver.is_leader]
        minority = {leader, leader % 5 + 1}
        cut_at = loop.time()
        assert all(0.0 < cut_at - driver.lease.start < 0.3 for driver in wires.nodes.values())
        wires.loses = lambda message: (message.sender in minority) is not (message.to in minority)
        await asyncio.sleep(0.5)
        assert wires.nodes[leader].is_leader, "it does not know yet"
        assert all(wires.nodes[node_id].lease.start <= cut_at for node_id in minority)
        await asyncio.sleep(10)
        assert all(wires.nodes[node_id].lease.start <= cut_at for node_id in minority)
        others = [driver for node_id, driver in wires.nodes.items() if node_id not in minority]
        assert all(loop.time() - driver.lease.start < 0.3 for driver in others)
        for driver in wires.nodes.values():
            await driver.stop()

    loop.run(main(), seconds_max=100, steps_max=1_000_000)
    assert loop.failures == []


def test_a_follower_holds_no_lease_from_behind_what_it_has_yet_to_apply() -> None:
    """It may say that the cluster does not count on this node any more."""
    loop = SimLoop(random.Random(1))

    async def main() -> None:
        wires = await three(loop, {}, {})
        (leader,) = [node_id for node_id, driver in wires.nodes.items() if driver.is_leader]
        behind = leader % 3 + 1
        wires.loses = lambda message: isinstance(message, AppendEntries) and message.to == behind
        proposed_at = loop.time()
        wires.nodes[leader].propose(b"x")
        await asyncio.sleep(5)
        assert wires.nodes[behind].leader_id == leader, "heartbeats come through"
        assert wires.nodes[behind].lease.start <= proposed_at
        wires.loses = lambda _message: False
        await asyncio.sleep(1)
        assert loop.time() - wires.nodes[behind].lease.start < 0.3
        for driver in wires.nodes.values():
            await driver.stop()

    loop.run(main(), seconds_max=100, steps_max=1_000_000)
    assert loop.failures == []


def test_commands_wait_in_their_order_while_too_much_is_not_committed() -> None:
    """S04: the metadata log slows those who write to it down, and refuses nobody."""
    loop = SimLoop(random.Random(1))
    applied: dict[int, Applied] = {}

    async def main() -> None:
        wires = await three(loop, {}, applied)
        (leader,) = [driver for driver in wires.nodes.values() if driver.is_leader]
        object.__setattr__(leader._config, "max_uncommitted_bytes", 500)
        wires.loses = lambda message: isinstance(message, AppendEntries)
        appending = [asyncio.create_task(leader.append(bytes(300) + b"%d" % number)) for number in range(4)]
        await asyncio.sleep(2)
        assert [task.done() for task in appending] == [True, False, False, False]
        assert not leader.has_room(b""), "a command that is forwarded would overtake"
        wires.loses = lambda _message: False
        indexes = await asyncio.gather(*appending)
        assert indexes == sorted(indexes)
        await asyncio.sleep(1)
        assert leader.waits == 3
        for driver in wires.nodes.values():
            await driver.stop()

    loop.run(main(), seconds_max=100, steps_max=1_000_000)
    assert loop.failures == []
    for node in applied.values():
        assert [data[-1:] for _, data in node.commands] == [b"0", b"1", b"2", b"3"]


def test_survivors_that_split_their_votes_ask_again_soon() -> None:
    """Both ask in the same turn: neither can win, and neither may wait for its election time-out."""
    loop = SimLoop(random.Random(1))

    async def main() -> None:
        wires = await three(loop, {}, {})
        (dead,) = [node_id for node_id, driver in wires.nodes.items() if driver.is_leader]
        await wires.nodes[dead].stop()
        survivors = [driver for node_id, driver in wires.nodes.items() if node_id != dead]
        term = survivors[0].core.term
        for driver in survivors:
            driver.core.forget_leader()
        for driver in survivors:
            driver._early_campaign._campaign(term, 1)
        await asyncio.sleep(0.05)
        assert [driver.core.term for driver in survivors] == [term + 1, term + 1]
        assert not any(driver.is_leader for driver in survivors), "this vote was not split"
        await asyncio.sleep(ELECTION_TICKS * TICK_SECONDS - 0.1)
        assert [driver.is_leader for driver in survivors].count(True) == 1
        for driver in survivors:
            await driver.stop()

    loop.run(main(), seconds_max=100, steps_max=1_000_000)
    assert loop.failures == []


def test_a_failed_write_is_recovered_from_without_applying_anything_twice() -> None:
    loop = SimLoop(random.Random(1))
    disk = SimDisk(random.Random(1))
    applied = Applied()

    async def main() -> None:
        view = DiskView(disk, loop.world, loop, lambda why: None)
        store, _ = open_store(view, ROOT, StoreOptions())
        log = store.open_log(TopicPartition(METADATA_TOPIC, 0), METADATA_TOPIC_ID, LogConfig())
        driver = RaftDriver(
            node_id=1,
            voters=(1,),
            storage=RaftStorage(store, log, ROOT),
            transport=NoPeers(),
            rng=random.Random(1),
        )
        with pytest.raises(Unavailable):
            driver.propose(b"too early")
        assert driver.membership == Membership(), "nothing is known before the log is read"
        assert not driver.is_only_voter
        driver.subscribe(applied)
        await driver.start()
        assert driver.membership.voters == (1,)
        for number in range(3):
            await proposed(driver, b"%d" % number)
            await asyncio.sleep(0.1)
        disk.sync_failures = 1
        await proposed(driver, b"lost or not")
        await asyncio.sleep(0.1)
        with pytest.raises(Unavailable):
            driver.propose(b"not now")
        assert not driver.leads_alone
        assert driver.is_only_voter, "so it may be read meanwhile: nobody else can lead"
        await proposed(driver, b"last")
        await asyncio.sleep(1)
        await driver.stop()

    loop.run(main(), seconds_max=100, steps_max=1_000_000)
    assert loop.failures == []
    assert [data for _, data in applied.commands if data != b"lost or not"] == [b"0", b"1", b"2", b"last"]
    indexes = [index for index, _ in applied.commands]
    assert indexes == sorted(set(indexes))
