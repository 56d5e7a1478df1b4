from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from chronik.server.request_memory import STALL_SECONDS_MAX, StalledMemory


class Peer:
    def __init__(self) -> None:
        self.peer = SimpleNamespace(peer_host="test")
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.memory = StalledMemory(100, lambda: self.now)
        self.peers: list[Any] = [Peer() for _ in range(4)]

    def gone(self) -> list[int]:
        return [number for number, peer in enumerate(self.peers) if peer.is_aborted]


def test_within_the_limit_nobody_goes() -> None:
    world = World()
    world.memory.note(world.peers[0], 60)
    world.now = 1000.0
    world.memory.note(world.peers[1], 40)
    assert world.gone() == []
    assert world.memory.held_bytes == 100


def test_beyond_the_limit_those_go_that_stalled_for_long() -> None:
    world = World()
    world.memory.note(world.peers[0], 60)
    world.now = STALL_SECONDS_MAX
    world.memory.note(world.peers[1], 60)
    world.memory.note(world.peers[2], 60)
    assert world.gone() == [0]
    assert world.memory.held_bytes == 120, "the others are given their time"
    world.now = 2 * STALL_SECONDS_MAX
    world.memory.shed()
    assert world.gone() == [0, 1]
    assert world.memory.closed == 2


def test_beyond_twice_the_limit_the_first_goes_at_once() -> None:
    world = World()
    for number in range(4):
        world.memory.note(world.peers[number], 60)
    assert world.gone() == [0]


def test_who_goes_on_is_forgotten_and_growing_does_not_make_young() -> None:
    world = World()
    world.memory.note(world.peers[0], 50)
    world.memory.note(world.peers[1], 10)
    world.memory.note(world.peers[0], 0)
    world.now = STALL_SECONDS_MAX
    world.memory.note(world.peers[1], 30)
    world.memory.note(world.peers[2], 90)
    assert world.gone() == [1]
    assert world.memory.held_bytes == 90
