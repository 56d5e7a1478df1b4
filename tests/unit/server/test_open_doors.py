"""Which doors are open beyond this machine: looked at for every listener, however the node is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chronik.config import ConfigError, Settings
from chronik.node import Node
from chronik.server.open_doors import check_doors

PORTS = {"kafka_port": 0, "http_port": 0, "wal_port": 0, "raft_port": 0}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"bind": "0.0.0.0"}, "HTTP"),
        ({"listeners": "PLAINTEXT://0.0.0.0:0"}, "listener PLAINTEXT is at 0.0.0.0"),
        ({"listeners": "PLAINTEXT://:0"}, "listener PLAINTEXT"),
        ({"listeners": "PLAINTEXT://10.0.0.7:0", "admin_api_key": "swordfish"}, "listener PLAINTEXT"),
    ],
)
async def test_an_embedded_node_does_not_start_either(
    tmp_path: Path, settings: dict[str, Any], why: str
) -> None:
    node = Node(Settings(data_dir=tmp_path / "data", **PORTS, **settings))
    with pytest.raises(ConfigError, match=why):
        await node.start()
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"listeners": "PLAINTEXT://127.0.0.2:0,OTHER://localhost:0"},
        {"listeners": "OTHER://0.0.0.0:0", "listener_security_protocol_map": "OTHER:SASL_PLAINTEXT"},
        {"listeners": "PLAINTEXT://0.0.0.0:0", "authorizer": True},
        {"listeners": "PLAINTEXT://0.0.0.0:0", "insecure": True},
        {"listeners": "PLAINTEXT://0.0.0.0:0", "bind": "0.0.0.0", "admin_api_key": "swordfish"},
    ],
)
def test_doors_that_ask_for_something_may_be_open(settings: dict[str, Any]) -> None:
    protocols = {"listener_security_protocol_map": "OTHER:PLAINTEXT", **settings}
    check_doors(Settings(**(protocols if "OTHER" in settings["listeners"] else settings)))


async def test_a_door_for_everybody_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(Settings(data_dir=tmp_path, **PORTS, listeners="PLAINTEXT://0.0.0.0:0", insecure=True))
    await node.start()
    await node.stop()
    told = [record.getMessage() for record in caplog.records if "needs no login" in record.getMessage()]
    assert told == [
        "listener PLAINTEXT at 0.0.0.0 needs no login: whoever reaches it can read and write every record"
    ]
