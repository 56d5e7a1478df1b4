"""Apache Kafka 4.1 as a single KRaft node: the broker that every compatibility test must also pass on."""

from __future__ import annotations

import base64
import subprocess
import uuid
from pathlib import Path

from chronik.testing import free_ports
from tests import java
from tests.process import HOST, ServerProcess

HEAP = ("-Xms1g", "-Xmx1g")
"""What Apache Kafka's own start script gives it."""
STOCK = (*HEAP, "-XX:+UseG1GC")
SHORT_LIVED = (*HEAP, *java.QUICK)
"""For tests: a third less CPU until it is ready. Benchmarks take what is stock."""


class ApacheKafka(ServerProcess):
    name = "Apache Kafka"

    options = STOCK
    plugin: Path | None = None
    """Source of a class that the settings name."""

    def __init__(self, folder: Path, **settings: object) -> None:
        kafka, controller = free_ports(2)
        super().__init__(folder, kafka_port=kafka)
        self.data_dir = folder / "data"
        self._classes = folder / "classes"
        self.properties = folder / "server.properties"
        folder.mkdir(parents=True, exist_ok=True)
        values = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "listeners": f"PLAINTEXT://{HOST}:{kafka},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{kafka}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.data_dir,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 5,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 5,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            **settings,
        }
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in values.items()))

    def command(self) -> list[str]:
        command = java.command("kafka.Kafka", str(self.properties), options=self.options)
        if self.plugin is not None:
            at = command.index("-cp") + 1
            command[at] = f"{self._classes}:{command[at]}"
        return command

    def prepare(self) -> None:
        if self.plugin is not None:
            compiler = ["javac", "-cp", java.classpath(), "-d", str(self._classes), str(self.plugin)]
            subprocess.run(compiler, check=True)
        if not (self.data_dir / "meta.properties").exists():
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
            java.run(
                "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(self.properties)
            )

    def segment_files(self, topic: str) -> list[Path]:
        return sorted(self.data_dir.rglob(f"{topic}-*/*.log"))
