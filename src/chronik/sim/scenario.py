"""One run: a seed draws nodes, settings, loads and faults; the run ends with a look at everything.

A scenario is a table of what may happen. `storage` is one node on a disk that fails in every way, `torn` one
that loses power inside of large writes; `cluster` is three nodes with everything that can happen to them and
between them; `members` is the same with a fourth node that joins, and one of the four that leaves;
`observers` are five nodes of which three vote, and those that vote change; `shards` are three machines of
two nodes each, which fail together; `strangers` is `cluster` with somebody between the nodes who records,
replays and alters what they say; `relaxed` is `cluster` with topics that acknowledge before they sync.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Collection, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from chronik.check import Event, check
from chronik.client import Admin, Cluster
from chronik.client.admin import NewTopic
from chronik.config import Address, Peer, Settings
from chronik.links.link import BEAT_SECONDS
from chronik.model import ErrorCode, InvariantViolated, RequestError, TopicPartition
from chronik.sim import churn, faults, pipelined, rotting, stranger, workload
from chronik.sim.cluster import SimCluster
from chronik.sim.faults import Fault
from chronik.sim.invariants import Changes, of_nodes, of_replicas
from chronik.sim.loop import Unhandled
from chronik.sim.members import Operator
from chronik.sim.process import Process
from chronik.sim.stranger import Stranger
from chronik.sim.workload import PATIENT, Recorder, SendPlan
from chronik.sim.world import SimNode, World

SECRET: Final = "secret"
_SECONDS_MAX: Final = 400.0
_STEPS_MAX: Final = 3_000_000
_WINDOWS: Final = (1_024, 8_192, 8 * 1024 * 1024)
"""Bytes in flight to a follower. Mostly so small that the window fills (T11)."""
_TIERED_SETTINGS: Final[dict[str, Any]] = {
    "object_store": "file:///objects",
    "object_store_timeout_ms": 1_000,
    "tiering_interval_ms": 200,
    "remote_fetch_max_wait_ms": 300,
    "retention_check_interval_ms": 300,
}
_TIERED_CONFIGS: Final = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "0",
    "segment.bytes": "2000",
    "file.delete.delay.ms": "1000",
}
_FLOOD: Final = SendPlan(burst_max=800, size_max=20, pause_s=0.2, count_max=8_000, is_to_one=True)
"""Thousands of small records to one partition, for bugs that need high offsets (T01)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    name: str
    node_count: int
    weights: dict[str, float]
    seconds: float
    fault_count: tuple[int, int]
    partitions: tuple[int, ...]
    """Partition counts that a seed chooses from."""
    bursts: tuple[int, ...]
    """Burst sizes of producers that a seed chooses from."""
    durable_acks: tuple[int, ...]
    """Values of acks with which an acknowledged record must not be lost."""
    churn: dict[str, float]
    """Weights of further loads, of which a seed draws one or none, so that it stays cheap."""
    flood_chance: float = 0.0
    """Share of seeds in which thousands of records go to one partition."""
    voter_replace_ms: tuple[int, ...] = (600_000,)
    """How long a voter may be away before another node votes in its place."""
    shards: int = 1
    """Nodes of a machine, which share its rack, its power and its network."""
    is_tiered: bool = False
    """Topics have remote.storage.enable, and keep no local copy of what is in the object store."""
    has_stranger: bool = False
    """Whether somebody on the network attacks the ports between nodes."""
    relaxed_chance: float = 0.0
    """Share of topics that acknowledge writes before they are synced."""
    always: tuple[SendPlan, ...] = ()
    """What is sent in every seed, besides what it draws."""


STORAGE: Final = Scenario(
    name="storage",
    node_count=1,
    weights={
        "crash": 3,
        "crash inside a write": 3,
        "crash after a crash": 2,
        "power loss on a slow disk": 1.5,
        "power loss inside a large round": 2,
        "restart": 1,
        "pause": 0.5,
        "slow disk": 1,
        "full disk": 1.5,
        "failed sync": 1.5,
        "clock jump": 0.5,
        "broken connections": 1,
        "checkpoint": 5,
    },
    seconds=6.0,
    fault_count=(3, 12),
    partitions=(1, 2, 3, 8),
    bursts=(1, 4, 32),
    durable_acks=(-1, 1),
    churn={"group": 1, "topics": 1, "configs": 1, "": 4},
    relaxed_chance=0.2,
)

