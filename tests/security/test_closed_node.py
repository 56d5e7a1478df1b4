"""Every client library over SASL_SSL, with the rights that it has and without those that it has not."""

from __future__ import annotations

import re
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaError, KafkaException

from tests import java
from tests.security.conftest import PASSWORDS, ClosedNode

ACLS = "org.apache.kafka.tools.AclCommand"
CONFIGS = "org.apache.kafka.tools.ConfigCommand"
CONFIGS_OLD = "kafka.admin.ConfigCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


def test_librdkafka_with_a_wrong_password(closed: ClosedNode) -> None:
    errors: list[KafkaError] = []
    consumer = ConfluentConsumer(
        {
            "bootstrap.servers": closed.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(closed.cert),
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "alice",
            "sasl.password": "guessed",
            "group.id": "readers",
            "error_cb": errors.append,
        }
    )
    with pytest.raises(KafkaException):
        consumer.list_topics(timeout=2)
    consumer.poll(1)
    assert any(error.code() == KafkaError._AUTHENTICATION for error in errors)
    consumer.close()


def tool(closed: ClosedNode, main: str, user: str, *arguments: str, **options: Any) -> java.Output:
    config = "--command-config"
    if main == CONSUMER:
        config = "--consumer.config"
    elif main == PRODUCER:
        config = "--producer.config"
    given = ("--bootstrap-server", closed.bootstrap, config, str(closed.properties(user, "SCRAM-SHA-512")))
    return java.run(main, *given, *arguments, **options)


def test_apache_kafkas_tools(closed: ClosedNode) -> None:
    """kafka-configs makes a user, kafka-acls gives it rights, the console clients use them."""
    PASSWORDS["carol"] = "carol's password"
    tool(
        closed,
        CONFIGS_OLD,
        "admin",
        *("--alter", "--entity-type", "users", "--entity-name", "carol"),
        *("--add-config", "SCRAM-SHA-512=[iterations=4096,password=carol's password]"),
    )
    shown = tool(
        closed, CONFIGS_OLD, "admin", "--describe", "--entity-type", "users", "--entity-name", "carol"
    )
    assert "iterations=4096" in shown.out
    rights = ("--allow-principal", "User:carol", "--topic", "car", "--resource-pattern-type", "prefixed")
    made = tool(closed, ACLS, "admin", "--add", *rights, "--producer")
    assert "principal=User:carol" in made.out
    tool(closed, ACLS, "admin", "--add", "--allow-principal", "User:carol", "--topic", "cars", "--group", "*",
         "--consumer")  # fmt: skip
    tool(closed, PRODUCER, "carol", "--topic", "cars", stdin="one\ntwo\n")
    read = tool(
        closed,
        CONSUMER,
        "carol",
        *("--topic", "cars", "--from-beginning", "--max-messages", "2", "--timeout-ms", "30000"),
    )
    assert read.lines() == ["one", "two"]
    refused = tool(closed, ACLS, "carol", "--list", check=False)
    assert "ClusterAuthorizationException" in refused.out
    listed = tool(closed, ACLS, "admin", "--list", "--topic", "cars", "--resource-pattern-type", "match").out
    assert len(re.findall(r"principal=User:carol", listed)) >= 4
    tool(closed, ACLS, "admin", "--remove", *rights, "--producer", "--force")
    assert "prefix" not in closed.cli("admin", "acl", "list", "--user", "carol")


def test_delegation_tokens_by_apache_kafkas_tool(closed: ClosedNode) -> None:
    """One is made, shown, renewed and ended."""
    row = re.compile(r"^(\S+)\s+(\S+={0,2})\s+User:alice\s", re.MULTILINE)
    made = row.search(tool(closed, TOKENS, "alice", "--create", "--max-life-time-period", "-1").out)
    assert made is not None
    token_id, hmac = made.groups()
    config = ("--bootstrap-server", closed.bootstrap)
    config += ("--command-config", str(closed.properties("alice", "SCRAM-SHA-512")))
    described, renewed, _, after = java.run_several(
        (TOKENS, *config, "--describe", "--owner-principal", "User:alice"),
        (TOKENS, *config, "--renew", "--renew-time-period", "-1", "--hmac", hmac),
        (TOKENS, *config, "--expire", "--expiry-time-period", "-1", "--hmac", hmac),
        (TOKENS, *config, "--describe", "--owner-principal", "User:alice"),
    )
    assert token_id in described.out
    assert "Completed renew operation" in renewed.out
    assert token_id not in after.out


def test_our_own_commands(closed: ClosedNode) -> None:
    decided = closed.cli("admin", "acl", "test", "--user", "alice", "--topic", "orders", "-o", "describe")
    assert "allowed" in decided
    assert "read" in decided.lower(), "which rule decides, and READ implies DESCRIBE"
    refused = closed.cli(
        "admin", "acl", "test", "--user", "alice", "--topic", "secrets", "-o", "read", check=False
    )
    assert "refused" in refused
    assert "alice" in closed.cli("admin", "user", "list")
    assert "secrets" not in closed.cli("alice", "topic", "list")
    assert "not authorized" in closed.cli(
        "alice", "user", "list", check=False
    ).lower() or "authorization" in (closed.cli("alice", "user", "list", check=False).lower())
    closed.cli("admin", "quota", "set", "--user", "alice", "producer_byte_rate=1e9")
    assert "producer_byte_rate" in closed.cli("admin", "quota", "list")
    closed.cli("admin", "quota", "set", "--user", "alice", "producer_byte_rate=")


def test_no_secret_is_written_anywhere(closed: ClosedNode) -> None:
    """Neither passwords nor what they were typed into are in the data directory or in the log."""
    texts = {password.encode() for password in PASSWORDS.values()}
    files = [path for path in closed.node.folder.rglob("*") if path.is_file()]
    for path in files:
        if path.suffix != ".properties":
            content = path.read_bytes()
            assert not [text for text in texts if text in content], path
    assert not (closed.node.data_dir / "first-user.json").exists()
