"""How many connections a node takes: its settings, unless broker configs of Kafka's names say otherwise.

The configs are no limit for the nodes themselves, nor for their machines: set too low, they would close the
cluster to those who could set them right again.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from chronik.config import is_loopback
from chronik.metadata.broker_config import broker_value
from chronik.model import Limits

__all__ = ["LIMIT_SETTINGS", "ConnectionLimits", "is_of_this_machine"]

LIMIT_SETTINGS: Final = MappingProxyType(
    {
        "max.connection.creation.rate": "connections_per_second_max",
        "max.connections": "connections_max",
        "max.connections.per.ip": "connections_per_ip_max",
    }
)
"""The setting that gives the value where no config does."""


class ConnectionLimits(NamedTuple):
    total: int
    per_ip: int
    per_second: int | None
    """New ones of one listener; None: no limit."""

    @classmethod
    def resolve(cls, configs: tuple[Mapping[str, str], ...], limits: Limits) -> ConnectionLimits:
        """`configs` strongest first."""
        total = broker_value("max.connections", configs) or limits.connections_max
        per_second = broker_value("max.connection.creation.rate", configs)
        return cls(
            min(total, limits.connections_possible),
            broker_value("max.connections.per.ip", configs) or limits.connections_per_ip_max,
            per_second or limits.connections_per_second_max,
        )


def is_of_this_machine(peer_host: str, own_host: str) -> bool:
    """Whether a connection comes from the machine that took it at `own_host`."""
    return peer_host == own_host or is_loopback(peer_host)
