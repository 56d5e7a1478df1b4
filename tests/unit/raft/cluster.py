"""A Raft cluster inside one test: cores, a network in a list, and disks that can forget.

Nothing moves by itself. A test ticks nodes, delivers messages and syncs disks, in whatever order
it likes; `settle` does the obvious until nothing is left to do. `checks` watches every step.
"""

from __future__ import annotations

import dataclasses
import random
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from chronik.raft import (
    Entry,
    HardState,
    InstallSnapshot,
    Message,
    RaftConfig,
    RaftCore,
    ReadResult,
    Ready,
    Snapshot,
    decode,
    encode,
)
from tests.unit.raft.checks import Checks


class Disk:
    """Writes are queued and become durable in order; a crash keeps a prefix of them."""

    def __init__(self) -> None:
        self.hard_state: HardState | None = None
        self.snapshot: Snapshot | None = None
        self.entries: list[Entry] = []
        self._queue: deque[tuple[str, object]] = deque()

    def write(self, ready: Ready) -> None:
        if ready.snapshot is not None:
            self._queue.append(("snapshot", ready.snapshot))
            self._queue.append(("truncate", 0))
        if ready.truncate_from is not None:
            self._queue.append(("truncate", ready.truncate_from))
        self._queue.extend(("entry", entry) for entry in ready.entries)
        # Last, as `RaftStorage` writes it: a crash may keep entries of a term without the term itself.
        if ready.hard_state is not None:
            self._queue.append(("hard_state", ready.hard_state))
        if ready.number:
            self._queue.append(("done", ready.number))

    @property
    def pending(self) -> int:
        return len(self._queue)

    def sync(self, count: int | None = None) -> list[int]:
        """Make the oldest `count` writes durable; gives the numbers of the Readies that are done."""
        done: list[int] = []
        for _ in range(len(self._queue) if count is None else min(count, len(self._queue))):
            match self._queue.popleft():
                case "hard_state", HardState() as hard_state:
                    self.hard_state = hard_state
                case "snapshot", Snapshot() as snapshot:
                    self.snapshot = snapshot
                case "truncate", int(index):
                    self.entries = [entry for entry in self.entries if entry.index < index]
                case "entry", Entry() as entry:
                    assert not self.entries or entry.index == self.entries[-1].index + 1
                    self.entries.append(entry)
                case "done", int(number):
                    done.append(number)
        return done

    def lose_unsynced(self) -> None:
        self._queue.clear()


class Node:
    def __init__(self, config: RaftConfig, disk: Disk | None = None) -> None:
        self.config = config
        self.disk = disk or Disk()
        self.core: RaftCore
        self.applied: list[Entry] = []
        """The state machine. Its snapshot is simply itself, encoded."""
        self.reads: list[ReadResult] = []
        self.start()

    def start(self) -> None:
        disk = self.disk
        self.core = RaftCore(
            self.config, hard_state=disk.hard_state, snapshot=disk.snapshot, entries=tuple(disk.entries)
        )
        self.applied = _load(disk.snapshot) if disk.snapshot else []
        self.reads = []

    @property
    def id(self) -> int:
        return self.config.node_id

    @property
    def commands(self) -> list[str]:
        return [entry.data.decode() for entry in self.applied if entry.kind == 0]

    def compact(self, index: int | None = None, keep: int = 0) -> None:
        """Snapshot the state machine, then forget all but the last `keep` entries before it."""
        at = self.core.log.applied if index is None else index
        if at <= (self.disk.snapshot.index if self.disk.snapshot else 0):
            return
        data = msgspec.msgpack.encode(self.applied[:at])
        self.disk.snapshot = msgspec.structs.replace(self.core.snapshot_at(at), data=data)
        floor = max(0, at - keep)
        if self.disk.entries and self.disk.entries[0].index <= floor:
            self.disk.entries = [entry for entry in self.disk.entries if entry.index > floor]
        self.core.compact(floor)


def _load(snapshot: Snapshot) -> list[Entry]:
    return msgspec.msgpack.decode(snapshot.data, type=list[Entry])


