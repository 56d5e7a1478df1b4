"""TLS for tests: a certificate that signs itself, a port that speaks TLS before one that does not."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
import threading
from pathlib import Path
from types import TracebackType

from tests.process import HOST


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """The certificate and its key, for this host under its address and its name."""
    assert shutil.which("openssl"), "openssl is not there: install it (Debian: apt-get install openssl)"
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=node"
    )
    names = ["-addext", f"subjectAltName=IP:{HOST},DNS:localhost"]
    subprocess.run(
        [*command.split(), *names, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True
    )
    return cert, key


class TlsPort:
    """Accepts TLS on one port and passes everything on to another, in a thread of its own."""

    def __init__(self, port: int, target: int, context: ssl.SSLContext) -> None:
        self.port = port
        self.connections = 0
        self._target = target
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> TlsPort:
        self._thread.start()
        started = asyncio.run_coroutine_threadsafe(self._start(), self._loop)
        started.result(60)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, self.port, ssl=self._context)

    async def _stop(self) -> None:
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError):
            inner_reader, inner_writer = await asyncio.open_connection(HOST, self._target)
            both = (_pass_on(reader, inner_writer), _pass_on(inner_reader, writer))
            await asyncio.gather(*both)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
