"""No secret is written anywhere: each is planted, used rightly and wrongly, and looked for in everything.

Guards X06.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from chronik.admin.routes import ENDPOINTS
from chronik.admin.routes.session import NewSession
from chronik.client import ClientOptions
from chronik.client.apis import Api
from chronik.client.connection import Connection
from chronik.client.login import Login
from chronik.client.options import BrokerAddress
from chronik.cluster import raft_driver
from chronik.config import Settings
from chronik.config_sources import table
from chronik.metadata.commands import BROKER_RESOURCE, Noop, PutCredential
from chronik.model import RequestError
from chronik.query.messages import Credentials
from chronik.security.plain import PlainLogin
from chronik.security.scram import MECHANISMS, make_credential
from chronik.server.first_user import write_first_user
from chronik.server.own_clients import HTTP_USER, QUERY_USER, own_password
from chronik.testing import free_ports
from chronik.wire.api import ApiKey
from tests.node import ChronikNode
from tests.process import HOST
from tests.tls import make_certificate
from tests.unit.admin.support import Answer, Http
from tests.unit.server.test_login import closed

DESCRIBE_CONFIGS = Api(ApiKey.DESCRIBE_CONFIGS, 1, 4)
CREATE_TOKEN = Api(ApiKey.CREATE_DELEGATION_TOKEN, 1, 3)
TOPIC = "a-topic-that-is-found"

CANARIES = {
    "cluster secret": "canary-of-the-cluster-8f2c",
    "API key": "canary-of-the-key-71bd",
    "token secret": "canary-of-tokens-93ae",
    "object store key": "canary-of-the-store-key-d21c",
    "object store secret": "canary-of-the-store-3b94",
    "password": "canary-of-the-password-5d07",
    "wrong password": "canary-of-a-guess-c4e1",
    "wrong key": "canary-of-a-wrong-key-0b6f",
}


class Place:
    """A closed node that logs everything, and what was told to it in confidence."""

    def __init__(self, folder: Path) -> None:
        secret = CANARIES["cluster secret"]
        self.secrets = CANARIES | {
            f"password of {user}": own_password(secret, user) for user in (QUERY_USER, HTTP_USER)
        }
        self.folder = folder / "node"
        (self.sasl_port,) = free_ports(1)
        self.signer = ec.generate_private_key(ec.SECP256R1())
        document = ECAlgorithm.to_jwk(self.signer.public_key(), as_dict=True) | {"alg": "ES256", "kid": "one"}
        tls = make_certificate(folder)
        keys = folder / "jwks.json"
        keys.write_text(json.dumps({"keys": [document]}))
        self.node = ChronikNode(
            self.folder,
            env={
                "CHRONIK_CLUSTER_SECRET": CANARIES["cluster secret"],
                "CHRONIK_ADMIN_API_KEY": CANARIES["API key"],
                "CHRONIK_DELEGATION_TOKEN_SECRET_KEY": CANARIES["token secret"],
                "CHRONIK_OBJECT_STORE_ACCESS_KEY_ID": CANARIES["object store key"],
                "CHRONIK_OBJECT_STORE_SECRET_ACCESS_KEY": CANARIES["object store secret"],
            },
            log_level="debug",
            object_store="s3://bucket/prefix",
            object_store_endpoint=f"http://{HOST}:1",  # nobody listens there: its errors are logged
            tiering_interval_ms=100,
            authorizer=True,
            listeners=f"CLIENTS://{HOST}:{self.sasl_port}",
            listener_security_protocol_map="CLIENTS:SASL_PLAINTEXT",
            sasl_enabled_mechanisms="SCRAM-SHA-256,PLAIN,OAUTHBEARER",
            sasl_oauthbearer_jwks=keys,
            kafka_tls_cert=tls[0],
            kafka_tls_key=tls[1],
            http_tls_cert=tls[0],
            http_tls_key=tls[1],
        )
        self.secrets["TLS key"] = _body(tls[1].read_text())
        self.configs = ""
        """What DescribeConfigs shows of the node."""
        trusting = ssl.create_default_context(cafile=tls[0])
        self.http = Http(int(str(self.node.settings["http_port"])), trusting)
        write_first_user(self.node.data_dir, "admin", CANARIES["password"])

    async def log_in(self, login: Login) -> Connection:
        address = BrokerAddress(HOST, self.sasl_port)
        return await Connection.open(address, ClientOptions(connect_timeout_ms=20_000, login=login))

    async def kafka(self) -> None:
        """Every mechanism, rightly and wrongly."""
        for mechanism in ("SCRAM-SHA-256", "PLAIN"):
            right = Login(mechanism=mechanism, user="admin", password=CANARIES["password"])
            connection = await self.log_in(right)
            made = await connection.request(CREATE_TOKEN, {"renewers": [], "max_lifetime": 60_000})
            shown = await connection.request(
                DESCRIBE_CONFIGS,
                {
                    "resources": [
                        {"resource_type": kind, "resource_name": name, "configuration_keys": None}
                        for kind, name in ((BROKER_RESOURCE, "1"), (BROKER_RESOURCE, ""))
                    ],
                    "include_synonyms": True,
                    "include_documentation": True,
                },
            )
            self.configs += repr(shown)
            connection.close()
            secret = base64.b64encode(made.hmac).decode()
            self.secrets[f"delegation token, by {mechanism}"] = secret
            self.secrets[f"its bytes, by {mechanism}"] = made.hmac.hex()
            by_token = Login(mechanism="SCRAM-SHA-256", user=made.token_id, password=secret, by_token=True)
            (await self.log_in(by_token)).close()
            wrong = Login(mechanism=mechanism, user="admin", password=CANARIES["wrong password"])
            with pytest.raises(RequestError):
                await self.log_in(wrong)
        for name, claims in (("token", {}), ("expired token", {"exp": 1})):
            given = {"sub": "admin", "exp": 4_000_000_000, **claims}
            text = jwt.encode(given, self.signer, "ES256", headers={"kid": "one"})
            self.secrets[f"JWT, {name}"] = text
            self.secrets[f"signature of the JWT, {name}"] = text.rpartition(".")[2]
            try:
                (await self.log_in(Login(mechanism="OAUTHBEARER", password=text))).close()
            except RequestError:
                assert claims

    async def call(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        return await self.http.call(method, path, body, headers)

    async def web(self) -> None:
        """Every proof that HTTP takes, rightly and wrongly; then a query, which starts a child."""
        key = {"x-api-key": CANARIES["API key"]}
        made = (await self.call("POST", "/admin/keys", {"name": "named"}, **key)).json
        self.secrets["named key"] = made["key"]
        login = await self.call("POST", "/session", {"user": "admin", "password": CANARIES["password"]})
        cookie = login.headers["set-cookie"].partition(";")[0]
        self.secrets["session"] = cookie.partition("=")[2]
        self.secrets["CSRF token"] = login.json["csrf_token"]
        assert (await self.call("GET", "/session", cookie=cookie)).status == 200
        basic = base64.b64encode(f"admin:{CANARIES['password']}".encode()).decode()
        guess = base64.b64encode(f"admin:{CANARIES['wrong password']}".encode()).decode()
        self.secrets |= {"password in base64": basic, "wrong password in base64": guess}
        for proof in (
            {"x-api-key": CANARIES["wrong key"]},
            {"authorization": f"Basic {guess}"},
            {"authorization": f"Bearer {self.secrets['JWT, expired token']}"},
        ):
            assert (await self.call("GET", "/admin/topics", **proof)).status == 401
        assert (await self.call("POST", "/session", {"key": CANARIES["wrong key"]})).status == 401
        malformed = b'{"password": "' + CANARIES["wrong password"].encode()
        assert (await self.call("POST", "/session", malformed)).status == 400
        wrong_type = {"user": "admin", "password": [CANARIES["wrong password"]]}
        assert (await self.call("POST", "/session", wrong_type)).status == 400
        basic_header = {"authorization": f"Basic {basic}"}
        await self.call("POST", "/admin/create-topic", {"name": TOPIC}, **basic_header)
        rows = await self.call("POST", "/_sql", {"query": f'SELECT * FROM "{TOPIC}"'}, **basic_header)
        assert rows.status == 200

    async def answers(self) -> str:
        """What every endpoint shows to somebody who may see everything."""
        key = {"x-api-key": CANARIES["API key"]}
        parts = []
        for one in ENDPOINTS:
            if one.method == "GET" and one.path != "/session" and not one.path.startswith("/_"):
                names = {
                    "name": TOPIC,
                    "group_id": "g",
                    "file": "app.js",
                    "subject": TOPIC,
                    "version": "1",
                    "id": "1",
                }
                path = one.path.replace(":path}", "}").format_map(names)
                parts.append((await self.call("GET", path, **key)).body.decode())
        return "\n".join(parts)


def _body(pem: str) -> str:
    """A line of the key itself, which nothing else has."""
    return pem.splitlines()[1]


def children(pid: int) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            yield int(path.parent.name)
            yield from children(int(path.parent.name))


def processes(pid: int) -> Iterator[tuple[str, bytes]]:
    yield "command line of the node", Path(f"/proc/{pid}/cmdline").read_bytes()
    found = list(children(pid))
    assert found, "there is no query process"
    for child in found:
        for what in ("cmdline", "environ"):
            yield f"{what} of a child", Path(f"/proc/{child}/{what}").read_bytes()


def shown_config(place: Place) -> bytes:
    done = subprocess.run(
        [sys.executable, "-c", "from chronik.cli import main; main()", "config", "show"],
        env={**os.environ, **place.node.environment()},
        capture_output=True,
        timeout=60,
        check=True,
    )
    return done.stdout + done.stderr


def places(place: Place, answers: str) -> dict[str, bytes]:
    found = dict(processes(place.node.pid))
    found["answers of HTTP"] = answers.encode()
    found["DescribeConfigs"] = place.configs.encode()
    found["config show"] = shown_config(place)
    for path in place.folder.rglob("*"):
        if path.is_file():
            found[str(path.relative_to(place.folder))] = path.read_bytes()
    return found


def test_no_secret_is_written_anywhere(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.node:

        async def work() -> str:
            await place.kafka()
            await place.web()
            return await place.answers()

        found = places(place, asyncio.run(work()))
        place.node.stop()
    found |= {f"{name}, after the end": held for name, held in places_on_disk(place).items()}
    assert TOPIC.encode() in found["answers of HTTP"]
    assert b"stored_key" in found["answers of HTTP"], "of a backup"
    assert b"sasl.enabled.mechanisms" in found["DescribeConfigs"]
    assert any(TOPIC.encode() in held for name, held in found.items() if name.startswith("data/"))
    assert any(b"DEBUG" in held for name, held in found.items() if name == "server.log")
    leaks = [
        f"{what} in {name}"
        for what, secret in place.secrets.items()
        for name, held in found.items()
        if secret.encode() in held
    ]
    assert leaks == []


def places_on_disk(place: Place) -> dict[str, bytes]:
    return {
        str(path.relative_to(place.folder)): path.read_bytes()
        for path in place.folder.rglob("*")
        if path.is_file()
    }


def test_what_holds_secrets_does_not_show_them_in_tracebacks() -> None:
    secret = CANARIES["password"]
    names = {name: secret for name, setting in table().items() if setting.rule.secret}
    assert {"cluster_secret", "admin_api_key", "delegation_token_secret_key"} <= set(names)
    holders: list[Any] = [
        Settings(**names),  # type: ignore[arg-type]
        Login(mechanism="PLAIN", user="u", password=secret),
        ClientOptions(login=Login(mechanism="PLAIN", user="u", password=secret)),
        Credentials(mechanism="PLAIN", user="u", password=secret, seed=secret.encode()),
        PlainLogin("u", secret),
        NewSession(user="u", password=secret, key=secret),
    ]
    for one in holders:
        assert secret not in repr(one), type(one)
    assert secret in msgspec.json.encode(holders[-1]).decode()


async def test_a_snapshot_and_a_traceback_hold_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A snapshot of the metadata is written, and an endpoint fails with the password in its hands."""
    monkeypatch.setattr(raft_driver, "SNAPSHOT_ENTRIES", 1)
    secret, http_failed = CANARIES["password"], "POST /admin/create-topic failed"

    create_topic = next(one for one in ENDPOINTS if one.name == "create_topic")

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("planted")

    async with closed(tmp_path, authorizer=True, super_users="User:bob") as live:
        parts = live.node.parts
        credential = make_credential(MECHANISMS["SCRAM-SHA-256"], secret, b"salt", 4096)
        await parts.metadata.submit(PutCredential(user="bob", credential=credential))
        put_at = parts.metadata.applied_index
        async with asyncio.timeout(20):
            while parts.raft.snapshot_index < put_at:
                await parts.metadata.submit(Noop())
                await asyncio.sleep(0.01)
        monkeypatch.setattr(sys.modules[create_topic.function.__module__], "plan_topic", fail)
        proof = "Basic " + base64.b64encode(f"bob:{secret}".encode()).decode()
        http = Http(live.node.http_port)
        answer = await http.call("POST", "/admin/create-topic", {"name": "t"}, {"authorization": proof})
        assert answer.status == 500
    assert http_failed in caplog.text
    assert "Traceback" in caplog.text
    held = {path: path.read_bytes() for path in _files(tmp_path)}
    assert [path for path, data in held.items() if b"bob" in data and "snapshot" in path.name]
    for text in (secret, proof.partition(" ")[2]):
        assert text not in caplog.text
        assert text not in answer.body.decode()
        assert not [path for path, data in held.items() if text.encode() in data]


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
