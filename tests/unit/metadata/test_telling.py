"""The words by which operators find what the metadata log did."""

from __future__ import annotations

from uuid import UUID

import pytest

from chronik.metadata import commands as c
from chronik.metadata.commands import CommandEntry, encode_entry
from chronik.metadata.events import LeaderChanged
from chronik.metadata.state import ClusterState
from chronik.metadata.telling import describe, tell_applied, tell_event, tell_replicated, tell_written
from chronik.model import TopicPartition

ID = UUID(int=7)
ORDERS = c.CreateTopic(name="orders", topic_id=ID, assignments=((1, 2),))
TP = TopicPartition("orders", 0)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (ORDERS, "CreateTopic('orders')"),
        (c.DeleteTopic(topic_id=ID), f"DeleteTopic({ID})"),
        (c.ChangePartition(topic_id=ID, partition=3, partition_epoch=1), f"ChangePartition({ID}, 3)"),
        (c.UnfenceBroker(broker_id=2, broker_epoch=1), "UnfenceBroker(2)"),
        (c.InitCluster(cluster_id="x"), "InitCluster('x')"),
        (c.SetLevel(level=2), "SetLevel(2)"),
        (c.Batch(commands=(ORDERS,) * 7), ", ".join(["CreateTopic('orders')"] * 5) + " and 2 more"),
    ],
)
def test_commands_have_names(command: c.Command, words: str) -> None:
    assert describe(command) == words


def test_the_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    entry = encode_entry(CommandEntry(1, 1, ORDERS))
    tell_written([(7, entry)])
    tell_replicated([(7, entry)])
    tell_applied([(7, entry), (8, b"?")])
    state = ClusterState()
    state.apply(c.RegisterBroker(broker_id=1, incarnation=ID, endpoints={}), 1)
    state.apply(c.RegisterBroker(broker_id=2, incarnation=ID, endpoints={}), 2)
    for event in state.apply(ORDERS, 3).events:
        tell_event(lambda: state, event)
    tell_event(lambda: state, LeaderChanged(tp=TP, topic_id=ID, leader=2, leader_epoch=5))
    assert [record.getMessage() for record in caplog.records] == [
        "Wrote CreateTopic('orders') to metadata WAL at offset 7",
        f"Replicated __chronik_metadata-0 offset 7 ({len(entry)} bytes)",
        "Follower applied CreateTopic('orders')",
        "Follower applied an entry that this version does not know "
        f"(an entry of the metadata log has version {ord('?')} and this release reads up to "
        f"{c.FORMAT_VERSION}: start the node with the release that wrote it, or a newer one)",
        "AssignPartition orders-0: [1, 2] (new)",
        "SetPartitionLeader orders-0: node 1, epoch 0",
        "SetPartitionLeader orders-0: node 2, epoch 5",
    ]


def test_nothing_is_decoded_when_nobody_reads(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("chronik.metadata.telling.decode_entry", None)
    tell_written([(7, b"")])
    tell_applied([(7, b"")])
    assert caplog.records == []
