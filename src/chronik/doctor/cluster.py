"""What `chronik doctor` asks a cluster: nodes, partitions, groups, transactions. It changes nothing."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from chronik.doctor.findings import Finding, ok, unknown, warning, wrong
from chronik.doctor.levels import look_at_levels, releases
from chronik.model import NO_LEADER, ChronikError, ErrorCode, NodeId, RequestError, TopicPartition
from chronik.words import counted

if TYPE_CHECKING:
    from chronik.client import Cluster
    from chronik.client.metadata import TopicInfo
    from chronik.client.transactions import ActiveProducer, TransactionDescription, Transactions

Kind: TypeAlias = Literal["topic", "group", "transactional_id"]
Sees: TypeAlias = Callable[[Kind, str], bool]
"""Whether the findings may name this resource."""

SHOWN_MAX: Final = 5
POLL_SECONDS: Final = 0.25
GRACE_MS: Final = 10_000
"""A coordinator ends what is over its timeout a little later than then."""
HANGING_MS: Final = 15 * 60 * 1000
"""Age from which an open transaction that no coordinator knows is hanging: transaction.max.timeout.ms."""
HANGING_MAX: Final = 100
"""Hanging transactions that are named one by one."""
PARTITIONS_MAX: Final = 2_000
"""More are not asked for their producers: each is a request."""
ASKED_AT_ONCE: Final = 16
REBALANCING: Final = {
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
}


async def look_at_cluster(
    cluster: Cluster,
    *,
    expected: Collection[NodeId],
    stuck_after_s: float,
    sees: Sees = lambda _kind, _name: True,
) -> list[Finding]:
    from chronik.client.admin import Admin

    topics = [one for one in await Admin(cluster).list_topics(internal=True) if sees("topic", one.name)]
    return [
        *await _nodes(cluster, expected),
        await _releases(cluster),
        *partitions(topics),
        await _groups(cluster, stuck_after_s, sees),
        *await _transactions(cluster, topics, sees),
    ]


async def _nodes(cluster: Cluster, expected: Collection[NodeId]) -> list[Finding]:
    there = await cluster.node_ids()
    missing = sorted(set(expected) - set(there))
    found = [ok("nodes", f"{counted(len(there), 'node')}: {_some(map(str, there))}")]
    if missing:
        found = [
            wrong(
                "nodes",
                f"{'node' if len(missing) == 1 else 'nodes'} {_some(map(str, missing))} of {len(expected)} "
                f"{'is' if len(missing) == 1 else 'are'} not there",
                "Start what is missing (`chronik cluster restart --node N`, or its service).",
            )
        ]
    if cluster.metadata.controller_id == NO_LEADER:
        found.append(
            wrong(
                "controller",
                "there is none",
                "Start nodes until a majority of the voters runs and is connected.",
            )
        )
    return found


async def _releases(cluster: Cluster) -> Finding:
    """A node that is down is told of elsewhere."""
    try:
        return releases(await look_at_levels(cluster))
    except ChronikError as error:
        return unknown("releases", f"not all nodes could be asked: {error}")


def partitions(topics: Iterable[TopicInfo]) -> list[Finding]:
    offline, short, count = [], [], 0
    for topic in topics:
        for number, partition in topic.partitions.items():
            count += 1
            if partition.leader_id == NO_LEADER:
                offline.append(f"{topic.name}-{number}")
            elif len(partition.isr) < len(partition.replicas):
                absent = sorted(set(partition.replicas) - set(partition.isr))
                short.append(f"{topic.name}-{number} (not in sync: {', '.join(map(str, absent))})")
    found = []
    if offline:
        found.append(
            wrong(
                "offline partitions",
                f"{len(offline):,} of {count:,} have no leader: {_some(offline)}",
                "Start the nodes that hold their replicas (`chronik topic describe TOPIC` names them).",
            )
        )
    if short:
        found.append(
            wrong(
                "replicas",
                f"{len(short):,} of {count:,} partitions are under-replicated: {_some(short)}",
                "Start the nodes that are not in sync, or look at their disk and network if they run.",
            )
        )
    return found or [
        ok("partitions", f"{counted(count, 'partition')}, each with a leader and all replicas in sync")
    ]


async def _groups(cluster: Cluster, stuck_after_s: float, sees: Sees) -> Finding:
    """Waits only while a group rebalances, and no longer than it may."""
    from chronik.client.groups import Groups

    groups, loop = Groups(cluster), asyncio.get_running_loop()
    deadline = loop.time() + stuck_after_s
    listed = [group for group in await groups.list() if sees("group", group.group_id)]
    stuck = {group.group_id: group.state for group in listed if group.state in REBALANCING}
    while stuck and loop.time() < deadline:
        await asyncio.sleep(POLL_SECONDS)
        now = {group.group_id: group.state for group in await groups.list()}
        stuck = {name: now[name] for name in stuck if now.get(name) in REBALANCING}
    if stuck:
        return warning(
            "groups",
            f"rebalancing for {stuck_after_s:g} s and more: "
            + _some(f"{name} ({state})" for name, state in stuck.items()),
            "Find the member that does not poll (`chronik group describe GROUP`), restart it, "
            "or shorten its max.poll.interval.ms.",
        )
    return ok("groups", f"{counted(len(listed), 'group')}, none stuck in a rebalance")


async def _transactions(cluster: Cluster, topics: Iterable[TopicInfo], sees: Sees) -> list[Finding]:
    from chronik.client.transactions import Transactions

    transactions = Transactions(cluster)
    known = await _described(transactions)
    tps = [
        TopicPartition(topic.name, n)
        for topic in topics
        for n, p in topic.partitions.items()
        if p.leader_id >= 0
    ]
    now = datetime.datetime.now(datetime.UTC)
    found = over_timeout([one for one in known if sees("transactional_id", one.transactional_id)], now)
    found += hanging(await _open_producers(transactions, tps[:PARTITIONS_MAX]), known, now)
    left_out = len(tps) - PARTITIONS_MAX
    more = f" ({left_out:,} partitions were not asked)" if left_out > 0 else ""
    return found or [ok("transactions", f"{len(known):,} open, none over its timeout{more}")]


def over_timeout(known: Iterable[TransactionDescription], now: datetime.datetime) -> list[Finding]:
    """What its coordinator should have ended."""
    found = []
    for one in known:
        age_s = (now - one.started_at).total_seconds() if one.started_at is not None else 0.0
        if age_s * 1000 > one.timeout_ms + GRACE_MS:
            found.append(
                wrong(
                    "transactions",
                    f"{one.transactional_id} is {one.state} for {age_s:,.0f} s, its timeout is "
                    f"{one.timeout_ms / 1000:g} s: readers of committed records wait for it",
                    f"End it: `chronik transaction abort {one.transactional_id}`.",
                )
            )
    return found


def hanging(
    producers: Iterable[tuple[TopicPartition, ActiveProducer]],
    known: Collection[TransactionDescription],
    now: datetime.datetime,
) -> list[Finding]:
    """What is open in a partition though no coordinator knows it, so that nobody will ever end it."""
    begun = {(one.producer_id, tp) for one in known for tp in one.partitions}
    now_ms = int(now.timestamp() * 1000)
    found: list[Finding] = []
    left_out = 0
    for tp, producer in producers:
        if now_ms - producer.last_timestamp_ms <= HANGING_MS or (producer.producer_id, tp) in begun:
            continue
        if len(found) == HANGING_MAX:
            left_out += 1
            continue
        found.append(
            wrong(
                "transactions",
                f"one of producer {producer.producer_id} hangs in {tp}: no coordinator knows it",
                f"End it: `chronik transaction abort --topic {tp.topic} --partition {tp.partition} "
                f"--producer-id {producer.producer_id}`.",
            )
        )
    if left_out:
        found.append(
            wrong(
                "transactions",
                f"{left_out:,} more hang like these",
                "End those that are named, then ask again.",
            )
        )
    return found


async def _described(transactions: Transactions) -> list[TransactionDescription]:
    found = []
    for listed in await transactions.list(("Ongoing", "PrepareCommit", "PrepareAbort")):
        try:
            found.append(await transactions.describe(listed.transactional_id))
        except RequestError as error:
            if error.code != ErrorCode.transactional_id_not_found:  # it expired since it was listed
                raise
    return found


async def _open_producers(
    transactions: Transactions, tps: Iterable[TopicPartition]
) -> list[tuple[TopicPartition, ActiveProducer]]:
    slots = asyncio.Semaphore(ASKED_AT_ONCE)

    async def ask(tp: TopicPartition) -> list[tuple[TopicPartition, ActiveProducer]]:
        async with slots:
            producers = await transactions.producers(tp)
        return [(tp, one) for one in producers if one.transaction_start_offset >= 0]

    return [one for found in await asyncio.gather(*map(ask, tps)) for one in found]


def _some(names: Iterable[str]) -> str:
    every = list(names)
    more = len(every) - SHOWN_MAX
    return ", ".join(every[:SHOWN_MAX]) + (f" and {more:,} more" if more > 0 else "")
