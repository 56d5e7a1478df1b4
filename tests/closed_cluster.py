"""Three nodes of chronik or of Apache Kafka that are closed: clients by SASL_SSL, ACLs, mutual TLS inside.

Both are set up the same way: the listener CLIENTS takes every mechanism, the user alice has the rights that a
test gives her and admin has all; the nodes speak to each other over TLS and show each other certificates. An
open listener on loopback is there for what a test prepares.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from chronik.client import Admin, ClientOptions
from chronik.client import Cluster as ClientCluster
from chronik.client.admin import NewTopic
from chronik.client.options import parse_bootstrap
from chronik.client.security import create_acls, put_user
from chronik.security.acls import AclBinding, Operation, ResourceType
from chronik.testing import Cluster, free_ports
from tests import java
from tests.apache_cluster import ApacheCluster
from tests.process import HOST
from tests.security.nodes import certificates, node_tls
from tests.tls import make_certificate

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
BY_TOKEN = "a delegation token"
WAYS = (*MECHANISMS, BY_TOKEN)
"""How clients log in."""
PASSWORD = "alice's password"
EXPIRES_S = 4_000_000_000
Right = tuple[ResourceType, str, Operation]

_KAFKA = "org.apache.kafka.common.security"
_ALLOWED_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
_TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
_SECRET, _TOKEN_KEY = "what the nodes know", "what tokens are made with"


class Nodes(Protocol):
    """What the tests need of either kind of cluster."""

    @property
    def bootstrap(self) -> Any: ...
    def leader_of(self, topic: str, partition: int = 0) -> int: ...
    def kill(self, node_id: int, /) -> None: ...


_Started = tuple[Nodes, Callable[[int], None]]


@dataclass(frozen=True)
class ClosedCluster:
    cluster: Nodes
    folder: Path
    ports: dict[int, int]
    cert: Path
    token: str
    """Of the OAuth issuer, about alice."""
    restart: Callable[[int], None]
    """Start a node again that was killed; returns when it takes part."""

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self.ports.values())

    @property
    def token_file(self) -> Path:
        return self.folder / "token.jwt"

    @property
    def allowed_urls(self) -> tuple[str, str]:
        """The system property without which a Java client reads no token from a file."""
        return _ALLOWED_URLS, self.token_file.as_uri()

    def java_options(self) -> tuple[str, ...]:
        return (*java.TOOL_OPTIONS, "-D{}={}".format(*self.allowed_urls))

    def settings(self, way: str, user: str = "alice") -> dict[str, str]:
        """Of a client, by the names of Apache Kafka's Java client."""
        name, password, more = user, PASSWORD, ""
        if way == BY_TOKEN:
            (name, password), more, way = self._delegation_token(), ' tokenauth="true"', "SCRAM-SHA-256"
        module = {
            "PLAIN": "plain.PlainLoginModule",
            "OAUTHBEARER": "oauthbearer.OAuthBearerLoginModule",
        }.get(way, "scram.ScramLoginModule")
        who = "" if way == "OAUTHBEARER" else f' username="{name}" password="{password}"{more}'
        found = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": way,
            "sasl.jaas.config": f"{_KAFKA}.{module} required{who};",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.cert),
        }
        if way == "OAUTHBEARER":
            handler = f"{_KAFKA}.oauthbearer.OAuthBearerLoginCallbackHandler"
            found |= {
                "sasl.login.callback.handler.class": handler,
                "sasl.oauthbearer.token.endpoint.url": self.token_file.as_uri(),
                "sasl.oauthbearer.token": self.token,  # chronik's own client reads it from here
            }
        return found

    def properties(self, way: str, user: str = "alice") -> Path:
        path = self.folder / f"{user}-{way}.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in self.settings(way, user).items()))
        return path

    def python_options(self, mechanism: str) -> dict[str, Any]:
        """For kafka-python and aiokafka, but for how they take a token and a certificate."""
        who = {"sasl_plain_username": "alice", "sasl_plain_password": PASSWORD}
        return {
            "bootstrap_servers": self.bootstrap,
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": mechanism,
            **({} if mechanism == "OAUTHBEARER" else who),
        }

    def librdkafka_options(self, mechanism: str, user: str = "alice", **more: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.cert),
            "sasl.mechanisms": mechanism,
            **(
                {"oauth_cb": lambda _: (self.token, EXPIRES_S)}
                if mechanism == "OAUTHBEARER"
                else {"sasl.username": user, "sasl.password": PASSWORD}
            ),
            **more,
        }

    def _delegation_token(self) -> tuple[str, str]:
        """Id and secret of one that Apache Kafka's tool made for alice."""
        config = ("--command-config", str(self.properties("SCRAM-SHA-512")))
        wanted = ("--create", "--max-life-time-period", "-1", "--bootstrap-server", self.bootstrap)
        made = java.run(_TOKENS, *wanted, *config).out
        found = re.search(r"^(\S+)\s+(\S+={0,2})\s+User:alice", made, re.MULTILINE)
        assert found is not None, made
        return found[1], found[2]


