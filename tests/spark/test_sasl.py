"""The data source and the official connector over SASL_SSL, with the rights that they need and no others."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from chronik.client import Admin, ClientOptions, Cluster
from chronik.client.admin import NewTopic
from chronik.client.apis import Api
from chronik.client.connection import Connection
from chronik.client.login import Login
from chronik.client.options import BrokerAddress, parse_bootstrap
from chronik.client.security import create_acls, put_user
from chronik.security.acls import AclBinding, Operation, ResourceType
from chronik.testing import free_ports
from chronik.wire.api import ApiKey
from tests.node import ChronikNode
from tests.process import HOST
from tests.tls import make_certificate

TOPICS = {"kafka": "by-connector", "chronik": "by-source"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
WAYS = (*MECHANISMS, "a delegation token")
PASSWORD = "spark's password"
LOGIN = "org.apache.kafka.common.security."
EXPIRES_S = 4_000_000_000


@dataclass(frozen=True)
class Closed:
    """A node whose clients come by SASL_SSL."""

    port: int
    cert: Path
    token_file: Path
    """A token of the OAuth issuer."""

    def options(self, way: str) -> dict[str, str]:
        given = {
            "kafka.bootstrap.servers": f"{HOST}:{self.port}",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": way if way in MECHANISMS else "SCRAM-SHA-256",
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": str(self.cert),
        }
        if way == "OAUTHBEARER":
            handler = f"{LOGIN}oauthbearer.OAuthBearerLoginCallbackHandler"
            return given | {
                "kafka.sasl.jaas.config": f"{LOGIN}oauthbearer.OAuthBearerLoginModule required;",
                "kafka.sasl.login.callback.handler.class": handler,
                "kafka.sasl.oauthbearer.token.endpoint.url": self.token_file.as_uri(),
                "kafka.sasl.oauthbearer.token": self.token_file.read_text(),  # the data source's way
            }
        module = "plain.PlainLoginModule" if way == "PLAIN" else "scram.ScramLoginModule"
        name, password, more = "spark", PASSWORD, ""
        if way not in MECHANISMS:
            (name, password), more = asyncio.run(self._delegation_token()), ' tokenauth="true"'
        who = f'username="{name}" password="{password}"{more}'
        return given | {"kafka.sasl.jaas.config": f"{LOGIN}{module} required {who};"}

    async def _delegation_token(self) -> tuple[str, str]:
        login = Login(mechanism="SCRAM-SHA-256", user="spark", password=PASSWORD)
        tls = ssl.create_default_context(cafile=str(self.cert))
        connection = await Connection.open(
            BrokerAddress(HOST, self.port), ClientOptions(login=login, tls=tls)
        )
        api = Api(ApiKey.CREATE_DELEGATION_TOKEN, 2, 2)
        made = await connection.request(api, {"renewers": [], "max_lifetime": -1})
        connection.close()
        return made.token_id, base64.b64encode(made.hmac).decode()


@pytest.fixture(scope="module")
def closed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Closed]:
    folder = tmp_path_factory.mktemp("closed")
    cert, key = make_certificate(folder)
    signer = rsa.generate_private_key(65537, 2048)
    document = RSAAlgorithm.to_jwk(signer.public_key(), as_dict=True) | {"alg": "RS256", "kid": "one"}
    (folder / "jwks.json").write_text(json.dumps({"keys": [document]}))
    claims = {"sub": "spark", "aud": "chronik", "scope": "any", "iat": 1_700_000_000, "exp": EXPIRES_S}
    token = folder / "token.jwt"
    token.write_text(jwt.encode(claims, signer, "RS256", headers={"kid": "one"}))
    urls = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
    assert spark._jvm is not None
    spark._jvm.java.lang.System.setProperty(urls, token.as_uri())
    (port,) = free_ports(1)
    with ChronikNode(
        folder,
        listeners=f"CLIENTS://{HOST}:{port}",
        listener_security_protocol_map="CLIENTS:SASL_SSL",
        kafka_tls_cert=cert,
        kafka_tls_key=key,
        sasl_enabled_mechanisms=",".join(MECHANISMS),
        sasl_oauthbearer_jwks=folder / "jwks.json",
        sasl_oauthbearer_expected_audience="chronik",
        authorizer=True,
        super_users="User:ANONYMOUS",
        env={"CHRONIK_DELEGATION_TOKEN_SECRET_KEY": "what tokens are made with"},
    ) as node:
        asyncio.run(_prepare(node.bootstrap))
        yield Closed(port, cert, token)
    spark._jvm.java.lang.System.clearProperty(urls)


async def _prepare(bootstrap: str) -> None:
    async with Cluster(parse_bootstrap(bootstrap), ClientOptions()) as cluster:
        await put_user(cluster, "spark", PASSWORD)
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
@pytest.mark.parametrize("way", WAYS)
def test_written_and_read_with_a_login(spark: SparkSession, closed: Closed, way: str, kind: str) -> None:
    topic, options = TOPICS[kind], closed.options(way)
    frame = spark.range(50).selectExpr("cast(id as string) as key", f"concat(id, ' by {way}') as value")
    frame.write.format(kind).options(**options, topic=topic).mode("append").save()
    read = spark.read.format(kind).options(**options, subscribe=topic).load()
    values = [str(row.value) for row in read.selectExpr("cast(value as string) as value").collect()]
    found = sorted(int(value.split()[0]) for value in values if value.endswith(f" by {way}"))
    assert found == list(range(50))


@pytest.mark.parametrize("kind", TOPICS)
def test_a_topic_without_the_right_is_not_read(spark: SparkSession, closed: Closed, kind: str) -> None:
    options = closed.options("SCRAM-SHA-512")
    with pytest.raises((PySparkException, Py4JError), match=r"(?i)not authorized|authorization"):
        spark.read.format(kind).options(**options, subscribe="secrets").load().collect()
