"""One node or three, of chronik or of Apache Kafka, as the matrix drives them; and the states they are in."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import confluent_kafka
import confluent_kafka.admin
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from chronik.testing import Cluster
from tests.apache import ApacheKafka
from tests.apache_cluster import ApacheCluster
from tests.node import ChronikNode
from tests.process import ServerProcess, cpu_seconds

_admin: Any = confluent_kafka.admin  # parts of it are not in its type hints
KINDS: Final = ("kafka", "chronik")
DEADLINE_S: Final = 120


class State(NamedTuple):
    title: str
    is_warm: bool
    """All cells run on the same brokers, after a round that does not count; else each has its own."""
    rate_min: float
    """How often as fast as Apache Kafka each cell must be."""
    rate_median: float | None
    """The same of the median of all cells."""
    configs: Mapping[str, Mapping[str, str]]
    """By kind: broker configs that all topics take, internal ones too."""
    topic_configs: Mapping[str, Mapping[str, str]] = {}
    """By kind: what the topics of the loads are created with."""


STATES: Final[dict[str, State]] = {
    "started": State("just started, Apache Kafka does not sync", False, 1.0, 1.5, {}),
    "warm": State("warm, Apache Kafka does not sync", True, 0.9, None, {}),
    "synced": State(
        "warm, both sync each write", True, 2.0, 3.0, {"kafka": {"log.flush.interval.messages": "1"}}
    ),
    "relaxed": State(
        "warm, neither syncs before it answers", True, 1.0, 1.3, {}, {"chronik": {"flush.ms": "1000"}}
    ),
}


class Side:
    """The brokers of one kind. What they keep is in `folder`."""

    def __init__(
        self, kind: str, nodes: int, folder: Path, topic_config: Mapping[str, str] | None = None
    ) -> None:
        """`topic_config` is what every topic is created with."""
        self.kind = kind
        self._topic_config = dict(topic_config or {})
        self.nodes = nodes
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._one: ServerProcess | None = None
        self._three: ApacheCluster | Cluster | None = None
        if nodes == 1:
            self._one = (ApacheKafka if kind == "kafka" else ChronikNode)(folder)
        elif kind == "kafka":
            self._three = ApacheCluster(folder, nodes)
        else:
            self._three = Cluster(nodes, folder=folder, can_partition=False)

    def prepare(self) -> None:
        """What need not count as starting: Apache Kafka's formatting of its folder."""
        if self._one is not None:
            self._one.prepare()
        elif isinstance(self._three, ApacheCluster):
            self._three.prepare()

    def start(self) -> None:
        if self._one is not None:
            self._one.start()
        elif self._three is not None:
            self._three.start()

    def close(self) -> None:
        if self._one is not None:
            self._one.kill()
        elif self._three is not None:
            self._three.close()

    def kill_leader(self, topic: str) -> None:
        """SIGKILL for the node that leads the topic's first partition; a lone node is started again."""
        if self._one is not None:
            self._one.kill()
            self._one.start()
        elif self._three is not None:
            self._three.kill(self._three.leader_of(topic))

    @property
    def bootstrap(self) -> str:
        found = self._one or self._three
        assert found is not None
        return found.bootstrap

    @property
    def pids(self) -> list[int]:
        if self._one is not None:
            return [self._one.pid]
        assert self._three is not None
        return [pid for node in self._three.nodes if (pid := self._three.pid(node)) is not None]

    def cpu_seconds(self) -> float:
        return sum(map(cpu_seconds, self.pids))

    def rss_mb(self) -> float:
        """Of a node, on average."""
        sizes = []
        for pid in self.pids:
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    sizes.append(int(line.split()[1]) / 1000)
        return sum(sizes) / len(sizes)

    def forget_pages(self) -> None:
        """Let the kernel drop what it keeps of these brokers' files, so that reading is reading from disk."""
        os.sync()
        for path in self.folder.rglob("*.log"):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    # --- topics --------------------------------------------------------------------------------------

    def admin(self) -> AdminClient:
        client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        client.list_topics(timeout=DEADLINE_S)
        return client

    def create(self, *names: str, partitions: int = 1) -> float:
        admin = self.admin()
        began = time.monotonic()
        wanted = [NewTopic(name, partitions, self.nodes, config=self._topic_config) for name in names]
        for future in admin.create_topics(wanted).values():
            future.result(DEADLINE_S)
        taken = time.monotonic() - began
        for name in names:
            self._until_led(admin, name, partitions)
        return taken

    def _until_led(self, admin: AdminClient, name: str, partitions: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            found = admin.list_topics(name, timeout=DEADLINE_S).topics[name].partitions
            if len(found) == partitions and all(one.leader >= 0 for one in found.values()):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} has no leaders")

    def delete(self, *names: str) -> None:
        admin = self.admin()  # kept until all is answered: its end would be the end of the answers
        for future in admin.delete_topics(list(names)).values():
            future.result(DEADLINE_S)

    def configure(self, values: Mapping[str, str]) -> None:
        """Change a config of each broker while it runs. librdkafka cannot name the default of all."""
        if not values:
            return
        admin = self.admin()
        for broker in admin.list_topics(timeout=DEADLINE_S).brokers:
            entries = [
                _admin.ConfigEntry(name, value, incremental_operation=_admin.AlterConfigOpType.SET)
                for name, value in values.items()
            ]
            kind = _admin.ConfigResource.Type.BROKER
            resource = _admin.ConfigResource(kind, str(broker), incremental_configs=entries)
            for future in admin.incremental_alter_configs([resource]).values():
                future.result(DEADLINE_S)

    def producer(self, **config: object) -> confluent_kafka.Producer:
        base = {"bootstrap.servers": self.bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0}
        return confluent_kafka.Producer({**base, **config})

    def consumer(self, group: str, **config: object) -> confluent_kafka.Consumer:
        base = {"bootstrap.servers": self.bootstrap, "group.id": group, "log_level": 0}
        return confluent_kafka.Consumer({**base, "enable.auto.commit": False, **config})
