"""One broker for all compatibility tests; each test has topics of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.apache import ApacheKafka
from tests.configs import set_configs
from tests.node import ChronikNode
from tests.process import ServerProcess


@pytest.fixture(scope="session")
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    kind = ApacheKafka if request.config.getoption("--broker") == "kafka" else ChronikNode
    with kind(tmp_path_factory.mktemp("broker")) as server:
        if isinstance(server, ChronikNode):
            # Members of KIP-848 groups move at their next heartbeat: tests need not wait five seconds for it.
            set_configs(server.bootstrap, "broker", "1", {"group.consumer.heartbeat.interval.ms": "500"})
        yield server
        server.stop()


@pytest.fixture
def topic() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def only_chronik(request: pytest.FixtureRequest) -> None:
    """For tests of what Apache Kafka does not have."""
    if request.config.getoption("--broker") != "chronik":
        pytest.skip("about chronik alone")
