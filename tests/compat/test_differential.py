"""Every API that Apache Kafka and a node both offer, in every version: same request, same answer."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from tests import java
from tests.apache import SHORT_LIVED, ApacheKafka
from tests.compat.differential.compare import Difference
from tests.compat.differential.facts import names, page_facts, read_facts, write_facts
from tests.compat.differential.run import differences
from tests.compat.differential.table import judge
from tests.node import ChronikNode

SETTINGS = {
    "auto_create_topics": False,
    "offsets_topic_partitions": 5,
    "transactions_topic_partitions": 5,
    "group_initial_rebalance_delay_ms": 0,
    "authorizer": True,
    "super_users": "User:ANONYMOUS",
    "audit_log": "off",
}
"""As Apache Kafka is started here. Without automatic topics an unknown topic remains unknown. With ACLs on,
though nobody is kept from anything, the APIs about ACLs do something.
"""
THEIRS = {
    "auto.create.topics.enable": "false",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "metric.reporters": "TakesTelemetry",
}
REQUESTS_MIN = 4_000


class TelemetryKafka(ApacheKafka):
    """Without such a plugin Apache Kafka does not offer the APIs for the metrics of clients."""

    options = SHORT_LIVED
    plugin = java.ROOT / "tests" / "compat" / "foreign" / "java" / "TakesTelemetry.java"


def told(found: list[Difference]) -> str:
    """One line for all versions of a difference."""
    versions: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for one in found:
        versions[one.api, one.case, one.path, str(one.kafka)[:80], str(one.chronik)[:80]].append(one.version)
    return "\n".join(
        f"{api} v{min(which)}-{max(which)}, {case}: {path} is {kafka} there, {chronik} here"
        for (api, case, path, kafka, chronik), which in versions.items()
    )


def test_answers_are_those_of_apache_kafka(
    tmp_path: Path, only_chronik: None, request: pytest.FixtureRequest
) -> None:
    with (
        TelemetryKafka(tmp_path / "kafka", **THEIRS) as kafka,
        ChronikNode(tmp_path / "chronik", **SETTINGS) as node,
    ):
        result = differences(kafka.kafka_port, node.kafka_port)
    verdict = judge(result.found)
    print(
        f"\n{result.requests} requests compared, {result.differing} answered differently: "
        f"{verdict.meant} fields as the table says, {verdict.defects} in known defects, "
        f"{len(verdict.unlisted)} not in the table"
    )
    assert result.requests >= REQUESTS_MIN
    assert not verdict.unlisted, told(verdict.unlisted)
    assert not verdict.stale, f"no difference any more, remove from the table: {verdict.stale}"
    found = page_facts(result, verdict)
    if request.config.getoption("--write-differences"):
        write_facts(found)
    assert names(found) == names(read_facts()), "docs/DIFFERENCES.md is stale: --write-differences"
