"""Nodes die, freeze and lose sight of each other under load: nothing acknowledged is ever lost (S23)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from chronik.client import ClientOptions, Producer
from chronik.client import Cluster as Client
from chronik.model import NodeId
from chronik.testing import Cluster
from tests.cluster.conftest import Figure
from tests.cluster.load import Load

PARTITIONS = 3
RESUME_S = 1.5
"""Writes go on within this time after a leader's death."""
TIME_CHARS = len("2026-01-01 00:00:00,000")


def victims(cluster: Cluster, topic: str, role: str) -> list[NodeId]:
    leader, controller = cluster.leader_of(topic), cluster.controller()
    if role == "leader":
        return [leader]
    if role == "controller":
        return [controller]
    follower = next(n for n in cluster.nodes if n not in (leader, controller))
    return [follower] if role == "follower" else [leader, follower]


def prepare(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)


def said_after(cluster: Cluster, moment: datetime, seconds: float) -> str:
    """What all nodes logged from shortly before `moment` until so many seconds later, in order."""
    first, last = (
        f"{at:%Y-%m-%d %H:%M:%S,%f}"[:-3]
        for at in (moment - timedelta(seconds=0.5), moment + timedelta(seconds=seconds))
    )
    lines = [
        f"{line[:TIME_CHARS]} node {node_id} {line[TIME_CHARS:]}"
        for node_id in cluster.nodes
        for line in cluster.log(node_id).splitlines()
        if first <= line[:TIME_CHARS] <= last
    ]
    return "\n".join(sorted(lines))


