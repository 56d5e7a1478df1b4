"""Makes the archive of classes with which Apache Kafka's tools start in half the time (CDS).

A JVM writes it at its end, of all classes that it loaded: here of one that runs some tools against a node.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests import java
from tests.node import ChronikNode

TOOLS = "org.apache.kafka.tools"
TOPIC = ("--topic", "archived")


def calls(bootstrap: str) -> str:
    """Lines for SeveralTools: what loads the classes that most tools need."""
    tools = (
        (f"{TOOLS}.TopicCommand", "--create", *TOPIC),
        (f"{TOOLS}.ConsoleProducer", *TOPIC),
        (f"{TOOLS}.consumer.ConsoleConsumer", *TOPIC, "--group", "archived", "--timeout-ms", "1000"),
        (f"{TOOLS}.consumer.group.ConsumerGroupCommand", "--describe", "--group", "archived"),
        (f"{TOOLS}.GetOffsetShell", *TOPIC),
        ("kafka.admin.ConfigCommand", "--entity-type", "topics", "--entity-name", "archived", "--describe"),
    )
    return "".join("\t".join([main, "--bootstrap-server", bootstrap, *rest]) + "\n" for main, *rest in tools)


def make(archive: Path) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as name, ChronikNode(Path(name) / "node") as node:
        made = Path(name) / archive.name
        options = (*java.TOOL_OPTIONS, f"-XX:ArchiveClassesAtExit={made}", "-Xlog:cds=off")
        java.run(str(java.SEVERAL_TOOLS), stdin=calls(node.bootstrap), options=options)
        made.rename(archive)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
