"""What a node signs when it logs in names the certificate that it was shown: nobody hands its login on."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from chronik.client.connection import Connection
from chronik.client.login import NODE_MECHANISM, Login
from chronik.client.options import BrokerAddress
from chronik.links.authority import make_certificates, node_files
from chronik.metadata.commands import Endpoint, RegisterBroker
from chronik.metadata.levels import LEVEL_NODE_KEY
from chronik.model import ErrorCode, RequestError
from chronik.node import Node
from chronik.security.exchange import AuthenticationFailed
from chronik.security.scram import ScramClient, ScramServer
from tests.unit.admin.support import HOST, Http, with_node
from tests.unit.server.test_node_keys import CREDENTIAL, KEY, SCRAM, authenticator

SECRET = "a secret that the nodes share"


@pytest.mark.parametrize("seen", [b"", b"another certificate"])
def test_a_login_over_another_certificate_is_not_the_nodes(seen: bytes) -> None:
    def exchanged(channel: bytes) -> ScramServer:
        server = ScramServer(SCRAM, "of-the-server", channel=b"the server's certificate")
        client = ScramClient(SCRAM, "7", "the secret", "of-the-client", sign=KEY.sign, channel=channel)
        server.first(client.first())
        client.check(server.final(client.final(server.challenge(CREDENTIAL))))
        return server

    found = authenticator(LEVEL_NODE_KEY)
    assert found.own_client("7", exchanged(b"the server's certificate")).principal == "Node:7"
    with pytest.raises(AuthenticationFailed, match="not the key of node 7"):
        found.own_client("7", exchanged(seen))


@contextlib.asynccontextmanager
async def between(folder: Path, port: int) -> AsyncIterator[int]:
    """Somebody whose certificate is believed, too, and who hands on what clients say."""
    cert, key = node_files(folder, 2)
    shown, asked = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    shown.load_cert_chain(cert, key)
    asked.check_hostname, asked.verify_mode = False, ssl.CERT_NONE

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ahead = await asyncio.open_connection(HOST, port, ssl=asked)
        await asyncio.gather(copy(reader, ahead[1]), copy(ahead[0], writer))

    async with await asyncio.start_server(serve, HOST, 0, ssl=shown) as server:
        yield server.sockets[0].getsockname()[1]


def test_a_login_that_is_handed_on_opens_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    make_certificates(folder, "orders", (1, 2), datetime.now(UTC), 2)
    cert, key = node_files(folder, 1)

    async def work(node: Node, _http: Http) -> None:
        other = RegisterBroker(
            broker_id=7,
            incarnation=UUID(int=7),
            endpoints={"kafka": Endpoint(host="h", port=1)},
            public_key=KEY.public,
        )
        await node.parts.metadata.submit(other)
        login = Login(mechanism=NODE_MECHANISM, user="7", password=SECRET, sign=KEY.sign)
        options = replace(node.parts.security.client_options("test"), login=login)
        (await Connection.open(BrokerAddress(HOST, node.kafka_port), options)).close()
        async with between(folder, node.kafka_port) as port:
            with pytest.raises(RequestError) as refused:
                await Connection.open(BrokerAddress(HOST, port), options)
        assert refused.value.code == ErrorCode.sasl_authentication_failed

    with_node(
        tmp_path / "data",
        work,
        authorizer=True,
        cluster_secret=SECRET,
        listener_security_protocol_map="KAFKA:SASL_SSL",
        kafka_tls_cert=cert,
        kafka_tls_key=key,
        kafka_tls_ca=folder / "ca.pem",
    )