@contextlib.contextmanager
def closed_cluster(
    folder: Path, broker: str, topics: Mapping[str, int], rights: tuple[Right, ...]
) -> Iterator[ClosedCluster]:
    """`broker` is that of `--broker`; `topics` are names and partitions, `rights` those of alice."""
    cert, key = make_certificate(folder)
    token = _make_token(folder)
    ports = dict(zip((1, 2, 3), free_ports(3), strict=True))
    start = _apache if broker == "kafka" else _chronik
    with start(folder, ports, cert, key) as (cluster, restart):
        asyncio.run(_prepare(cluster.bootstrap, topics, rights))
        yield ClosedCluster(cluster, folder, ports, cert, token, restart)


def _make_token(folder: Path) -> str:
    signer = rsa.generate_private_key(65537, 2048)
    document = RSAAlgorithm.to_jwk(signer.public_key(), as_dict=True) | {"alg": "RS256", "kid": "one"}
    (folder / "jwks.json").write_text(json.dumps({"keys": [document]}))
    claims = {"sub": "alice", "aud": "chronik", "scope": "any", "iat": 1_700_000_000, "exp": EXPIRES_S}
    token = jwt.encode(claims, signer, "RS256", headers={"kid": "one"})
    (folder / "token.jwt").write_text(token)
    return token


@contextlib.contextmanager
def _chronik(folder: Path, ports: Mapping[int, int], cert: Path, key: Path) -> Iterator[_Started]:
    cluster = Cluster(
        nodes=3,
        can_partition=False,
        listener_security_protocol_map="CLIENTS:SASL_SSL",
        kafka_tls_cert=cert,
        kafka_tls_key=key,
        sasl_enabled_mechanisms=",".join(MECHANISMS),
        sasl_oauthbearer_jwks=folder / "jwks.json",
        sasl_oauthbearer_expected_audience="chronik",
        authorizer=True,
        super_users="User:ANONYMOUS;User:admin",
        env={"CHRONIK_CLUSTER_SECRET": _SECRET, "CHRONIK_DELEGATION_TOKEN_SECRET_KEY": _TOKEN_KEY},
    )
    made = certificates(folder / "nodes")

    def start(node: int, *, wait: bool = True) -> None:
        files = {f"CHRONIK_{name.upper()}": str(path) for name, path in node_tls(made, node).items()}
        cluster.start(node, env={"CHRONIK_LISTENERS": f"CLIENTS://{HOST}:{ports[node]}", **files}, wait=wait)

    try:
        for node in ports:
            start(node, wait=False)
        cluster.wait_ready()
        yield cluster, start
    finally:
        cluster.close()


@contextlib.contextmanager
def _apache(folder: Path, ports: Mapping[int, int], cert: Path, key: Path) -> Iterator[_Started]:
    both, jwks = folder / "both.pem", (folder / "jwks.json").as_uri()
    both.write_text(key.read_text() + cert.read_text())
    users = " ".join(f'user_{name}="{PASSWORD}"' for name in ("alice", "admin"))
    jaas = {
        "plain": f"plain.PlainLoginModule required {users};",
        "scram-sha-256": "scram.ScramLoginModule required;",
        "scram-sha-512": "scram.ScramLoginModule required;",
        "oauthbearer": "oauthbearer.OAuthBearerLoginModule required;",
    }
    settings = {
        "listener.security.protocol.map": "CLIENTS:SASL_SSL,NODES:SSL,CONTROLLER:SSL,PLAINTEXT:PLAINTEXT",
        "inter.broker.listener.name": "NODES",
        "listener.name.nodes.ssl.client.auth": "required",
        "listener.name.controller.ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": both,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": cert,
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        **{f"listener.name.clients.{name}.sasl.jaas.config": f"{_KAFKA}.{it}" for name, it in jaas.items()},
        "listener.name.clients.oauthbearer.sasl.server.callback.handler.class": (
            f"{_KAFKA}.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        "sasl.oauthbearer.jwks.endpoint.url": jwks,
        "sasl.oauthbearer.expected.audience": "chronik",
        "delegation.token.secret.key": _TOKEN_KEY,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin;User:CN=node",
    }
    nodes = dict(zip(ports, free_ports(3), strict=True))
    cluster = ApacheCluster(
        folder,
        listeners={number: {"CLIENTS": ports[number], "NODES": nodes[number]} for number in ports},
        settings=settings,
        options=(f"-D{_ALLOWED_URLS}={jwks}",),
    )

    def start(node: int) -> None:
        cluster.start(node)

    try:
        cluster.prepare()
        cluster.start()
        yield cluster, start
    finally:
        cluster.close()


async def _prepare(bootstrap: Any, topics: Mapping[str, int], rights: tuple[Right, ...]) -> None:
    where = parse_bootstrap(bootstrap) if isinstance(bootstrap, str) else bootstrap
    async with ClientCluster(where, ClientOptions(deadline_ms=60_000)) as cluster:
        for user in ("alice", "admin"):
            await put_user(cluster, user, PASSWORD)
        made = [NewTopic(name=name, partitions=partitions) for name, partitions in topics.items()]
        await Admin(cluster).create_topics(made)
        await create_acls(
            cluster,
            [
                AclBinding(
                    resource_type=kind, resource_name=name, principal="User:alice", operation=operation
                )
                for kind, name, operation in rights
            ],
        )
