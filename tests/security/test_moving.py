"""A running cluster is closed, and its secrets and certificates are replaced, under load (X05, X07).

The steps from open to closed are those of SECURITY.md: its blocks of settings are what the nodes are given.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from chronik.client import ClientOptions, Cluster
from chronik.client.login import Login
from chronik.client.options import parse_bootstrap
from chronik.client.security import create_acls, put_user
from chronik.config import Settings
from chronik.links.authority import node_files
from chronik.security.acls import AclBinding, Operation, ResourceType
from chronik.server.tls import client_context
from chronik.testing import free_ports
from tests.process import HOST
from tests.security.load import Load, read_all
from tests.security.nodes import Three, certificates, node_tls, three
from tests.tls import make_certificate

GUIDE = Path(__file__).parents[2] / "SECURITY.md"
SECRET, PASSWORD = "what the nodes know", "alice's password"


def documented_steps(heading: str) -> list[dict[str, Any]]:
    section = GUIDE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", section, re.S)]


def paths(settings: dict[str, Any]) -> dict[str, Any]:
    kinds = {field.name: str(field.type) for field in fields(Settings)}
    return {name: Path(value) if "Path" in kinds[name] else value for name, value in settings.items()}


def as_in_the_guide(step: dict[str, Any], folder: Path, ports: list[int]) -> Callable[[int], dict[str, Any]]:
    """A step's settings, with this test's files and ports in the places of those in the guide."""

    def of(node_id: int) -> dict[str, Any]:
        changed = {
            name: value.replace("/etc/chronik/", f"{folder}/etc-{node_id}/").replace(
                "0.0.0.0:9093", f"{HOST}:{ports[node_id - 1]}"
            )
            if isinstance(value, str)
            else value
            for name, value in step.items()
        }
        return paths(changed)

    return of


def write_files(folder: Path) -> Path:
    """What the guide expects in /etc/chronik of each node; the certificate that clients believe."""
    kafka = folder / "kafka"
    kafka.mkdir()
    cert, key = make_certificate(kafka)
    made = certificates(folder / "nodes")
    for node_id in (1, 2, 3):
        etc = folder / f"etc-{node_id}"
        etc.mkdir()
        node_cert, node_key = node_files(made, node_id)
        sources = {
            "kafka.pem": cert,
            "kafka-key.pem": key,
            "kafka-ca.pem": cert,
            "node.pem": node_cert,
            "node-key.pem": node_key,
            "ca.pem": made / "ca.pem",
        }
        for name, source in sources.items():
            (etc / name).write_bytes(source.read_bytes())
    return cert


async def test_from_open_to_closed_as_the_guide_says(tmp_path: Path) -> None:
    steps = documented_steps("From open to closed without a stop")
    assert len(steps) == 6
    cert, ports = write_files(tmp_path), free_ports(3)
    given = [as_in_the_guide(step, tmp_path, ports) for step in steps]
    closed = {
        "bootstrap_servers": ",".join(f"{HOST}:{port}" for port in ports),
        "security_protocol": "SASL_SSL",
        "ssl_context": client_context(cert),
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "alice",
        "sasl_plain_password": PASSWORD,
    }
    async with three(tmp_path, lambda _: {"cluster_id": "orders"}) as nodes, asyncio.timeout(300):
        await nodes.create_topic("orders")
        old = Load("old", "orders", bootstrap_servers=nodes.bootstrap)
        async with old:
            for step in given[:3]:
                await nodes.roll(step)
                await old.goes_on()
            async with Cluster(parse_bootstrap(nodes.bootstrap)) as cluster:
                for user, password in (("admin", "admin's password"), ("alice", PASSWORD)):
                    await put_user(cluster, user, password)
            new, unit = (
                Load("new", "orders", **closed),
                Load("unit", "orders", transactional_id="unit", **closed),
            )
            async with new, unit:
                await old.goes_on()
                await old.__aexit__(None, None, None)  # clients have moved
                for step in given[3:]:
                    if step is given[5]:
                        await allow_alice(nodes, cert, closed["bootstrap_servers"])
                    await nodes.roll(step)
                    await new.goes_on()
                    await unit.goes_on()
        acked = old.acked + new.acked + unit.acked
        assert not old.failures + new.failures + unit.failures
        assert sorted(await read_all("orders", len(acked), **closed)) == sorted(acked)
        links = [link for node in nodes.nodes.values() for link in node.parts.links.wal_port._links]
        assert links
        assert all(link._transport.get_extra_info("ssl_object") for link in links if link._transport)


async def allow_alice(nodes: Three, cert: Path, bootstrap: str) -> None:
    login = Login(mechanism="SCRAM-SHA-512", user="admin", password="admin's password")
    rights = (
        (ResourceType.TOPIC, "orders", Operation.WRITE),
        (ResourceType.TOPIC, "orders", Operation.READ),
        (ResourceType.TRANSACTIONAL_ID, "unit", Operation.WRITE),
    )
    options = ClientOptions(tls=client_context(cert), login=login)
    async with Cluster(parse_bootstrap(bootstrap), options) as cluster:
        await create_acls(
            cluster,
            [
                AclBinding(
                    resource_type=kind, resource_name=name, principal="User:alice", operation=operation
                )
                for kind, name, operation in rights
            ],
        )


async def test_a_secret_is_replaced_under_load(tmp_path: Path) -> None:
    steps = documented_steps("Replacing the secret of the nodes")
    async with (
        three(tmp_path, lambda _: {"cluster_secret": "the old one"}) as nodes,
        asyncio.timeout(200),
    ):
        await nodes.create_topic("orders")
        async with Load("load", "orders", bootstrap_servers=nodes.bootstrap) as load:
            for step in steps:
                await nodes.roll(lambda _, step=step: step)
                await load.goes_on()
        assert nodes.nodes[1].settings.cluster_secret == "the new one"
        assert nodes.nodes[1].settings.cluster_secret_accepted is None
        read = await read_all("orders", len(load.acked), bootstrap_servers=nodes.bootstrap)
        assert sorted(read) == sorted(load.acked)


async def test_an_authority_is_replaced_under_load(tmp_path: Path) -> None:
    """No restart: files change, connections that are made anew use them, and those that are open stay."""
    old, new, used = certificates(tmp_path / "old"), certificates(tmp_path / "new"), tmp_path / "used"
    used.mkdir()

    def put(name: str, *sources: Path) -> None:
        (used / name).write_bytes(b"".join((source / name).read_bytes() for source in sources))

    names = [path.name for path in old.iterdir() if path.name.startswith("node-")]
    for name in (*names, "ca.pem"):
        put(name, old)
    async with (
        three(tmp_path, lambda number: node_tls(used, number)) as nodes,
        asyncio.timeout(200),
    ):
        await nodes.create_topic("orders")
        async with Load("load", "orders", bootstrap_servers=nodes.bootstrap) as load:
            for change in (
                lambda: put("ca.pem", old, new),
                lambda: [put(name, new) for name in names],
                lambda: put("ca.pem", new),
            ):
                change()
                await load.goes_on()
                break_links(nodes)
                await load.goes_on()
                await nodes.in_sync()
        read = await read_all("orders", len(load.acked), bootstrap_servers=nodes.bootstrap)
        assert sorted(read) == sorted(load.acked)


def break_links(nodes: Three) -> None:
    for node in nodes.nodes.values():
        for port in (node.parts.links.wal_port, node.parts.links.raft_port):
            for link in list(port._links):
                link.abort()


async def test_a_password_and_the_listeners_certificate_are_replaced_under_load(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    used = make_certificate(tmp_path)
    old, new = make_certificate(tmp_path / "old"), make_certificate(tmp_path / "new")
    bundle = tmp_path / "believed.pem"
    bundle.write_bytes(old[0].read_bytes() + new[0].read_bytes())
    copy_files(old, used)
    ports = free_ports(3)

    def given(node_id: int) -> dict[str, Any]:
        return {
            "cluster_secret": SECRET,
            "listeners": f"CLIENTS://{HOST}:{ports[node_id - 1]}",
            "listener_security_protocol_map": "CLIENTS:SASL_SSL",
            "inter_broker_listener_name": "CLIENTS",
            "kafka_tls_cert": used[0],
            "kafka_tls_key": used[1],
            "kafka_tls_ca": bundle,
        }

    def client(password: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": ",".join(f"{HOST}:{port}" for port in ports),
            "security_protocol": "SASL_SSL",
            "ssl_context": client_context(bundle),
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_plain_username": "alice",
            "sasl_plain_password": password,
        }

    def shown(port: int) -> str:
        return ssl.get_server_certificate((HOST, port))

    async with three(tmp_path, given) as nodes, asyncio.timeout(200):
        await nodes.create_topic("orders")
        async with Cluster(parse_bootstrap(nodes.bootstrap)) as cluster:
            await put_user(cluster, "alice", PASSWORD)
            async with Load("before", "orders", transactional_id="unit", **client(PASSWORD)) as before:
                await before.goes_on()
                await put_user(cluster, "alice", "another")
                copy_files(new, used)
                for node in nodes.nodes.values():
                    node.parts.listener._sweep()  # what happens every 15 seconds
                await before.goes_on()
                for port in ports:
                    assert await asyncio.to_thread(shown, port) == new[0].read_text()
                async with Load("after", "orders", **client("another")) as after:
                    await after.goes_on()
                    await before.goes_on()
        refused = AIOKafkaProducer(**client(PASSWORD))
        with pytest.raises(KafkaError):
            await refused.start()
        await refused.stop()
        acked = before.acked + after.acked
        assert sorted(await read_all("orders", len(acked), **client("another"))) == sorted(acked)


def copy_files(sources: tuple[Path, ...], targets: tuple[Path, ...]) -> None:
    for source, target in reversed(list(zip(sources, targets, strict=True))):  # the key first
        target.write_bytes(source.read_bytes())
