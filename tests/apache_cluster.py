"""Apache Kafka 4.1 as three KRaft nodes, each broker and controller in one, replication factor 3."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient

from chronik.testing import free_ports
from tests import java
from tests.apache import HEAP
from tests.process import HOST, POLL_S, ServerProcess, brokers_seen


class ApacheNode(ServerProcess):
    name = "Apache Kafka"

    def __init__(
        self,
        folder: Path,
        node_id: int,
        kafka: int,
        voters: dict[int, int],
        cluster: str,
        *,
        listeners: Mapping[str, int],
        settings: Mapping[str, object],
        options: tuple[str, ...],
    ) -> None:
        super().__init__(folder, kafka_port=kafka)
        self._options = options
        self.node_id = node_id
        self.data_dir = folder / "data"
        self._cluster = cluster
        self.properties = folder / "server.properties"
        folder.mkdir(parents=True, exist_ok=True)
        named = {"PLAINTEXT": kafka, **listeners}
        advertised = ",".join(f"{name}://{HOST}:{port}" for name, port in named.items())
        values = {
            "process.roles": "broker,controller",
            "node.id": node_id,
            "controller.quorum.voters": ",".join(f"{n}@{HOST}:{port}" for n, port in voters.items()),
            "listeners": f"{advertised},CONTROLLER://{HOST}:{voters[node_id]}",
            "advertised.listeners": advertised,
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.data_dir,
            "default.replication.factor": 3,
            "min.insync.replicas": 2,
            "offsets.topic.replication.factor": 3,
            "transaction.state.log.replication.factor": 3,
            "transaction.state.log.min.isr": 2,
            "share.coordinator.state.topic.replication.factor": 3,
            "share.coordinator.state.topic.min.isr": 2,
            "group.initial.rebalance.delay.ms": 0,
            **settings,
        }
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in values.items()))

    def command(self) -> list[str]:
        return java.command(
            "kafka.Kafka", str(self.properties), options=(*HEAP, "-XX:+UseG1GC", *self._options)
        )

    def prepare(self) -> None:
        if not (self.data_dir / "meta.properties").exists():
            java.run(
                "kafka.tools.StorageTool",
                "format",
                f"--cluster-id={self._cluster}",
                "-c",
                str(self.properties),
            )


class ApacheCluster:
    """What benchmarks and tests need of a cluster; chronik's own `Cluster` offers the same."""

    def __init__(
        self,
        folder: Path,
        nodes: int = 3,
        *,
        listeners: Mapping[int, Mapping[str, int]] | None = None,
        settings: Mapping[str, object] | None = None,
        options: tuple[str, ...] = (),
    ) -> None:
        """`listeners` are ports by node and name, beside the open one; `options` are those of the JVM."""
        ports = free_ports(2 * nodes)
        controllers = {number + 1: ports[number] for number in range(nodes)}
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        self._nodes = {
            number: ApacheNode(
                folder / f"node{number}",
                number,
                kafka,
                controllers,
                cluster,
                listeners=(listeners or {}).get(number, {}),
                settings=settings or {},
                options=options,
            )
            for number, kafka in zip(controllers, ports[nodes:], strict=True)
        }

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(self._nodes)

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self._nodes.values())

    def prepare(self) -> None:
        for node in self._nodes.values():
            node.prepare()

    def start(self, *node_ids: int, timeout_s: float = 120) -> float:
        """Start these nodes, by default all, at the same time; returns seconds until all know each other."""
        began = time.monotonic()
        for node_id in node_ids or self.nodes:
            self._nodes[node_id].spawn()
        running = [node for node in self._nodes.values() if node.running]
        while not all(brokers_seen(node.kafka_port) == len(running) for node in running):
            if time.monotonic() - began > timeout_s:
                raise TimeoutError(f"Apache Kafka is not ready after {timeout_s} s")
            time.sleep(POLL_S)
        return time.monotonic() - began

    def leader_of(self, topic: str, partition: int = 0) -> int:
        client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return int(client.list_topics(topic, timeout=10).topics[topic].partitions[partition].leader)

    def kill(self, node_id: int) -> None:
        self._nodes[node_id].kill()

    def pid(self, node_id: int) -> int:
        return self._nodes[node_id].pid

    def close(self) -> None:
        for node in self._nodes.values():
            node.kill()


@contextmanager
def apache_cluster(folder: Path) -> Iterator[ApacheCluster]:
    cluster = ApacheCluster(folder)
    try:
        yield cluster
    finally:
        cluster.close()
