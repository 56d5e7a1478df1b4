"""What a client makes of metadata from nodes that do not all know the same."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

from chronik.client.metadata import Metadata
from chronik.model import ErrorCode, TopicPartition

ORDERS = TopicPartition("orders", 0)


def told(leader: int, epoch: int, *, topic_id: int = 1) -> SimpleNamespace:
    """A Metadata response: who leads the only partition."""
    partition = SimpleNamespace(
        partition_index=0, leader_id=leader, leader_epoch=epoch, replica_nodes=[1, 2, 3], isr_nodes=[leader]
    )
    topic = SimpleNamespace(
        name="orders",
        topic_id=UUID(int=topic_id),
        is_internal=False,
        error_code=ErrorCode.none,
        partitions=[partition],
    )
    nodes = [SimpleNamespace(node_id=number, host="localhost", port=9091, rack=None) for number in (1, 2, 3)]
    return SimpleNamespace(cluster_id="c", controller_id=1, brokers=nodes, topics=[topic])


def test_a_leader_of_a_former_epoch_is_not_gone_back_to() -> None:
    """A node that was paused still believes that it leads; it does not have what its successor committed."""
    metadata = Metadata().merged(told(leader=3, epoch=1), whole=False)
    for whole in (False, True):
        assert metadata.merged(told(leader=1, epoch=0), whole=whole).leader_of(ORDERS) == 3
    assert metadata.merged(told(leader=2, epoch=2), whole=False).leader_of(ORDERS) == 2


def test_a_topic_that_was_made_anew_begins_with_its_own_epochs() -> None:
    metadata = Metadata().merged(told(leader=3, epoch=5), whole=False)
    assert metadata.merged(told(leader=1, epoch=0, topic_id=2), whole=False).leader_of(ORDERS) == 1


def test_a_broker_that_tells_no_epochs_is_believed() -> None:
    metadata = Metadata().merged(told(leader=3, epoch=5), whole=False)
    assert metadata.merged(told(leader=1, epoch=-1), whole=False).leader_of(ORDERS) == 1
