"""What a cluster of three does without any fault, seen from inside."""

from __future__ import annotations

import pytest

from chronik.client import Cluster, Producer
from chronik.client.admin import NewTopic
from chronik.client.transactional import Transaction
from chronik.model import TopicPartition
from chronik.sim.loop import EPOCH_MS
from chronik.sim.workload import PATIENT
from tests.sim.quiet import Quiet, hear

TP = TopicPartition("orders", 0)


def test_creating_a_topic_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Of all nodes together, however many partitions and followers there are."""
    quiet = Quiet(3)

    async def main() -> None:
        await quiet.start()
        hear(caplog)
        await quiet.create(NewTopic(name="orders", partitions=12))
        await quiet.cluster.stop()

    quiet.world.run(main(), seconds_max=300, steps_max=3_000_000)
    assert [message for message in caplog.messages if "orders" in message] == [
        "topic orders created: 12 partitions, 3 replicas each"
    ]


def test_an_aborted_transaction_ends_where_there_are_fewer_replicas_than_must_be_in_sync() -> None:
    """A topic with one replica in a cluster with min.insync.replicas=2, as Streams and others make them."""
    quiet = Quiet(3, min_insync_replicas=2)

    async def transact() -> None:
        async with Cluster(quiet.addresses, PATIENT) as cluster:
            transaction = Transaction(cluster, "billing")
            async with Producer(cluster, transaction=transaction) as producer:
                for commits in (False, True):
                    await transaction.begin()
                    await (await producer.send(TP.topic, b"value", partition=0, timestamp_ms=EPOCH_MS))
                    await (transaction.commit if commits else transaction.abort)(producer)

    async def main() -> tuple[int, int]:
        await quiet.start()
        await quiet.create(NewTopic(name=TP.topic, partitions=1, replication_factor=1))
        await quiet.spawn(transact())
        leader = quiet.cluster.leader_of(TP)
        assert leader is not None
        partition = next(one for one in quiet.cluster.partitions(leader) if one.tp == TP)
        assert partition.config.min_insync_replicas == 2
        await quiet.cluster.until(lambda: partition.last_stable_offset == 4, "both transactions ended", 30.0)
        await quiet.cluster.stop()
        return partition.log_end_offset, partition.high_watermark

    # Two records, each with the marker that ends its transaction.
    assert quiet.world.run(main(), seconds_max=300, steps_max=3_000_000) == (4, 4)
