"""Reads and writes over TLS: the port in front of the node speaks nothing else."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from chronik.client import Cluster
from chronik.client.admin import Admin, NewTopic
from chronik.spark.options import connect_options
from chronik.testing import free_ports
from tests.node import ChronikNode
from tests.process import HOST
from tests.tls import TlsPort, make_certificate

Options = dict[str, str]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]
) -> Iterator[tuple[ChronikNode, TlsPort]]:
    """A node that sends its clients to a port where they must show a certificate themselves."""
    cert, key = certificate
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(cert))
    context.load_cert_chain(cert, key)
    context.verify_mode = ssl.CERT_REQUIRED
    (port,) = free_ports(1)
    folder = tmp_path_factory.mktemp("node")
    with ChronikNode(folder, wal_profile="ultra", advertise=f"{HOST}:{port}") as node:
        assert isinstance(node, ChronikNode)
        with TlsPort(port, node.kafka_port, context) as tls:
            yield node, tls


def options(tls: TlsPort, certificate: tuple[Path, Path], **more: str) -> Options:
    cert, key = certificate
    return {
        "kafka.bootstrap.servers": f"{HOST}:{tls.port}",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.ca.location": str(cert),
        "kafka.ssl.certificate.location": str(cert),
        "kafka.ssl.key.location": str(key),
        "kafka.default.api.timeout.ms": "10000",
        **more,
    }


def test_written_and_read_over_tls(
    spark: SparkSession,
    secured: tuple[ChronikNode, TlsPort],
    certificate: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    _, tls = secured
    secure = options(tls, certificate)

    async def create() -> None:
        async with Cluster(
            secure["kafka.bootstrap.servers"], connect_options(secure).client_options()
        ) as made:
            await Admin(made).create_topics([NewTopic(name="secret", partitions=2, replication_factor=1)])

    asyncio.run(create())
    before = tls.connections
    frame = spark.range(1000).selectExpr("cast(cast(id as string) as binary) as value")
    frame.write.format("chronik").options(**secure, topic="secret").mode("append").save()
    read = spark.read.format("chronik").options(**secure, subscribe="secret").load()
    assert sorted(row.value for row in read.collect()) == sorted(row.value for row in frame.collect())
    assert tls.connections > before
    stream = spark.readStream.format("chronik").options(
        **secure, subscribe="secret", startingOffsets="earliest"
    )
    writer = stream.load().writeStream.format("parquet").option("path", str(tmp_path / "table"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    writer.start().awaitTermination()
    assert spark.read.parquet(str(tmp_path / "table")).count() == 1000


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kafka.ssl.ca.location": ""}, "certificate verify failed"),
        ({"kafka.security.protocol": "SASL_SSL"}, "kafka.sasl.mechanism is missing"),
        ({"kafka.ssl.ca.location": "/nowhere/ca.pem"}, "/nowhere/ca.pem is not there"),
    ],
)
def test_what_is_wrong_is_said(
    spark: SparkSession,
    secured: tuple[ChronikNode, TlsPort],
    certificate: tuple[Path, Path],
    changes: Options,
    said: str,
) -> None:
    secure = options(secured[1], certificate, **changes)
    with pytest.raises(PySparkException, match=said):
        spark.read.format("chronik").options(**secure, subscribe="secret").load().count()
