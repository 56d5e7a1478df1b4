"""One Spark session and one node for all tests: starting either costs seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chronik.spark.session import start_session
from tests.java import JARS
from tests.node import ChronikNode
from tests.spark.topics import Topics

CONNECTOR_JARS = sorted(map(str, (JARS / "spark").glob("*.jar")))


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChronikNode]:
    with ChronikNode(tmp_path_factory.mktemp("node"), wal_profile="ultra") as running:
        assert isinstance(running, ChronikNode)
        yield running


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    if not CONNECTOR_JARS:
        pytest.fail(f"the official connector is not in {JARS / 'spark'}: run make jars")
    folder: Path = tmp_path_factory.mktemp("spark")
    session = start_session(
        "tests",
        master="local[2]",
        jars=CONNECTOR_JARS,
        conf={
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.sql.streaming.checkpointLocation": str(folder / "checkpoints"),
        },
    )
    yield session
    session.stop()


@pytest.fixture
def topics(node: ChronikNode) -> Iterator[Topics]:
    with Topics(node.bootstrap) as made:
        yield made
