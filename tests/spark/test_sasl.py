"""The data source and the official connector over SASL_SSL, with the rights that they need and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from chronik.client import Admin, ClientOptions, Cluster
from chronik.client.admin import NewTopic
from chronik.client.options import parse_bootstrap
from chronik.client.security import create_acls, put_user
from chronik.security.acls import AclBinding, Operation, ResourceType
from chronik.testing import free_ports
from tests.node import ChronikNode
from tests.process import HOST
from tests.tls import make_certificate

TOPICS = {"kafka": "by-connector", "chronik": "by-source"}


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("closed")
    cert, key = make_certificate(folder)
    (port,) = free_ports(1)
    with ChronikNode(
        folder,
        listeners=f"CLIENTS://{HOST}:{port}",
        listener_security_protocol_map="CLIENTS:SASL_SSL",
        kafka_tls_cert=cert,
        kafka_tls_key=key,
        authorizer=True,
        super_users="User:ANONYMOUS",
    ) as node:
        asyncio.run(_prepare(node.bootstrap))
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        yield {
            "kafka.bootstrap.servers": f"{HOST}:{port}",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": f'{module} required username="spark" password="spark\'s password";',
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": str(cert),
        }


async def _prepare(bootstrap: str) -> None:
    async with Cluster(parse_bootstrap(bootstrap), ClientOptions()) as cluster:
        await put_user(cluster, "spark", "spark's password")
        names = (*TOPICS.values(), "secrets")
        await Admin(cluster).create_topics([NewTopic(name=name, partitions=2) for name in names])
        rights = [
            (ResourceType.TOPIC, name, operation)
            for name in TOPICS.values()
            for operation in (Operation.READ, Operation.WRITE)
        ]
        rights += [(ResourceType.GROUP, "*", Operation.READ)]
        rights += [
            (ResourceType.TRANSACTIONAL_ID, "*", operation)
            for operation in (Operation.WRITE, Operation.DESCRIBE)
        ]
        bindings = [
            AclBinding(resource_type=kind, resource_name=name, principal="User:spark", operation=operation)
            for kind, name, operation in rights
        ]
        await create_acls(cluster, bindings)


@pytest.mark.parametrize("kind", TOPICS)
def test_written_and_read_with_a_login(spark: SparkSession, options: dict[str, str], kind: str) -> None:
    topic = TOPICS[kind]
    frame = spark.range(50).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    frame.write.format(kind).options(**options, topic=topic).mode("append").save()
    read = spark.read.format(kind).options(**options, subscribe=topic).load()
    found = sorted(int(row.value) for row in read.selectExpr("cast(value as string) as value").collect())
    assert found == list(range(50))
    with pytest.raises((PySparkException, Py4JError), match=r"(?i)not authorized|authorization"):
        spark.read.format(kind).options(**options, subscribe="secrets").load().collect()
