"""One cluster of three nodes for all tests that leave it as they found it; others start their own."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from chronik.testing import Cluster

Figure: TypeAlias = Callable[[str, float, float], None]


@pytest.fixture(scope="package")
def shared_cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, replica_lag_time_max_ms=2_000) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """Healthy before the test; after it all nodes run and all replicas agree."""
    shared_cluster.heal()
    shared_cluster.start()
    shared_cluster.wait_ready()
    yield shared_cluster
    shared_cluster.heal()
    shared_cluster.start()
    shared_cluster.wait_ready()


@pytest.fixture
def topic() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def rounds(request: pytest.FixtureRequest) -> int:
    """How often tests that repeat something do so."""
    return int(request.config.getoption("--cluster-rounds"))


@pytest.fixture(scope="session")
def is_long(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--cluster-long"))


@pytest.fixture(scope="session")
def figure(is_long: bool) -> Figure:
    """Tell how many seconds something took, and how many it may take.

    How fast things are is for benchmarks to say: a busy machine fails no test. Only the full length insists,
    which has the machine to itself.
    """

    def tell(what: str, seconds: float, seconds_max: float) -> None:
        told = f"{what}: {seconds * 1000:.1f} ms, aim {seconds_max * 1000:g} ms"
        print(told)
        assert seconds < seconds_max or not is_long, told

    return tell
