"""Breaks a cluster of real nodes, one thing after the other, by a seed: the network, processes, a disk."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from chronik.testing import Cluster
from tests.small_disk import mount, unmount

SMALL_DISK_BYTES = 192 * 1024 * 1024
LEFT_BYTES = 300_000


class SmallDisk:
    """A file system of its own for one node's data, which can be filled up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        mount(folder, SMALL_DISK_BYTES)

    def fill(self) -> None:
        with (self.folder / "ballast").open("wb") as file:
            while (free := shutil.disk_usage(self.folder).free) > LEFT_BYTES:
                file.write(bytes(min(free - LEFT_BYTES + 1, 1 << 20)))
                file.flush()

    def clear(self) -> None:
        (self.folder / "ballast").unlink(missing_ok=True)

    def close(self) -> None:
        unmount(self.folder)


class Nemesis:
    def __init__(self, cluster: Cluster, topic: str, seed: int, disk: SmallDisk) -> None:
        self._cluster = cluster
        self._topic = topic
        self._rng = random.Random(seed)
        self._disk = disk
        self.counts: Counter[str] = Counter()

    def run(self, seconds: float) -> None:
        """Faults of a second or a few, with as long to recover in between; at the end all is healed."""
        kinds: list[Callable[[], None]] = [
            self._kill_one,
            self._kill_two,
            self._pause,
            self._isolate,
            self._one_way,
            self._bridge,
            self._full_disk,
        ]
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            fault = self._rng.choice(kinds)
            self.counts[fault.__name__.strip("_").replace("_", " ")] += 1
            fault()
            self._heal()
            self._last(0.5, 3.0)
        self._heal()
        self._cluster.wait_ready()

    def _last(self, shortest: float, longest: float) -> None:
        """Time passes: this is the fault itself, not a wait for something."""
        time.sleep(self._rng.uniform(shortest, longest))

    def _heal(self) -> None:
        self._cluster.heal()
        for node_id in self._cluster.nodes:
            if self._cluster.is_running(node_id):
                self._cluster.resume(node_id)
        self._disk.clear()
        self._cluster.start(wait=False)

    def _victim(self) -> int:
        """The leader of some partition as often as anybody else."""
        if self._rng.random() < 0.5:
            return self._cluster.leader_of(self._topic)
        return self._rng.choice(self._cluster.nodes)

    def _kill_one(self) -> None:
        self._cluster.kill(self._victim())
        self._last(0.1, 2.0)

    def _kill_two(self) -> None:
        self._cluster.kill(*self._rng.sample(self._cluster.nodes, 2))
        self._last(0.1, 2.0)

    def _pause(self) -> None:
        self._cluster.pause(self._victim())
        self._last(0.2, 6.0)

    def _isolate(self) -> None:
        """One against two, which are a majority."""
        self._cluster.isolate(self._victim())
        self._last(0.5, 6.0)

    def _one_way(self) -> None:
        victim = self._victim()
        others = [node_id for node_id in self._cluster.nodes if node_id != victim]
        if self._rng.random() < 0.5:
            self._cluster.partition([victim], others, one_way=True)
        else:
            self._cluster.partition(others, [victim], one_way=True)
        self._last(0.5, 6.0)

    def _bridge(self) -> None:
        """Two do not see each other, the third sees both."""
        one, two = self._rng.sample(self._cluster.nodes, 2)
        self._cluster.partition([one], [two])
        self._last(0.5, 6.0)

    def _full_disk(self) -> None:
        self._disk.fill()
        self._last(0.5, 4.0)
