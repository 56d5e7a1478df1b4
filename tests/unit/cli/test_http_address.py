"""To which addresses that a cluster tells a command sends its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronik.cli.http import _is_trusted

NAMED = "broker.example:9092,[::1]:9192"
SCRAM = (
    "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
    'sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="a" '
    'password="b";\n'
)


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CHRONIK_HTTP_TLS_CA", "CHRONIK_CLIENT_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def test_host_and_port_must_be_the_users() -> None:
    assert _is_trusted("Broker.Example", 6092, False, NAMED), "HTTP's own port"
    assert _is_trusted("broker.example", 9092, False, NAMED)
    assert _is_trusted("127.0.0.1", 9192, False, NAMED), "loopback by another name"
    assert not _is_trusted("broker.example", 6666, False, NAMED)
    assert not _is_trusted("broker.example", 6666, True, NAMED)
    assert not _is_trusted("other.example", 6092, False, NAMED)


def test_who_asks_with_tls_sends_no_key_over_plain_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHRONIK_HTTP_TLS_CA", str(tmp_path / "ca.pem"))
    assert _is_trusted("broker.example", 6092, True, NAMED)
    assert not _is_trusted("broker.example", 6092, False, NAMED)
    assert _is_trusted("127.0.0.1", 6092, False, NAMED), "nobody is on the way"


@pytest.mark.parametrize(
    ("properties", "is_tls", "trusted"),
    [
        ("security.protocol=SSL\n", True, True),
        ("security.protocol=SSL\n", False, False),
        (SCRAM, False, True),
        (SCRAM.replace("SCRAM-SHA-256", "PLAIN"), False, False),
    ],
    ids=["TLS", "TLS and plain HTTP", "SCRAM", "PLAIN"],
)
def test_a_cluster_that_proved_itself_may_tell_its_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, properties: str, is_tls: bool, trusted: bool
) -> None:
    (tmp_path / "client.properties").write_text(properties)
    monkeypatch.setenv("CHRONIK_CLIENT_CONFIG", str(tmp_path / "client.properties"))
    assert _is_trusted("broker.example", 7777, is_tls, NAMED) is trusted
    assert not _is_trusted("other.example", 7777, is_tls, NAMED)
