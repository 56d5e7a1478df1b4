"""What commands that talk HTTP to a node share: its address, the key, sentences for what goes wrong."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

import msgspec
import typer

from chronik.cli.client import INTERRUPTED, CommandFailed, run
from chronik.config import api_key, environment, http_tls_ca

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
    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self._host = host
        self._port = port
        self._tls = tls

    async def get(self, path: str) -> Any:
        return await self.request("GET", path, None)

    async def post(self, path: str, body: object) -> Any:
        return await self.request("POST", path, body)

    async def request(self, method: str, path: str, body: object) -> Any:
        from chronik.admin.peers import request_json

        key = api_key(environment())
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
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
            hint = ": set CHRONIK_ADMIN_API_KEY" if status == 401 else ""
            raise CommandFailed(f"{str(message).rstrip('.')}{hint}")
        return answer


def with_http(url: str | None, servers: str | None, work: Callable[[Http], Awaitable[T]]) -> T:
    """Run a command's work against a node's HTTP port; every failure leaves as one sentence."""
    host, port, is_tls = _parse(url) if url is not None else _find(servers)
    tls = None
    if is_tls:
        from chronik.admin.tls import client_context

        try:
            tls = client_context(http_tls_ca(environment()))
        except OSError as error:
            raise CommandFailed(f"the certificates of CHRONIK_HTTP_TLS_CA cannot be read: {error}") from None

    async def main() -> T:
        return await work(Http(host, port, tls))

    try:
        return asyncio.run(main())
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _parse(url: str) -> tuple[str, int, bool]:
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.scheme not in ("", "http", "https"):
        raise CommandFailed(f"{url!r} is no address: write http://host:port")
    return host, port, parts.scheme == "https"


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
