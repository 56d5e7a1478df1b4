"""What commands that talk HTTP to a node share: its address, the key, sentences for what goes wrong."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

import msgspec
import typer

from chronik.cli.client import INTERRUPTED, CommandFailed, run, secured_by_file
from chronik.config import Settings, is_loopback
from chronik.config_sources import api_key, bootstrap, environment, http_tls_ca

T = TypeVar("T")

HttpUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="http[s]://HOST:PORT",
        help="a node's HTTP address [dim](default: what the cluster says)[/dim]",
        show_default=False,
    ),
]


class Http:
    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, *, is_named: bool) -> None:
        """`is_named`: the user named it, or a cluster that is believed. It could be anybody's, who must not
        see the key."""
        self._host = host
        self._port = port
        self._tls = tls
        self._is_named = is_named

    async def get(self, path: str) -> Any:
        return await self.request("GET", path, None)

    async def post(self, path: str, body: object) -> Any:
        return await self.request("POST", path, body)

    async def request(self, method: str, path: str, body: object) -> Any:
        from chronik.admin.peers import request_json

        proof = own_proof()
        headers = {"authorization": proof} if proof is not None and self._is_named else {}
        data = None if body is None else msgspec.json.encode(body)
        try:
            status, answer = await request_json(
                self._host, self._port, method, path, data, headers, self._tls
            )
        except ssl.SSLCertVerificationError as error:
            raise CommandFailed(
                f"the certificate of {self._host}:{self._port} is not believed ({error.verify_message}): "
                "name who signed it with CHRONIK_HTTP_TLS_CA"
            ) from None
        except OSError as error:
            raise CommandFailed(f"no node answers at {self._host}:{self._port} ({error})") from None
        if status >= 400:
            message = (
                answer.get("message", f"status {status}") if isinstance(answer, dict) else f"status {status}"
            )
            hint = self._key_hint(proof) if status == 401 else ""
            raise CommandFailed(f"{str(message).rstrip('.')}{hint}")
        return answer

    def _key_hint(self, proof: str | None) -> str:
        if proof is not None and not self._is_named:
            scheme = "http" if self._tls is None else "https"
            address = f"{scheme}://{self._host}:{self._port}"
            return f" (it is sent only to an address that you name: --url {address})"
        return ": set CHRONIK_ADMIN_API_KEY, or name a user with --client-config"


def own_proof() -> str | None:
    """What this user proves with who it is: the API key of the environment, else the user of the
    client.properties."""
    from chronik.client import ClientOptions

    key = api_key(environment())
    if key is not None:
        return f"Bearer {key}"
    login = secured_by_file(ClientOptions()).login_now()
    if login is None or login.by_token:
        return None
    if login.mechanism == "OAUTHBEARER":
        return f"Bearer {login.password}"
    return "Basic " + base64.b64encode(f"{login.user}:{login.password}".encode()).decode()


def with_http(url: str | None, servers: str | None, work: Callable[[Http], Awaitable[T]]) -> T:
    """Run a command's work against a node's HTTP port; every failure leaves as one sentence."""
    http = find_http(url, servers)

    async def main() -> T:
        return await work(http)

    try:
        return asyncio.run(main())
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def find_http(url: str | None, servers: str | None) -> Http:
    host, port, is_tls = _parse(url) if url is not None else _find(servers)
    is_named = url is not None or _is_trusted(host, port, is_tls, bootstrap(servers, environment()))
    tls = None
    if is_tls:
        from chronik.admin.tls import client_context

        try:
            tls = client_context(http_tls_ca(environment()))
        except OSError as error:
            raise CommandFailed(f"the certificates of CHRONIK_HTTP_TLS_CA cannot be read: {error}") from None
    return Http(host, port, tls, is_named=is_named)


def _parse(url: str) -> tuple[str, int, bool]:
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.scheme not in ("", "http", "https"):
        raise CommandFailed(f"{url!r} is no address: write http://host:port")
    return host, port, parts.scheme == "https"


def _is_trusted(host: str, port: int, is_tls: bool, named: str) -> bool:
    """Whether the key may go to an address that a cluster told: its host is one that the user named, and who
    told it has proven to be the cluster, or the port is one that the user named or HTTP's own."""
    from chronik.client import ClientOptions, parse_bootstrap

    options = secured_by_file(ClientOptions())
    is_private = options.tls is not None
    if not is_tls and not is_loopback(host) and (is_private or http_tls_ca(environment()) is not None):
        return False  # everybody on the way would read it, though this user asked for TLS
    addresses = parse_bootstrap(named)
    if not any(_is_same(host, address.host) for address in addresses):
        return False
    login = options.login_now()
    is_proven = is_private or (login is not None and login.mechanism.startswith("SCRAM"))
    return is_proven or port in {Settings().http_port, *(address.port for address in addresses)}


def _is_same(host: str, other: str) -> bool:
    """Loopback has many names."""
    return host.lower() == other.lower() or (is_loopback(host) and is_loopback(other))


def _find(servers: str | None) -> tuple[str, int, bool]:
    """Ask a Kafka port where the HTTP ports are."""

    async def ask(cluster: Any) -> tuple[str, int, bool] | None:
        from chronik.client import Admin

        for node_id in await cluster.node_ids():
            entries = await Admin(cluster).describe_config("broker", str(node_id), ["chronik.http.address"])
            for entry in entries:
                if entry.value:
                    return _parse(entry.value)
        return None

    found = run(servers, ask)
    if found is None:
        raise CommandFailed(
            "the cluster does not tell its HTTP address: name one with --url http://host:port"
        )
    return found
