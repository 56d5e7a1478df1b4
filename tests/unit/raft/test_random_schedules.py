"""Random schedules: a network that loses, doubles and reorders, disks that lag, nodes that crash.

Every step is watched by `checks`; in the end, with the faults gone, the cluster must agree and
still be able to work. A failing seed replays exactly: `run_schedule(seed)`.
"""

from __future__ import annotations

import random

import pytest

from chronik.model import RequestError, Unavailable
from chronik.raft import ChangeKind, ConfigChange
from tests.unit.raft.cluster import Cluster

STEPS = 2000


class Schedule:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.size = self.random.choice((1, 2, 3, 3, 3, 4, 5))
        self.cluster = Cluster(
            *range(1, self.size + 1),
            auto_sync=False,
            seed=seed,
            max_inflight=self.random.choice((1, 3, 64)),
            max_append_bytes=self.random.choice((1, 60, 4096)),
            snapshot_ticks=20,
            election_ticks=5,
        )
        self.proposed = 0
        self.reads: dict[int, int] = {}
        """Read context to the highest index that any leader had committed when it was asked."""
        self.has_membership_changes = self.random.random() < 0.5
        self.has_cuts = self.random.random() < 0.5
        self.loss = self.random.choice((0.0, 0.05, 0.3))

    def up(self) -> list[int]:
        return [n for n in self.cluster.nodes if n not in self.cluster.down]

    def step(self) -> None:
        actions = (
            (self.deliver, 60),
            (self.sync, 20),
            (self.tick, 25),
            (self.propose, 8),
            (self.crash, 1.2),
            (self.restart, 4),
            (self.compact, 3),
            (self.read, 2),
            (self.transfer, 0.4),
            (self.change_members, 2 if self.has_membership_changes else 0),
            (self.cut, 0.7 if self.has_cuts else 0),
        )
        action = self.random.choices([a for a, _ in actions], [w for _, w in actions])[0]
        action()

    def deliver(self) -> None:
        network = self.cluster.network
        for _ in range(self.random.randrange(1, 4)):
            if network:
                position = 0 if self.random.random() < 0.6 else self.random.randrange(len(network))
                if self.random.random() < self.loss:
                    network.pop(position)
                else:
                    self.cluster.deliver(position, keep=self.random.random() < 0.1)
        del network[:-300]

    def sync(self) -> None:
        node_id = self.random.choice(self.up() or [0])
        if node_id:
            self.cluster.sync(node_id, self.random.choice((1, 2, None, None)))

    def tick(self) -> None:
        for node_id in self.up():
            if self.random.random() < 0.7:
                self.cluster.tick(node_id)

    def propose(self) -> None:
        for node_id in self.up():
            if self.cluster[node_id].is_leader:
                self.proposed += 1
                try:
                    self.cluster.propose(node_id, f"c{self.proposed}")
                except Unavailable:
                    pass

    def crash(self) -> None:
        node_id = self.random.choice(self.up() or [0])
        if node_id:
            node = self.cluster.nodes[node_id]
            # Storage may have got further than it told the core.
            node.disk.sync(self.random.randrange(node.disk.pending + 1))
            self.cluster.crash(node_id)

    def restart(self) -> None:
        if self.cluster.down:
            self.cluster.restart(self.random.choice(sorted(self.cluster.down)))

    def compact(self) -> None:
        for node_id in self.up():
            if self.random.random() < 0.5 and self.cluster.nodes[node_id].disk.pending == 0:
                self.cluster.nodes[node_id].compact(keep=self.random.choice((0, 0, 5)))

    def read(self) -> None:
        for node_id in self.up():
            core = self.cluster[node_id]
            if core.is_leader:
                ctx = len(self.reads) + 1
                self.reads[ctx] = max(self.cluster[n].log.commit for n in self.cluster.nodes)
                core.read_index(ctx)
                self.cluster.drive(node_id)

    def transfer(self) -> None:
        for node_id in self.up():
            core = self.cluster[node_id]
            if core.is_leader:
                core.transfer_leadership(self.random.choice(core.log.membership.voters))
                self.cluster.drive(node_id)

    def change_members(self) -> None:
        for node_id in self.up():
            core = self.cluster[node_id]
            if not core.is_leader:
                continue
            target = self.random.randrange(1, 7)
            kind = self.random.choice(list(ChangeKind))
            try:
                core.propose_config(ConfigChange(kind, target))
            except (Unavailable, RequestError):
                continue
            if target not in self.cluster.nodes:
                self.cluster.add(target)
            self.cluster.drive(node_id)

    def cut(self) -> None:
        self.cluster.heal()
        if self.random.random() < 0.6:
            ids = sorted(self.cluster.nodes)
            self.cluster.isolate(*self.random.sample(ids, self.random.randrange(1, len(ids) + 1)))

    def check_reads(self) -> None:
        """A confirmed read never serves less than was committed when it was asked."""
        for node in self.cluster.nodes.values():
            for read in node.reads:
                if read.index is not None:
                    assert read.index >= self.reads[read.ctx], f"stale read {read}"
            node.reads.clear()

    def recover(self) -> None:
        """Faults end; the cluster must find a leader, agree, and commit something new."""
        cluster = self.cluster
        cluster.heal()
        for node_id in sorted(cluster.down):
            cluster.restart(node_id)
        cluster.network.clear()
        for _ in range(400):
            cluster.run(1)
            leader = cluster.leader
            if leader is not None and self.agree(leader) and cluster[leader].status().transferee is None:
                break
        leader = cluster.leader
        assert leader is not None, "no leader after all faults are gone"
        index = cluster.propose(leader, "last")
        cluster.settle()
        cluster.run(3)
        for member in cluster[leader].log.membership.members:
            assert cluster[member].log.commit >= index, f"{member} does not catch up"
            assert cluster.nodes[member].applied == cluster.nodes[leader].applied

    def agree(self, leader: int) -> bool:
        log = self.cluster[leader].log
        return all(self.cluster[m].log.commit == log.last_index for m in log.membership.members)


def run_schedule(seed: int, steps: int = STEPS) -> Schedule:
    schedule = Schedule(seed)
    for _ in range(steps):
        schedule.step()
        schedule.check_reads()
    schedule.recover()
    return schedule


@pytest.mark.parametrize("group", range(8))
def test_safety_and_recovery_under_random_faults(group: int) -> None:
    for seed in range(group * 5, group * 5 + 5):
        try:
            run_schedule(seed)
        except BaseException as error:
            error.add_note(f"replay: run_schedule({seed})")
            raise


def test_schedules_reach_what_they_should() -> None:
    """The schedules must exercise the interesting paths, or their silence means nothing."""
    leaders = applied = snapshots = 0
    for seed in range(40, 52):
        schedule = run_schedule(seed)
        leaders += len(schedule.cluster.checks.leaders)
        applied += len(schedule.cluster.checks.applied)
        snapshots += schedule.cluster.snapshots_installed
    assert leaders > 50
    assert applied > 300
    assert snapshots > 10