TORN: Final = replace(
    STORAGE,
    name="torn",
    weights={"power loss inside a large round": 4, "crash after a crash": 1, "checkpoint": 1},
    fault_count=(2, 5),
    partitions=(8,),
    churn={"": 1},
    relaxed_chance=0.0,
    always=(SendPlan(burst_max=32, is_scattered=True, pause_s=0.2, count_max=500),),
)
"""Commit rounds of many batches, some of which reach the disk and some do not."""

CLUSTER: Final = Scenario(
    name="cluster",
    node_count=3,
    weights={
        "crash": 3,
        "crash inside a write": 1.5,
        "crash of all": 0.5,
        "crash after a crash": 0.7,
        "power loss on a slow disk": 1,
        "isolated leaders": 1,
        "moved leader": 1,
        "restart": 1,
        "pause": 1.5,
        "slow disk": 0.7,
        "full disk": 0.3,
        "failed sync": 1,
        "clock jump": 0.5,
        "clock drift": 0.5,
        "broken connections": 1,
        "slow links": 1,
        "partition": 3,
        "checkpoint": 2,
    },
    seconds=6.0,
    fault_count=(2, 8),
    partitions=(1, 2, 3),
    bursts=(1, 4, 16),
    durable_acks=(-1,),
    churn={"group": 1, "topics": 1, "configs": 1, "replicas": 1, "members": 0.4, "": 3},
    flood_chance=0.15,
)

MEMBERS: Final = replace(CLUSTER, name="members", churn={"members": 1})
"""What a few seeds of `cluster` do too, in every seed."""

OBSERVERS: Final = replace(
    CLUSTER,
    name="observers",
    node_count=5,
    churn={"voters": 2, "members": 1, "": 1},
    flood_chance=0.0,
    voter_replace_ms=(1_000, 2_000, 600_000),
)
"""Voters are promoted and demoted by hand, and replaced soon after they are gone."""

ROT: Final = replace(
    CLUSTER, name="rot", weights={**CLUSTER.weights, "bit rot": 6, "checkpoint": 6}, churn={"": 1}
)
"""Bits of one node's segments flip. Records that a node says its disk lost may be missing, nothing else."""

STRANGERS: Final = replace(
    CLUSTER, name="strangers", has_stranger=True, fault_count=(0, 4), churn={"": 1}, flood_chance=0.0
)
"""Recorded conversations, altered frames, and a holder of the secret on the WAL and Raft ports."""

TIERED: Final = replace(
    CLUSTER,
    name="tiered",
    is_tiered=True,
    weights={
        **CLUSTER.weights,
        "slow objects": 2,
        "failing objects": 2,
        "objects cut off": 2,
        "moved leader": 3,
        "isolated leaders": 2,
    },
    fault_count=(3, 10),
    churn={"topics": 1, "replicas": 2, "members": 0.5, "": 3},
    flood_chance=0.0,
)
"""Sealed segments go to an object store at once, and their local copies go as soon as they may."""

SHARDS: Final = replace(
    CLUSTER,
    name="shards",
    node_count=6,
    shards=2,
    weights={
        **CLUSTER.weights,
        "crash of a machine": 3,
        "pause of a machine": 1,
        "machine cut off": 2,
    },
    churn={"group": 1, "topics": 1, "configs": 1, "": 2},
    flood_chance=0.0,
)
"""A machine takes both of its shards along; a partition keeps its replicas on different machines."""

RELAXED: Final = replace(
    CLUSTER,
    name="relaxed",
    weights={
        "crash": 3,
        "crash of all": 4,
        "crash inside a write": 1.5,
        "crash after a crash": 0.7,
        "restart": 0.5,
        "failed sync": 0.5,
        "pause": 0.2,
        "isolated leaders": 0.5,
        "partition": 1.5,
        "broken connections": 0.5,
        "checkpoint": 1,
    },
    churn={"group": 1, "configs": 1, "replicas": 1, "": 3},
    flood_chance=0.0,
    relaxed_chance=0.8,
)
"""Topics with flush.ms and flush.messages: only a power cut of all replicas in sync takes anything."""

SCENARIOS: Final = {
    each.name: each
    for each in (CLUSTER, STORAGE, MEMBERS, OBSERVERS, RELAXED, ROT, SHARDS, STRANGERS, TIERED, TORN)
}


@dataclass(slots=True)
class Result:
    seed: int
    scenario: str
    failures: list[str] = field(default_factory=list)
    plan: list[Fault] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    acked: int = 0
    read: int = 0
    steps: int = 0
    fingerprint: int = 0
    trace: str = ""
    history: list[Event] = field(default_factory=list)


