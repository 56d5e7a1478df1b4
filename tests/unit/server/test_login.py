"""Listeners that ask who somebody is: what they serve before, and whom they let in (X02)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from chronik.client.apis import API_VERSIONS, DELETE_TOPICS, DESCRIBE_CLUSTER, METADATA
from chronik.client.connection import Connection
from chronik.client.login import Login
from chronik.client.options import BrokerAddress, ClientOptions
from chronik.client.retry import Unanswered, Unreachable
from chronik.config import ConfigError, Settings
from chronik.metadata import commands as c
from chronik.model import AUDIT_TOPIC, ErrorCode, RequestError
from chronik.security.scram import MECHANISMS, make_credential
from chronik.server.handlers import all_handlers
from chronik.server.listeners import listener_specs
from chronik.server.login_failures import DELAY_SECONDS
from chronik.server.sasl import BEFORE_LOGIN, REQUESTS_MAX
from chronik.server.tls import client_context
from chronik.wire.api import ApiKey
from chronik.wire.schema import decode_response, encode_request
from tests.tls import make_certificate
from tests.unit.server.live import Live, live

USERS = ("admin", "alice")
MECHANISM_NAMES = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@contextlib.asynccontextmanager
async def closed(folder: Path, protocol: str = "SASL_PLAINTEXT", **settings: Any) -> AsyncIterator[Live]:
    given = {
        "listeners": "CLIENTS://127.0.0.1:0",
        "listener_security_protocol_map": f"CLIENTS:{protocol}",
        "sasl_enabled_mechanisms": ",".join(MECHANISM_NAMES),
        **settings,
    }
    async with live(folder / "data", **given) as node:
        for user in USERS:
            for mechanism in MECHANISMS.values():
                credential = make_credential(mechanism, f"password of {user}", b"salt", 4096)
                await node.node.parts.metadata.submit(c.PutCredential(user=user, credential=credential))
        yield node


def address(node: Live, listener: str = "CLIENTS") -> BrokerAddress:
    return BrokerAddress("127.0.0.1", node.node.listener_ports[listener])


def login(user: str = "alice", mechanism: str = "SCRAM-SHA-256", **fields: Any) -> Login:
    return Login(mechanism=mechanism, user=user, **{"password": f"password of {user}", **fields})


async def opened(where: BrokerAddress, **options: Any) -> Connection:
    return await Connection.open(where, ClientOptions(connect_timeout_ms=20_000, **options))


@pytest.mark.parametrize("mechanism", MECHANISM_NAMES)
async def test_a_login_opens_everything(tmp_path: Path, mechanism: str) -> None:
    async with closed(tmp_path) as node:
        connection = await opened(address(node), login=login(mechanism=mechanism))
        answer = await connection.request(METADATA, {"topics": None})
        assert [(broker.host, broker.port) for broker in answer.brokers] == [address(node)]
        connection.close()


@pytest.mark.parametrize("mechanism", MECHANISM_NAMES)
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", "password of nobody")])
async def test_a_wrong_name_and_a_wrong_password_look_the_same(
    tmp_path: Path, mechanism: str, user: str, password: str
) -> None:
    async with closed(tmp_path) as node:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(RequestError) as refused:
            await opened(address(node), login=login(user, mechanism, password=password))
        assert refused.value.code == ErrorCode.sasl_authentication_failed
        assert "nobody" not in str(refused.value)
        assert "invalid" in str(refused.value).lower()
        assert loop.time() - began >= DELAY_SECONDS
        authenticator = node.node.parts.security.authenticator
        assert authenticator is not None
        assert authenticator.failures.total == 1


@pytest.mark.parametrize("api_key", [handler.api_key for handler in all_handlers()], ids=lambda key: key.name)
async def test_every_api_before_a_login(tmp_path: Path, api_key: ApiKey) -> None:
    """Any bytes will do: nothing but the header is read of a request that is not served."""
    async with closed(tmp_path) as node:
        reader, writer = await asyncio.open_connection(*address(node))
        if api_key in BEFORE_LOGIN:
            fields = {
                ApiKey.API_VERSIONS: {},
                ApiKey.SASL_HANDSHAKE: {"mechanism": "GSSAPI"},
                ApiKey.SASL_AUTHENTICATE: {"auth_bytes": b""},
            }[api_key]
            writer.write(encode_request(api_key, 0, 1, "x", fields))
            frame = await read_frame(reader)
            assert frame is not None
            answer = decode_response(api_key, 0, frame)[1]
            assert (
                answer.error_code
                == {
                    ApiKey.API_VERSIONS: ErrorCode.none,
                    ApiKey.SASL_HANDSHAKE: ErrorCode.unsupported_sasl_mechanism,
                    ApiKey.SASL_AUTHENTICATE: ErrorCode.illegal_sasl_state,
                }[api_key]
            )
        else:
            writer.write(b"\0\0\0\x0a" + int(api_key).to_bytes(2, "big") + b"\0\0\0\0\0\1\xff\xff")
            assert await read_frame(reader) is None, "closed without an answer"
        writer.close()


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    async with asyncio.timeout(20):
        try:
            size = int.from_bytes(await reader.readexactly(4), "big")
            return await reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None


async def test_a_stranger_cannot_announce_a_large_frame(tmp_path: Path) -> None:
    async with closed(tmp_path) as node:
        reader, writer = await asyncio.open_connection(*address(node))
        writer.write((1024 * 1024).to_bytes(4, "big") + bytes(64))
        assert await read_frame(reader) is None
        writer.close()


async def test_a_stranger_gets_so_many_answers_and_no_more(tmp_path: Path) -> None:
    """What is served before a login costs the node time, too."""
    async with closed(tmp_path) as node:
        for request in (
            encode_request(ApiKey.API_VERSIONS, 0, 1, "x", {}),
            encode_request(ApiKey.SASL_HANDSHAKE, 1, 1, "x", {"mechanism": "GSSAPI"}),
        ):
            reader, writer = await asyncio.open_connection(*address(node))
            writer.write(request * 1_000)
            answers = 0
            while await read_frame(reader) is not None:
                answers += 1
            assert answers <= REQUESTS_MAX
            writer.close()
        connection = await opened(address(node), login=login())
        for _ in range(2 * REQUESTS_MAX):
            await connection.request(
                API_VERSIONS, {"client_software_name": "x", "client_software_version": "1"}
            )
        connection.close()


async def test_messages_without_a_header_after_the_old_handshake(tmp_path: Path) -> None:
    async with closed(tmp_path) as node:
        reader, writer = await asyncio.open_connection(*address(node))
        writer.write(encode_request(ApiKey.SASL_HANDSHAKE, 0, 1, "x", {"mechanism": "PLAIN"}))
        assert await read_frame(reader) is not None
        message = b"\0alice\0password of alice"
        writer.write(len(message).to_bytes(4, "big") + message)
        assert await read_frame(reader) == b""
        writer.write(encode_request(ApiKey.METADATA, 1, 2, "x", {"topics": None}))
        assert await read_frame(reader) is not None, "logged in"
        writer.close()


async def test_a_session_ends_and_a_login_renews_it(tmp_path: Path) -> None:
    now = [1_000_000]
    async with closed(tmp_path, connections_max_reauth_ms=60_000, now_ms=lambda: now[0]) as node:
        connection = await opened(address(node), login=login())
        await connection.request(METADATA, {"topics": None})
        now[0] += 59_000
        await connection._log_in(login())
        now[0] += 59_000
        await connection.request(METADATA, {"topics": None})
        with pytest.raises(RequestError, match="somebody else"):
            await connection._log_in(login("admin"))
        connection = await opened(address(node), login=login())
        now[0] += 60_000
        with pytest.raises(Unanswered):
            await connection.request(METADATA, {"topics": None})


def _of_users(answer: Any) -> list[str]:
    """The topics in a Metadata answer, without the one that the audit log makes when it first writes."""
    return [topic.name for topic in answer.topics if topic.name != AUDIT_TOPIC]


async def test_acls_and_the_nodes_own_clients(tmp_path: Path) -> None:
    async with closed(tmp_path, authorizer=True, super_users="User:admin;User:other") as node:
        await node.topic("orders")
        for user, expected in (("admin", ["orders"]), ("alice", [])):
            connection = await opened(address(node), login=login(user))
            answer = await connection.request(METADATA, {"topics": None})
            assert _of_users(answer) == expected
            connection.close()
        # By the open listener: nobody in particular, unless it is the node itself.
        own = address(node, "KAFKA")
        security = node.node.parts.security
        for given, expected in ((None, []), (security.own_login, ["orders"])):
            connection = await opened(own, login=given)
            answer = await connection.request(METADATA, {"topics": None})
            assert _of_users(answer) == expected
            connection.close()
        with pytest.raises(RequestError):
            await opened(own, login=Login(mechanism="CHRONIK-NODE", user="1", password="guessed"))
        # A query process reads topics, and can neither do more nor pass for a node.
        given = security.query_credentials()
        assert given is not None
        reading = Login(mechanism=given.mechanism, user=given.user, password=given.password)
        assert (given.seed, given.warrant) == (b"", b""), "this node is alone"
        connection = await opened(own, login=reading)
        answer = await connection.request(METADATA, {"topics": None})
        assert _of_users(answer) == ["orders"]
        deleted = await connection.request(
            DELETE_TOPICS, {"topics": [{"name": "orders"}], "topic_names": ["orders"], "timeout": 1000}
        )
        assert deleted.responses[0].error_code == ErrorCode.topic_authorization_failed
        with pytest.raises(RequestError):
            await opened(own, login=Login(mechanism=given.mechanism, user="1", password=given.password))
        with pytest.raises(RequestError):
            await opened(own, login=login())


def test_listeners_that_make_no_sense() -> None:
    with pytest.raises(ConfigError, match="there is no listener X"):
        listener_specs(Settings(listener_security_protocol_map="X:SSL"))
    with pytest.raises(ConfigError, match="kafka_tls_cert"):
        listener_specs(Settings(listener_security_protocol_map="KAFKA:SSL"))
    with pytest.raises(ConfigError, match="no protocol"):
        listener_specs(Settings(listeners="X://127.0.0.1:1"))
    with pytest.raises(ConfigError, match="NAME://host:port"):
        listener_specs(Settings(listeners="X:127.0.0.1:1"))
    named = listener_specs(Settings(listeners="SASL_PLAINTEXT://127.0.0.1:1"))
    assert [spec.protocol for spec in named] == ["PLAINTEXT", "SASL_PLAINTEXT"]


async def test_only_known_nodes_log_in_as_nodes_and_only_by_their_own_listener(tmp_path: Path) -> None:
    protocols = {"listener_security_protocol_map": "KAFKA:SASL_PLAINTEXT,CLIENTS:SASL_PLAINTEXT"}
    async with closed(tmp_path, cluster_secret="of the nodes", **protocols) as node:

        def as_node(user: str) -> Login:
            return Login(mechanism="CHRONIK-NODE", user=user, password="of the nodes")

        (await opened(address(node, "KAFKA"), login=as_node("1"))).close()
        for where, user in (("KAFKA", "2"), ("KAFKA", "01"), ("KAFKA", "admin"), ("CLIENTS", "1")):
            with pytest.raises(RequestError):
                await opened(address(node, where), login=as_node(user))


async def test_tls_with_certificates_of_clients(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    settings = {
        "kafka_tls_cert": cert,
        "kafka_tls_key": key,
        "kafka_tls_ca": cert,
        "kafka_tls_client_auth": "required",
        "ssl_principal_mapping_rules": "RULE:^CN=(.*)$/$1/U",
        "authorizer": True,
        "super_users": "User:NODE",
    }
    async with closed(tmp_path, "SSL", **settings) as node:
        await node.topic("orders")
        connection = await opened(address(node), tls=client_context(cert, cert, key))
        answer = await connection.request(METADATA, {"topics": None})
        assert [topic.name for topic in answer.topics] == ["orders"], "User:NODE, by its certificate"
        connection.close()
        with pytest.raises((Unreachable, OSError)):
            await opened(address(node), tls=client_context(cert))
        old = client_context(cert, cert, key)
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((Unreachable, OSError)):
            await opened(address(node), tls=old)


async def test_a_new_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    settings = {"kafka_tls_cert": cert, "kafka_tls_key": key}
    async with closed(tmp_path, "SASL_SSL", **settings) as node:
        before = await opened(address(node), tls=client_context(cert), login=login())
        tls = node.node.parts.security._tls
        assert tls is not None
        assert not tls.reload(), "nothing changed"
        old = cert.read_bytes()
        cert.write_bytes(b"no certificate")
        assert not tls.reload()
        await (await opened(address(node), tls=_trusting(old), login=login())).request(DESCRIBE_CLUSTER, {})
        make_certificate(tmp_path)
        assert tls.reload()
        with pytest.raises((Unreachable, OSError)):
            await opened(address(node), tls=_trusting(old), login=login())
        after = await opened(address(node), tls=client_context(cert), login=login())
        for connection in (before, after):
            await connection.request(METADATA, {"topics": None})
            connection.close()


async def test_an_authority_that_was_taken_out_is_believed_no_more(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    cert, key = make_certificate(tmp_path)
    other, other_key = make_certificate(tmp_path / "other")
    believed = tmp_path / "ca.pem"
    believed.write_bytes(cert.read_bytes() + other.read_bytes())
    settings = {
        "kafka_tls_cert": cert,
        "kafka_tls_key": key,
        "kafka_tls_ca": believed,
        "kafka_tls_client_auth": "required",
    }
    async with closed(tmp_path, "SSL", **settings) as node:
        tls = node.node.parts.security._tls
        assert tls is not None
        mine, theirs = client_context(cert, cert, key), client_context(cert, other, other_key)
        for context in (mine, theirs):
            (await opened(address(node), tls=context)).close()
        believed.write_bytes(cert.read_bytes())
        assert tls.reload()
        with pytest.raises((Unreachable, OSError)):
            await opened(address(node), tls=theirs)
        (await opened(address(node), tls=mine)).close()


async def test_sql_goes_on_after_a_new_certificate(tmp_path: Path) -> None:
    """Its process has connections open, and is told what to believe for the next."""
    cert, key = make_certificate(tmp_path)
    protocols = {"listener_security_protocol_map": "KAFKA:SASL_SSL,CLIENTS:SASL_SSL"}
    settings = {"kafka_tls_cert": cert, "kafka_tls_key": key, **protocols}
    async with closed(tmp_path, **settings) as node:
        await node.topic("orders")
        parts = node.node.parts
        assert node.node._http is not None
        assert parts.security._tls is not None
        context = node.node._http._context
        assert context is not None

        async def tables() -> Any:
            return await context.queries.ask("tables", {"readable": None}, timeout_s=40)

        before = await tables()
        assert [one["name"] for one in before["tables"]] == ["orders"]
        make_certificate(tmp_path)
        assert parts.security._tls.reload()
        for connection in list(parts.listener._connections):
            connection.abort()
        assert await tables() == before


def _trusting(certificate: bytes) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=certificate.decode())


async def test_tokens_of_an_issuer(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    document = ECAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"alg": "ES256", "kid": "one"}
    keys = tmp_path / "jwks.json"
    keys.write_text(json.dumps({"keys": [document]}))
    settings = {
        "sasl_enabled_mechanisms": "OAUTHBEARER",
        "sasl_oauthbearer_jwks": str(keys),
        "sasl_oauthbearer_expected_audience": "chronik",
        "authorizer": True,
        "super_users": "User:admin",
    }
    async with closed(tmp_path, **settings) as node:
        await node.topic("orders")

        def token(**claims: Any) -> Login:
            given = {"sub": "admin", "aud": "chronik", "exp": 4_000_000_000, **claims}
            text = jwt.encode(given, key, "ES256", headers={"kid": "one"})
            return Login(mechanism="OAUTHBEARER", password=text)

        connection = await opened(address(node), login=token())
        answer = await connection.request(METADATA, {"topics": None})
        assert [topic.name for topic in answer.topics] == ["orders"]
        connection.close()
        with pytest.raises(RequestError, match="InvalidAudience"):
            await opened(address(node), login=token(aud="other"))
