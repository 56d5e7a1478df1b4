"""Opens and closes the HTTP port for a node. Light: the server itself is imported when it is opened."""

from __future__ import annotations

import asyncio
import importlib
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from chronik.config import Settings

if TYPE_CHECKING:
    import ssl

    from chronik.admin.context import AdminContext
    from chronik.server.reloading import Reloaded

__all__ = ["HttpDoor"]


class HttpDoor:
    """The port is bound first, so that it can be registered and a taken one is known before anything else."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._tls: Reloaded[ssl.SSLContext] | None = None
        self._server: Any = None
        self._context: AdminContext | None = None

    def bind(self, settings: Settings) -> int:
        """Take the port; returns it, which the system chose if the setting is 0."""
        host, port = settings.bind, settings.http_port
        if settings.http_tls_cert is not None:
            from chronik.admin.tls import server_context
            from chronik.server.reloading import Reloaded

            files = (settings.http_tls_cert, settings.http_tls_key, settings.http_tls_client_ca)
            self._tls = Reloaded("the certificate of HTTP", files, partial(server_context, *files))
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        taken = socket.socket(family, socket.SOCK_STREAM)
        try:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.setblocking(False)
            taken.bind(("" if host == "*" else host, port))
            taken.listen(128)
        except OSError as error:
            taken.close()
            reason = f"HTTP cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}"
            raise OSError(error.errno, reason) from None
        self._socket = taken
        bound: int = taken.getsockname()[1]
        return bound

    async def open(self, build: Callable[[], AdminContext]) -> None:
        """Serve. The imports run beside the loop, which has Kafka clients to serve already."""
        loop = asyncio.get_running_loop()
        module = await loop.run_in_executor(None, importlib.import_module, "chronik.admin.server")
        if self._socket is None:
            return
        self._context = build()
        self._server = module.HttpServer(self._context)
        await self._server.start(self._socket, self._tls)

    @property
    def is_open(self) -> bool:
        return self._server is not None

    def serve(self) -> None:
        """The node has joined its cluster: serve all endpoints, not only its health."""
        if self._context is not None:
            self._context.queries.start()
            self._context.audit.start()
            self._context.phase.is_serving = True

    async def close(self) -> None:
        taken, self._socket = self._socket, None
        if self._context is not None:
            await self._context.watermark_waits.close()
        if self._server is not None:
            await self._server.stop()
        if self._context is not None:
            await self._context.verifier.close()
            await self._context.audit.close()
            await self._context.queries.close()
            await self._context.loopback.close()
        if taken is not None:
            taken.close()
