"""The doors for Kafka clients: their names, what each asks for, and where clients are told to find it.

The first listener is the node's own, `KAFKA`, on `bind` and `kafka_port`; nodes speak to each other through
it. More are named in `listeners`. What a listener asks for is in `listener_security_protocol_map`, where
clients find it in `advertised_listeners`. A client is told the addresses of the listener that it came by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from chronik.config import Address, ConfigError, Settings
from chronik.metadata.commands import Endpoint

__all__ = [
    "OWN",
    "PROTOCOLS",
    "ListenerSpec",
    "advertised_endpoints",
    "inter_broker_listener",
    "listener_specs",
    "listeners_of_nodes",
]

OWN: Final = "KAFKA"
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_OWN_ENDPOINT: Final = "kafka"
_WILDCARDS: Final = frozenset({"", "0.0.0.0", "::"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSpec:
    name: str
    protocol: str
    host: str
    port: int
    advertised: Address | None
    """None: the address that it is bound to."""

    @property
    def endpoint(self) -> str:
        """The name under which brokers register it."""
        return _OWN_ENDPOINT if self.name == OWN else f"{_OWN_ENDPOINT}.{self.name}"

    @property
    def reachable_here(self) -> str:
        """The host under which this machine reaches it."""
        return "127.0.0.1" if self.host in _WILDCARDS else self.host

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        return self.protocol.startswith("SASL")


def listener_specs(settings: Settings) -> tuple[ListenerSpec, ...]:
    """All listeners, the node's own first; ConfigError if the settings contradict each other."""
    bound = _addresses("listeners", settings.listeners)
    if OWN in bound:
        raise ConfigError(f"listeners: {OWN} is the listener of bind and kafka_port; give others other names")
    advertised = _addresses("advertised_listeners", settings.advertised_listeners)
    protocols = _protocols(settings)
    for name in (*advertised, *protocols):
        if name not in bound and name != OWN:
            raise ConfigError(f"there is no listener {name}: listeners names {', '.join((OWN, *bound))}")
    own = ListenerSpec(
        name=OWN,
        protocol=protocols.get(OWN, "PLAINTEXT"),
        host=settings.bind,
        port=settings.kafka_port,
        advertised=advertised.get(OWN),
    )
    others = []
    for name, address in bound.items():
        protocol = protocols.get(name, name)
        if protocol not in PROTOCOLS:
            raise ConfigError(
                f"listener {name} has no protocol: say so in listener_security_protocol_map, "
                f"for example {name}:SASL_SSL"
            )
        others.append(
            ListenerSpec(
                name=name,
                protocol=protocol,
                host=address.host,
                port=address.port or 0,
                advertised=advertised.get(name),
            )
        )
    specs = (own, *others)
    _check(settings, specs)
    return specs


def inter_broker_listener(settings: Settings, specs: tuple[ListenerSpec, ...]) -> ListenerSpec:
    """The nodes' own: by it their clients reach this node and others."""
    name = settings.inter_broker_listener_name or OWN
    found = next((spec for spec in specs if spec.name == name), None)
    if found is None:
        known = ", ".join(spec.name for spec in specs)
        raise ConfigError(f"inter_broker_listener_name: there is no listener {name}, only {known}")
    return found


def listeners_of_nodes(settings: Settings, specs: tuple[ListenerSpec, ...]) -> frozenset[str]:
    """Names of the listeners on which a node may log in as one.

    Where the nodes' own listener asks nobody who they are, on all of them: nodes that moved on to a closed
    one come by it already.
    """
    own = inter_broker_listener(settings, specs)
    known = {spec.name for spec in specs}
    if not own.has_sasl and not settings.authorizer:
        return frozenset(known)
    accepted = set(_parts(settings.inter_broker_listeners_accepted))
    if strange := accepted - known:
        raise ConfigError(f"inter_broker_listeners_accepted: there is no listener {min(strange)}")
    return frozenset({own.name, *accepted})


def _check(settings: Settings, specs: tuple[ListenerSpec, ...]) -> None:
    if any(spec.has_tls for spec in specs) and settings.kafka_tls_cert is None:
        raise ConfigError("a listener with SSL needs kafka_tls_cert")
    closed = settings.authorizer or inter_broker_listener(settings, specs).has_sasl
    if closed and settings.peers and settings.cluster_secret is None:
        raise ConfigError(
            "the nodes of a cluster prove who they are by cluster_secret: set it on each of them"
        )


def _protocols(settings: Settings) -> dict[str, str]:
    protocols = {}
    for part in _parts(settings.listener_security_protocol_map):
        name, _, protocol = part.partition(":")
        if protocol not in PROTOCOLS:
            raise ConfigError(
                f"listener_security_protocol_map: {part} is not NAME:PROTOCOL; protocols are "
                f"{', '.join(PROTOCOLS)}"
            )
        protocols[name] = protocol
    return protocols


def _addresses(setting: str, text: str | None) -> dict[str, Address]:
    found: dict[str, Address] = {}
    for part in _parts(text):
        name, scheme, where = part.partition("://")
        host, colon, port = where.rpartition(":")
        if not scheme or not name or not colon or not port.isdecimal() or int(port) > 65_535:
            raise ConfigError(f"{setting}: {part} is not NAME://host:port")
        if name in found:
            raise ConfigError(f"{setting}: {name} is there twice")
        found[name] = Address(host.strip("[]"), int(port))
    return found


def _parts(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def advertised_endpoints(
    settings: Settings, specs: tuple[ListenerSpec, ...], ports: Mapping[str, int]
) -> dict[str, Endpoint]:
    """Where clients find the listeners, by the name under which a broker registers them."""
    found = {}
    for spec in specs:
        port = ports[spec.name]
        if spec.advertised is not None:
            address = Address(spec.advertised.host, spec.advertised.port or port)
        else:
            own = settings.advertised(kafka_port=port)
            wildcard = spec.host in _WILDCARDS
            address = own if spec.name == OWN else Address(own.host if wildcard else spec.host, port)
        found[spec.endpoint] = Endpoint(host=address.host, port=address.port or port)
    return found