class Cluster:
    def __init__(
        self,
        *node_ids: int,
        voters: Iterable[int] | None = None,
        auto_sync: bool = True,
        seed: int | None = None,
        **options: int,
    ) -> None:
        self.auto_sync = auto_sync
        self.options: dict[str, int] = {"election_ticks": 10, "heartbeat_ticks": 1, **options}
        self.network: list[Message] = []
        self.cut: set[tuple[int, int]] = set()
        """Ordered pairs between which messages are lost."""
        self.down: set[int] = set()
        self.snapshots_installed = 0
        self.log: Callable[[str], None] = lambda line: None
        self.checks = Checks()
        self.random = random.Random(seed) if seed is not None else None
        self.nodes: dict[int, Node] = {}
        self._voters = tuple(node_ids if voters is None else voters)
        for node_id in node_ids:
            self.add(node_id, self._voters)

    def add(self, node_id: int, voters: tuple[int, ...] = ()) -> Node:
        spread = self.random
        config = RaftConfig(
            node_id=node_id,
            voters=voters,
            # Without a seed the time-outs are fixed, and a lower id runs first.
            random_ticks=(lambda n: spread.randrange(n)) if spread else (lambda n: min(n - 1, node_id - 1)),
            **self.options,
        )
        self.nodes[node_id] = Node(config)
        return self.nodes[node_id]

    def __getitem__(self, node_id: int) -> RaftCore:
        return self.nodes[node_id].core

    # -- moving

    def drive(self, node_id: int) -> None:
        """What a driver does after an input: drain the core."""
        node = self.nodes[node_id]
        while (ready := node.core.ready()) is not None:
            node.disk.write(ready)
            if ready.soft_state:
                self.checks.soft_state(node, ready.soft_state)
                state = ready.soft_state
                leader = f", leader {state.leader_id}" if state.leader_id is not None else ""
                self.log(f"{node_id} is {state.role.value} in term {state.term}{leader}")
            for message in ready.messages:
                self._send(node, message)
            if ready.snapshot is not None:
                node.applied = _load(ready.snapshot)
                node.core.applied(ready.snapshot.index)
                self.snapshots_installed += 1
                self.log(f"{node_id} installs snapshot {ready.snapshot.index}")
            for entry in ready.committed:
                self.checks.apply(node, entry)
                node.applied.append(entry)
                node.core.applied(entry.index)
                self.log(f"{node_id} applies {show_entry(entry)}")
            for read in ready.reads:
                node.reads.append(read)
                self.log(f"{node_id} may serve read {read.ctx} at {read.index}")
            self.checks.node(node)
            if self.auto_sync:
                self._persist(node, None)

    def _send(self, node: Node, message: Message) -> None:
        if isinstance(message, InstallSnapshot):
            newest = node.disk.snapshot
            assert newest is not None
            assert newest.index >= message.snapshot.index
            message = msgspec.structs.replace(message, snapshot=newest)
        self.checks.sent(node, message)
        self.network.append(decode(encode(message)))

    def _persist(self, node: Node, count: int | None) -> None:
        for number in node.disk.sync(count):
            node.core.persisted(number)

    def tick(self, node_id: int, count: int = 1) -> None:
        for _ in range(count):
            self.nodes[node_id].core.tick()
            self.drive(node_id)

    def sync(self, node_id: int, count: int | None = None) -> None:
        self._persist(self.nodes[node_id], count)
        self.drive(node_id)

    def deliver(self, position: int = 0, *, keep: bool = False) -> None:
        message = self.network[position] if keep else self.network.pop(position)
        if (
            (message.sender, message.to) in self.cut
            or message.to in self.down
            or message.to not in self.nodes
        ):
            self.log(f"{show(message)} (lost)")
            return
        self.log(show(message))
        self.nodes[message.to].core.step(message)
        self.drive(message.to)

    def settle(self, limit: int = 10_000) -> None:
        """Sync every disk and deliver every message until all is quiet."""
        while True:
            for node_id, node in self.nodes.items():
                if node_id not in self.down:
                    self.drive(node_id)
                    while node.disk.pending:
                        self.sync(node_id)
            if not self.network:
                return
            self.deliver()
            limit -= 1
            assert limit > 0, "the network does not come to rest"

    def run(self, ticks: int) -> None:
        """All clocks go on together, and everything arrives."""
        for _ in range(ticks):
            for node_id in self.nodes:
                if node_id not in self.down:
                    self.tick(node_id)
            self.settle()

    def elect(self, node_id: int) -> None:
        self.nodes[node_id].core.campaign()
        self.drive(node_id)
        self.settle()
        assert self[node_id].is_leader

    def propose(self, node_id: int, text: str) -> int:
        index = self.nodes[node_id].core.propose(text.encode())
        self.drive(node_id)
        return index

    # -- faults

    def isolate(self, *node_ids: int) -> None:
        """Cut these off from all others; they still reach each other."""
        inside = set(node_ids)
        for a in self.nodes:
            for b in self.nodes:
                if (a in inside) != (b in inside):
                    self.cut.add((a, b))

    def heal(self) -> None:
        self.cut.clear()

    def crash(self, node_id: int) -> None:
        self.down.add(node_id)
        self.nodes[node_id].disk.lose_unsynced()

    def restart(self, node_id: int) -> None:
        self.down.discard(node_id)
        node = self.nodes[node_id]
        node.start()
        self.checks.restarted(node)
        self.drive(node_id)

    # -- looking

    @property
    def leader(self) -> int | None:
        """The leader of the highest term among the nodes that are up."""
        leaders = [n for n in self.nodes if n not in self.down and self[n].is_leader]
        return max(leaders, key=lambda n: self[n].term, default=None)

    def messages(self, kind: type[Message] | None = None, to: int | None = None) -> list[Message]:
        return [
            m for m in self.network if (kind is None or isinstance(m, kind)) and (to is None or m.to == to)
        ]


def show_entry(entry: Entry) -> str:
    text = f" {entry.data.decode()}" if entry.kind == 0 else f" {entry.kind.name.lower()}"
    return f"{entry.index}@{entry.term}{text}"


def show(message: Message) -> str:
    parts: list[str] = []
    for field in msgspec.structs.fields(message):
        value = getattr(message, field.name)
        if field.name in ("sender", "to") or value == field.default:
            continue
        if field.name == "entries":
            value = "[" + ", ".join(show_entry(entry) for entry in value) + "]"
        elif isinstance(value, Snapshot):
            value = f"{value.index}@{value.term}"
        parts.append(f"{field.name}={value}")
    return f"{message.sender}->{message.to} {type(message).__name__} {' '.join(parts)}"


def show_status(core: RaftCore) -> str:
    status = core.status()
    rows = [
        f"{status.node_id}: {status.role.value} term={status.term} commit={status.commit} "
        f"applied={status.applied} last={status.last_index} voters={list(status.membership.voters)}"
        + (f" learners={list(status.membership.learners)}" if status.membership.learners else "")
    ]
    for node_id, peer in status.followers.items():
        values = dataclasses.asdict(peer)
        rows.append(
            f"   {node_id}: {peer.state.value} match={values['match']} next={values['next']} "
            f"inflight={values['inflight']}"
        )
    return "\n".join(rows)
