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

QUICK = "-XX:TieredStopAtLevel=1"
JAR_FILES = sorted(
    str(jar) for kind in ("spark", "spark-delta", "spark-iceberg") for jar in (JARS / kind).glob("*.jar")
)


@pytest.fixture(scope="package")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChronikNode]:
    folder = tmp_path_factory.mktemp("node")
    with ChronikNode(
        folder, wal_profile="ultra", cleaner_backoff_ms=50, retention_check_interval_ms=200
    ) as running:
        assert isinstance(running, ChronikNode)
        yield running


@pytest.fixture(scope="package", autouse=True)
def quick_compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No JVM of a test lives long enough for Java's second compiler, which took half of the CPU.

    As Spark's own settings, which jobs in processes of their own find as well.
    """
    folder = tmp_path_factory.mktemp("conf")
    options = "".join(f"spark.{part}.defaultJavaOptions {QUICK}\n" for part in ("driver", "executor"))
    (folder / "spark-defaults.conf").write_text(options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONF_DIR", str(folder))
        yield


@pytest.fixture(scope="package")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the session's Iceberg catalog."""
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory, lake: Path) -> Iterator[SparkSession]:
    if not JAR_FILES:
        pytest.fail(f"the official connector is not in {JARS / 'spark'}: run make jars")
    folder: Path = tmp_path_factory.mktemp("spark")
    extensions = (
        "io.delta.sql.DeltaSparkSessionExtension",
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    )
    session = start_session(
        "tests",
        master="local[2]",
        jars=JAR_FILES,
        conf={
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.databricks.delta.snapshotPartitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.sql.streaming.checkpointLocation": str(folder / "checkpoints"),
            "spark.sql.extensions": ",".join(extensions),
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.sql.catalog.archive": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.archive.type": "hadoop",
            "spark.sql.catalog.archive.warehouse": str(lake),
        },
    )
    yield session
    session.stop()


@pytest.fixture
def topics(node: ChronikNode) -> Iterator[Topics]:
    with Topics(node.bootstrap) as made:
        yield made
