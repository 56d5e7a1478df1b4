"""A real cluster for test suites: nodes as processes on free loopback ports, in a temporary directory.

    from chronik.testing import Cluster

    with Cluster(nodes=3) as cluster:
        cluster.create_topic("orders", partitions=3)
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all")
        ...
        cluster.kill(cluster.leader_of("orders"))
        ...
        cluster.assert_replicas_agree()

Nodes can be killed, stopped, paused and started again; the network between them can be cut and healed, since
the traffic between nodes goes through proxies in this process. Clients always reach every node.

Not its job: producing and consuming. Any Kafka client does that.
"""

from __future__ import annotations

from chronik.testing.cluster import Cluster
from chronik.testing.nodes import ClusterFailed
from chronik.testing.ports import free_ports
from chronik.testing.replicas import ReplicasDiffer, ReplicaView

__all__ = ["Cluster", "ClusterFailed", "ReplicaView", "ReplicasDiffer", "free_ports"]
