"""`chronik start`: run a node until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import logging
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from chronik import __version__
from chronik.cli.settings import CONFIG_OPTION, load, with_settings
from chronik.config import Resolved, Settings
from chronik.model import ChronikError


class StartFailed(ChronikError):
    """The node could not start; the message is one sentence for a person."""


def register(app: typer.Typer) -> None:
    app.command()(with_settings(start))


def start(config: Annotated[Path | None, CONFIG_OPTION] = None, *, flags: dict[str, object]) -> None:
    """Start a node. Needs nothing: Kafka on 127.0.0.1:9092, data in ./chronik-data.

    Examples:

      chronik start

      chronik start --data-dir /var/lib/chronik --bind 0.0.0.0 --advertise broker.example

      chronik start --config cluster.toml --node-id 2
    """
    resolved = load(flags, config)
    logging.basicConfig(
        level=resolved.settings.log_level.upper(),
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    for warning in resolved.warnings:
        logging.getLogger("chronik.config").warning("%s", warning)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(resolved))


def loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def serve(resolved: Resolved) -> None:
    """Start the node, say where it is, stop it in order at the first signal; a second one kills."""
    settings = resolved.settings
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    node = importlib.import_module("chronik.node").Node(settings)
    try:
        await node.start()
    except OSError as error:
        with contextlib.suppress(Exception):
            await node.stop()
        raise StartFailed(why(error)) from None
    print(greeting(settings), flush=True)
    await stop.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
    await node.stop()


def greeting(settings: Settings) -> str:
    kafka = settings.advertised(kafka_port=settings.kafka_port)
    server = "" if settings.kafka_port == 9092 else f" --bootstrap-server {kafka}"
    return "\n".join(
        (
            f"chronik {__version__}, node {settings.node_id}",
            f"  Kafka  {kafka}",
            f"  data   {settings.data_dir.resolve()}",
            "Any Kafka client can use it now, or in another terminal:",
            f"  echo hello | chronik produce greetings{server}",
            f"  chronik consume greetings --from-beginning{server}",
            "Ctrl-C stops it.",
        )
    )


def why(error: OSError) -> str:
    reason = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        return f"{reason}; is another node running? --kafka-port and the other port flags choose others"
    return f"{error.filename}: {reason}" if error.filename else reason