@pytest.mark.timeout(7200)
def test_kill_9_loses_nothing(cluster: Cluster, topic: str, rounds: int, figure: Figure) -> None:
    prepare(cluster, topic)
    roles = ("leader", "follower", "controller", "two of three")
    pauses: list[float] = []
    slow: list[str] = []
    with Load(cluster.bootstrap, topic, PARTITIONS) as load:
        load.wait_acked(20)
        for number in range(max(rounds, len(roles))):
            role = roles[number % len(roles)]
            killed = victims(cluster, topic, role)
            led = [p for p in range(PARTITIONS) if cluster.leader_of(topic, p) in killed]
            moment, at = time.monotonic(), datetime.now()
            cluster.kill(*killed)
            if len(killed) == 1:
                load.wait_acked(10)
                took = [load.pause_after(moment, partition) for partition in led]
                pauses += took
                if max(took, default=0.0) > RESUME_S:
                    slow.append(f"round {number}, {role} {killed}: {dict(zip(led, took, strict=True))}")
                    slow.append(said_after(cluster, at, max(took)))
            cluster.start(*killed)
            load.wait_acked(10)
            in_sync = lambda: all(len(cluster.isr_of(topic, p)) == 3 for p in range(PARTITIONS))  # noqa: E731
            cluster.wait_for(in_sync, "all replicas are in sync again")
    assert not load.failures
    load.check()
    cluster.assert_replicas_agree(topic)
    pauses.sort()
    print(f"{load.acked} acknowledged; pauses {[round(pause, 2) for pause in pauses]}", *slow, sep="\n")
    if pauses:
        figure("pause, median", pauses[len(pauses) // 2], RESUME_S)
        figure("pause, 95 of 100", pauses[len(pauses) * 95 // 100], RESUME_S)


@pytest.mark.parametrize("role", ["leader", "follower", "controller"])
@pytest.mark.timeout(300)
def test_a_frozen_node_is_replaced_and_fenced_when_it_wakes(
    cluster: Cluster, topic: str, role: str, is_long: bool
) -> None:
    prepare(cluster, topic)
    with Load(cluster.bootstrap, topic, PARTITIONS) as load:
        load.wait_acked(20)
        (frozen,) = victims(cluster, topic, role)
        led = [p for p in range(PARTITIONS) if cluster.leader_of(topic, p) == frozen]
        epochs = {p: cluster.partition_of(topic, p).leader_epoch for p in led}
        began = time.monotonic()
        cluster.pause(frozen)
        try:
            for partition in led:
                cluster.wait_for(
                    lambda partition=partition: cluster.leader_of(topic, partition) != frozen, "a new leader"
                )
            load.wait_acked(20)
            cluster.wait_for(
                lambda: all(frozen not in cluster.isr_of(topic, p) for p in range(PARTITIONS)),
                "it left the ISR",
            )
            while is_long and time.monotonic() - began < 30:
                load.wait_acked(20)
        finally:
            cluster.resume(frozen)
        load.wait_acked(20)
        cluster.wait_for(
            lambda: all(frozen in cluster.isr_of(topic, p) for p in range(PARTITIONS)), "it is in sync again"
        )
        for partition, epoch in epochs.items():
            assert cluster.partition_of(topic, partition).leader_epoch > epoch
    assert not load.failures
    load.check()
    cluster.assert_replicas_agree(topic)


@pytest.mark.timeout(120)
def test_a_leader_cut_off_from_the_others_acknowledges_nothing(cluster: Cluster, topic: str) -> None:
    """S22: it must not serve as leader beside the one that the majority elected."""
    prepare(cluster, topic)
    with Load(cluster.bootstrap, topic, PARTITIONS) as load:
        load.wait_acked(20)
        old = cluster.leader_of(topic)
        cluster.isolate(old)
        cluster.wait_for(lambda: cluster.leader_of(topic) != old, "the majority has elected another leader")
        load.wait_acked(20)
        cluster.heal()
        load.wait_acked(20)
        cluster.wait_for(lambda: old in cluster.isr_of(topic), "the old leader follows")
    assert not load.failures
    load.check()
    cluster.assert_replicas_agree(topic)


@pytest.mark.timeout(120)
def test_a_controller_that_hears_nobody_is_replaced(cluster: Cluster, topic: str) -> None:
    prepare(cluster, topic)
    old = cluster.controller()
    others = [node_id for node_id in cluster.nodes if node_id != old]
    with Load(cluster.bootstrap, topic, PARTITIONS) as load:
        load.wait_acked(20)
        cluster.partition(others, [old], one_way=True)
        cluster.wait_for(lambda: cluster.controller() != old, "another controller")
        cluster.heal()
        load.wait_acked(20)
    assert not load.failures
    load.check()
    cluster.wait_for(lambda: len(cluster.isr_of(topic)) == 3, "all in sync")
    cluster.assert_replicas_agree(topic)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("role", ["leader", "controller"])
def test_writes_resume_soon_after_a_death(cluster: Cluster, topic: str, role: str, figure: Figure) -> None:
    """Measured with a client that asks again every few milliseconds; others add their own pauses."""
    prepare(cluster, topic)
    pauses = [resume_seconds(cluster, topic, role) for _ in range(3)]
    print(f"pauses {[round(pause, 2) for pause in pauses]}")
    figure("pause, median", sorted(pauses)[1], RESUME_S)
    cluster.assert_replicas_agree(topic)


def resume_seconds(cluster: Cluster, topic: str, role: str) -> float:
    """Kill a node; the time until a record sent right after that is acknowledged in every partition."""
    options = ClientOptions(
        retry_backoff_ms=10, retry_backoff_ms_max=30, connect_timeout_ms=300, request_timeout_ms=3_000
    )

    async def write(killing: Callable[[], None]) -> float:
        async with Client(cluster.bootstrap, options) as client, Producer(client) as producer:

            async def each(value: bytes) -> None:
                sent = [await producer.send(topic, value, partition=p) for p in range(PARTITIONS)]
                for delivery in sent:
                    await delivery

            await each(b"before")
            moment = time.monotonic()
            await asyncio.to_thread(killing)
            await each(b"after")
            return time.monotonic() - moment

    killed = victims(cluster, topic, role)
    took = asyncio.run(write(lambda: cluster.kill(*killed)))
    cluster.start(*killed)
    cluster.wait_for(
        lambda: all(len(cluster.isr_of(topic, p)) == 3 for p in range(PARTITIONS)), "all are in sync again"
    )
    return took