def run_seed(
    seed: int,
    scenario: Scenario = STORAGE,
    *,
    only: Collection[int] | None = None,
    keep_trace: bool = False,
) -> Result:
    """Run a seed; `only` keeps just these faults of its plan (by number)."""
    return _ScenarioRun(seed, scenario, only, keep_trace).run()


class _ScenarioRun:
    def __init__(self, seed: int, scenario: Scenario, only: Collection[int] | None, keep_trace: bool) -> None:
        self.world = World(seed, keep_trace=keep_trace)
        self.scenario = scenario
        self.rng = self.world.rng("scenario")
        self._durability_rng = self.world.rng("durability")
        self.result = Result(seed=seed, scenario=scenario.name)
        plan_rng = self.world.rng("plan")
        count = plan_rng.randint(*scenario.fault_count)
        plan = faults.draw_plan(plan_rng, scenario.weights, seconds=scenario.seconds, count=count)
        self.result.plan = [fault for fault in plan if only is None or fault.number in only]
        self._changes = Changes()
        self._of_nodes = of_nodes()
        self._loads: list[asyncio.Task[None]] = []
        self._stranger: Stranger | None = None
        self.cluster = SimCluster(self.world, self._settings(), on_started=self._on_started)
        self._of_replicas = of_replicas(self.cluster.blackouts.intervals)

    def run(self) -> Result:
        result, world = self.result, self.world
        recorder: Recorder | None = None
        try:
            recorder = world.run(self._main(), seconds_max=_SECONDS_MAX, steps_max=_STEPS_MAX)
        except Unhandled:
            pass  # what it was stands among the loop's failures
        except (Exception, InvariantViolated) as error:
            result.failures.append(f"{type(error).__name__}: {error}")
            if not isinstance(error, TimeoutError | _Violated):
                result.failures.append(traceback.format_exc())
        result.failures += world.loop.failures
        result.failures += self.cluster.leaks
        if recorder is not None:
            verdict = check(
                recorder.events,
                durable_acks=self.scenario.durable_acks,
                damaged=self._damaged(recorder),
                losable=self.cluster.blackouts.intervals,
            )
            result.failures += [str(anomaly) for anomaly in verdict.anomalies]
            result.failures += recorder.violations
            result.acked, result.read = recorder.acked, verdict.records_read
            result.history = recorder.events
        for failure in result.failures:
            world.trace.tell("world", f"FAILED {failure}")
        result.counts = world.trace.counts
        result.steps = world.loop.steps
        result.fingerprint = world.trace.fingerprint
        result.trace = world.trace.text() if world.trace.is_kept else ""
        return result

    def _damaged(self, recorder: Recorder) -> list[TopicPartition]:
        """Where bits rotted and a node said that it has them alone: elsewhere nothing may be missing."""
        if self.cluster.rotting is None:
            return []
        complaints = rotting.complaints(self.cluster)
        return [tp for tp in recorder.tps if any(f" {tp}: " in text for text in complaints)]

    def _settings(self) -> list[Settings]:
        rng = self.rng
        count = self.scenario.node_count
        peers = tuple(_peer(number) for number in range(1, count + 1))
        disable_metadata_wal = rng.random() < 0.1
        window_bytes = self.world.rng("window").choice(_WINDOWS)
        voter_replace_ms = self.world.rng("voters").choice(self.scenario.voter_replace_ms)
        return [
            Settings(
                node_id=number,
                data_dir=Path("/data"),
                bind=f"10.0.0.{number}",
                wal_profile=rng.choice(("ultra", "high", "medium", "low")),
                wal_file_bytes=rng.choice((8_192, 65_536, 1_048_576)),
                wal_queue_depth=rng.choice((2, 10_000)),
                default_replication_factor=min(3, count),
                min_insync_replicas=min(2, count),
                offsets_topic_partitions=1,
                transactions_topic_partitions=1,
                cluster_id="sim",
                cluster_secret=SECRET,
                disable_metadata_wal=disable_metadata_wal,
                replica_lag_time_max_ms=rng.choice((1_000, 10_000)),
                replica_window_bytes=window_bytes,
                voter_replace_ms=voter_replace_ms,
                **(_TIERED_SETTINGS if self.scenario.is_tiered else {}),
                peers=peers if count > 1 else (),
                rack=f"machine-{(number - 1) // self.scenario.shards}" if self.scenario.shards > 1 else None,
                load_balance="replicas" if self.scenario.shards > 1 else "leaders",
                load_balance_interval_ms=500,
                load_balance_min_bytes=1 if self.scenario.shards > 1 else 1_000_000,
            )
            for number in range(1, count + 1)
        ]

    # --- invariants --------------------------------------------------------------------------------

    def _on_started(self, node: SimNode) -> None:
        process = node.process
        assert process is not None
        process.on_turn = lambda: self._look_at(node, process)

    def _look_at(self, node: SimNode, process: Process) -> None:
        if node.process is not process or node.node is None:
            self._changes.forget()
            return
        changed = self._changes.of(node.node)
        if changed is None:
            return
        if changed:
            for each in self._of_replicas:
                wrong = each.check(node, changed)
                if wrong is not None:
                    raise _Violated(f"{type(each).__name__} on {node.name}: {wrong}")
        if self._changes.is_node_changed:
            for one in self._of_nodes:
                wrong = one.check_node(node)
                if wrong is not None:
                    raise _Violated(f"{type(one).__name__} on {node.name}: {wrong}")

    # --- the run -----------------------------------------------------------------------------------

    async def _main(self) -> Recorder:
        late = self.rng.choice((0.0, 0.5, 3.0))
        self.cluster.start([self.rng.random() * late for _ in self.cluster.nodes])
        await self.cluster.until(
            lambda: len(self.cluster.serving()) == len(self.cluster.nodes), "every node serves at first", 60.0
        )
        addresses = ",".join(f"{node.host}:{node.settings.kafka_port}" for node in self.cluster.nodes)
        recorder = Recorder(
            self.world.loop, addresses, await self._in_client("setup", self._create(addresses))
        )
        self._start_loads(recorder)
        if self.scenario.has_stranger:
            process = self.world.process("stranger", stranger.HOST)
            self._stranger = stranger.start(self.world, self.cluster, process, SECRET.encode())
        await faults.carry_out(self.world, self.cluster, self.result.plan)
        await asyncio.sleep(0.3)
        self.world.trace.tell("world", "everything is healed")
        await self.cluster.heal()
        await asyncio.sleep(0.5)
        recorder.stopping = True
        if self._stranger is not None:
            self._stranger.is_stopping = True
        await asyncio.gather(*self._loads)
        await self.cluster.converge()
        if self.scenario.shards > 1:
            self.result.failures += self.cluster.sharing_a_machine()
        if self._stranger is not None:
            await asyncio.sleep(2 * BEAT_SECONDS)  # the next sign of life tells that a frame was touched
            self.result.failures += self._stranger.failures + self._stranger.survivors()
        before = rotting.complaints(self.cluster)
        await rotting.lead_from_the_rotten_disk(self.cluster, recorder.tps)
        groups = list(dict.fromkeys(e.group for e in recorder.events if hasattr(e, "group")))
        await self._in_client("reader", workload.read_everything(recorder, "final", read_committed=False))
        await self._in_client("reader2", workload.read_everything(recorder, "final-c", read_committed=True))
        await self._in_client("reader3", workload.read_offsets(recorder, "final-o", groups))
        if self.scenario.relaxed_chance:
            self.result.failures += await rotting.replicas_differ(self.cluster, recorder.tps)
        if self.cluster.rotting is not None:
            await self.cluster.converge()
            self.result.failures += await rotting.replicas_differ(self.cluster, recorder.tps)
            self.result.failures += rotting.complaints(self.cluster)[len(before) :]
        await self.cluster.stop()
        return recorder

    async def _in_client(self, name: str, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something in a client process of its own and wait for it."""
        return await self.world.loop.spawn(self._client(name), work)

    def _client(self, name: str) -> Process:
        host = f"10.0.1.{len(self.cluster.client_hosts) + 1}"
        self.cluster.client_hosts.append(host)
        return self.world.process(name, host)

    async def _create(self, addresses: str) -> list[TopicPartition]:
        rng = self.rng
        topics = [
            NewTopic(
                name=f"topic{number}",
                partitions=rng.choice(self.scenario.partitions),
                configs={
                    "segment.bytes": str(rng.choice((2_000, 20_000, 1_000_000))),
                    "index.interval.bytes": str(rng.choice((100, 4096))),
                    **(_TIERED_CONFIGS if self.scenario.is_tiered else {}),
                    **self._durability(),
                },
            )
            for number in range(rng.randint(1, 2))
        ]
        async with Cluster(addresses, PATIENT) as cluster:
            for topic in topics:
                await self._create_one(Admin(cluster), topic)
        return [TopicPartition(topic.name, number) for topic in topics for number in range(topic.partitions)]

    def _durability(self) -> dict[str, str]:
        """Own flush configs of a topic, in some seeds."""
        rng = self._durability_rng
        if rng.random() >= self.scenario.relaxed_chance:
            return {}
        within = {"flush.ms": str(rng.choice((20, 200, 1_000)))}
        records = {"flush.messages": str(rng.choice((2, 10, 100)))}
        return rng.choice((within, within, within | records, records))

    async def _create_one(self, admin: Admin, topic: NewTopic) -> None:
        """Not all brokers may be known, or held to be alive, so soon after the start."""
        deadline = self.world.loop.now + 20.0
        while True:
            (created,) = await admin.create_topics([topic])
            if not isinstance(created, RequestError) or created.code == ErrorCode.topic_already_exists:
                return
            if created.code != ErrorCode.invalid_replication_factor or self.world.loop.now > deadline:
                raise created
            await asyncio.sleep(0.1)

    def _start_loads(self, recorder: Recorder) -> None:
        rng = self.rng
        for number in range(rng.randint(1, 3)):
            idempotent = rng.random() < 0.5
            plan = SendPlan(
                acks=-1 if idempotent else rng.choice((-1, -1, 1, 0)),
                idempotent=idempotent,
                burst_max=rng.choice(self.scenario.bursts),
                is_scattered=rng.random() < 0.5,
                size_max=rng.choice((50, 1_000, 5_000)),
                pause_s=rng.choice((0.05, 0.2)),
            )
            name = f"p{number}"
            self._load(name, workload.produce(recorder, name, self.world.rng(name), plan))
        for number, plan in enumerate(self.scenario.always):
            name = f"w{number}"
            self._load(name, workload.produce(recorder, name, self.world.rng(name), plan))
        if self.world.rng("flood").random() < self.scenario.flood_chance:
            self._load("f0", workload.produce(recorder, "f0", self.world.rng("f0"), _FLOOD))
        for number in range(rng.randint(1, 2)):
            name = f"c{number}"
            committed = rng.random() < 0.5
            load = workload.consume(recorder, name, self.world.rng(name), read_committed=committed)
            self._load(name, load)
        if rng.random() < 0.4:
            self._load("t0", workload.transact(recorder, "t0", self.world.rng("t0"), 0.1))
        if rng.random() < 0.3:
            self._load("d0", workload.trim(recorder, "d0", self.world.rng("d0"), 1.0))
        if rng.random() < 0.3:
            self._load("g0", workload.commit_offsets(recorder, "g0", self.world.rng("g0"), 0.3))
        if self.world.rng("pipelined").random() < 0.3:
            load = pipelined.transact_pipelined(recorder, "t1", self.world.rng("t1"), 0.1)
            self._load("t1", load)
        if self.scenario.shards > 1:
            work = Operator(self.cluster, recorder, self.world.rng("operator")).keep_even()
            self._loads.append(self.world.loop.create_task(work))
        self._start_churn(recorder)

    def _start_churn(self, recorder: Recorder) -> None:
        rng, nodes = self.world.rng("churn"), [node.settings.node_id for node in self.cluster.nodes]
        (kind,) = rng.choices(list(self.scenario.churn), list(self.scenario.churn.values()))
        chance = self.world.rng(f"churn {kind}")
        if kind == "group":
            self._load("m", churn.consume_in_group(recorder, "m", chance, rng.randint(2, 3)))
        elif kind == "topics":
            self._load("a0", churn.change_topics(recorder, "a0", chance))
        elif kind == "configs":
            self._load("a0", churn.change_configs(recorder, "a0", chance))
        elif kind == "replicas":
            self._load("a0", churn.move_replicas(recorder, "a0", chance, nodes))
        elif kind == "members":
            work = Operator(self.cluster, recorder, chance).work(self._newcomer(len(nodes) + 1))
            self._loads.append(self.world.loop.create_task(work))
        elif kind == "voters":
            work = Operator(self.cluster, recorder, chance).change_voters()
            self._loads.append(self.world.loop.create_task(work))

    def _newcomer(self, node_id: int) -> Settings:
        first, own = self.cluster.nodes[0].settings, _peer(node_id)
        return replace(first, node_id=node_id, bind=own.kafka.host, join=True, peers=(*first.peers, own))

    def _load(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._loads.append(self.world.loop.spawn(self._client(name), work))


def _peer(number: int) -> Peer:
    host = f"10.0.0.{number}"
    return Peer(id=number, kafka=Address(host, 9092), wal=Address(host, 9291), raft=Address(host, 5001))


class _Violated(Exception):
    """An invariant does not hold."""
