"""What a client can be configured with: where the cluster is and how patient to be."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from chronik.client.login import Login

DEFAULT_PORT = 9092


class BrokerAddress(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    client_id: str = "chronik"
    deadline_ms: int = 60_000
    """An operation, with all its retries, ends by then."""
    request_timeout_ms: int = 30_000
    """A connection is closed if one of its requests is not answered within this time."""
    connect_timeout_ms: int = 10_000
    retry_backoff_ms: int = 50
    """Pause before the first retry; doubles up to `retry_backoff_ms_max`."""
    retry_backoff_ms_max: int = 1_000
    metadata_age_ms_max: int = 300_000
    in_flight_max: int = 16
    """Requests on one connection that wait for an answer at the same time."""
    response_bytes_max: int = 256 * 1024 * 1024
    tls: ssl.SSLContext | Callable[[], ssl.SSLContext | None] | None = None
    """A function is asked at each connection: its certificates may be replaced."""
    login: Login | Callable[[], Login | None] | None = None
    """A function is asked at each connection, like that of `tls`."""

    def login_now(self) -> Login | None:
        return self.login() if callable(self.login) else self.login


def parse_bootstrap(text: str) -> tuple[BrokerAddress, ...]:
    """`host:port,host:port` (IPv6 hosts in brackets, the port may be left out) as addresses."""
    addresses = tuple(_parse_address(part.strip()) for part in text.split(",") if part.strip())
    if not addresses:
        raise ValueError("the bootstrap list is empty: give at least one host:port")
    return addresses


def _parse_address(text: str) -> BrokerAddress:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        port = rest[1:] if rest.startswith(":") else rest
        wrong = not bracket or (rest != "" and not rest.startswith(":"))
    else:
        host, _, port = text.partition(":")
        wrong = ":" in port
    if wrong or not host or (port and not (port.isdecimal() and 0 < int(port) < 65536)):
        raise ValueError(f"{text!r} is not an address: write host:port, for example 127.0.0.1:9092")
    return BrokerAddress(host, int(port) if port else DEFAULT_PORT)
