"""`chronik start`: run a node until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import gc
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from chronik import __version__
from chronik.cli.service import notify
from chronik.cli.settings import CONFIG_OPTION, load, with_settings
from chronik.config import ConfigError, Settings
from chronik.config_sources import BOOTSTRAP_DEFAULT, Resolved, environment, parse_log_levels
from chronik.log_levels import set_log_levels
from chronik.model import ChronikError, InvariantViolated, TooNew
from chronik.open_files import raise_file_limit
from chronik.private_files import make_private, open_private, tighten

log = logging.getLogger(__name__)

EXIT_BROKEN: Final = 70
"""Exit code of a node that found itself in a state that must not be."""
GC_OBJECTS: Final = 20_000
"""How many objects more than before make Python look for cycles."""


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

      chronik start --shards auto
    """
    collect_rarely()
    resolved = load(flags, config)
    refuse_open_doors(resolved.settings)
    logging.basicConfig(
        level=resolved.settings.log_level.upper(),
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    if resolved.settings.log is not None:
        set_log_levels(parse_log_levels(resolved.settings.log, "log"))
    was, is_now = raise_file_limit()
    log.info("open files: at most %d%s", is_now, f" (was {was})" if is_now != was else "")
    for warning in resolved.warnings:
        logging.getLogger("chronik.config_sources").warning("%s", warning)
    shards = chosen_shards(resolved.settings)
    # uvloop keeps SIGCHLD for itself, by which a supervisor hears of shards that ended.
    factory = loop_factory() if shards is None else None
    with locked(resolved.settings.data_dir), asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(resolved) if shards is None else supervise(resolved, shards))


def chosen_shards(settings: Settings) -> int | None:
    """How many shards were asked for; None runs the node in this process."""
    from chronik.local.shards import holds_shards, shard_count

    count = 1 if settings.shards is None else shard_count(settings.shards)
    if count == 1 and holds_shards(settings.data_dir):
        raise StartFailed(f"{settings.data_dir} holds shards: start it with --shards")
    return None if count == 1 else count


async def supervise(resolved: Resolved, count: int) -> None:
    """Run a node a core, each in a process of its own, until a signal stops them."""
    from chronik.local import NodeProcess
    from chronik.local.shards import shard_layout
    from chronik.local.supervisor import Supervisor

    layout, ids = shard_layout(resolved.settings, resolved.origins, count)
    layout.write()
    processes = [NodeProcess(layout.node(node_id), is_leashed=True) for node_id in ids]

    def on_ready() -> None:
        first = layout.node(ids[0]).peer
        http = first.http.port if first.http is not None else 0
        print(greeting(resolved.settings, first.kafka.port or 0, http or 0, shards=ids), flush=True)
        notify(environment(), "READY=1")

    await Supervisor(layout, processes).run(on_ready)


def refuse_open_doors(settings: Settings) -> None:
    """Before anything else is done: the node would say the same, later."""
    from chronik.server.open_doors import check_doors

    try:
        check_doors(settings)
    except ConfigError as error:
        raise StartFailed(str(error)) from None


def loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def serve(resolved: Resolved) -> None:
    """Start the node, say where it is, stop it in order at the first signal; a second one kills."""
    from chronik.node import Node

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.set_exception_handler(on_exception)
    node = Node(resolved.settings)
    try:
        if not await started(node.start(), stop):
            return
    except OSError as error:
        raise StartFailed(why(error)) from None
    keep_what_is_there()
    print(greeting(resolved.settings, node.kafka_port, node.http_port), flush=True)
    notify(environment(), "READY=1")
    await stop.wait()
    notify(environment(), "STOPPING=1")
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
    await node.stop()


async def started(start: Coroutine[None, None, None], stop: asyncio.Event) -> bool:
    """Wait for the start, which may wait for other nodes for ever; False if it was told to stop first."""
    starting, stopping = asyncio.ensure_future(start), asyncio.ensure_future(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        return False
    await starting
    return True


def collect_rarely() -> None:
    """What a request allocates goes by reference count; looking for cycles after every 700 objects took a
    tenth of the time of small requests, and a sixth of the time that it takes to load the node's modules."""
    gc.set_threshold(GC_OBJECTS, 10, 10)


def keep_what_is_there() -> None:
    """What the start made stays for good and is not looked at again. Hardly any of it is garbage."""
    gc.freeze()


def on_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What no callback handled. A broken invariant ends the process at once: the next start recovers. So does
    metadata of a newer release: this one must not guess what it means."""
    loop.default_exception_handler(context)
    if isinstance(context.get("exception"), InvariantViolated | TooNew):
        logging.getLogger("chronik").critical("the node ends: %s", context["exception"])
        os._exit(EXIT_BROKEN)


@contextlib.contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Keep other nodes out of the data directory: recovery cuts what a running one is about to write."""
    try:
        make_private(data_dir)
        file = open_private(data_dir / "lock", "wb")
    except OSError as error:
        raise StartFailed(why(error)) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartFailed(f"{data_dir}: another node is using this data directory") from None
        keep_private(data_dir)
        yield


def keep_private(data_dir: Path) -> None:
    """See to it that nobody else on this machine may read what the node keeps, or what its children write."""
    os.umask(0o077)
    try:
        changed = tighten(data_dir)
    except OSError as error:
        log.warning(
            "%s stays readable for others, since its modes cannot be changed: %s", data_dir, why(error)
        )
        return
    if changed:
        log.info("%s: took the rights of others from %d files and directories", data_dir, changed)


def greeting(settings: Settings, kafka_port: int, http_port: int, shards: Sequence[int] = ()) -> str:
    kafka = settings.advertised(kafka_port=kafka_port)
    server = "" if str(kafka) == BOOTSTRAP_DEFAULT else f" --bootstrap {kafka}"
    return "\n".join(
        (
            f"chronik {__version__}, "
            + (f"shards {', '.join(map(str, shards))}" if shards else f"node {settings.node_id}"),
            f"  Kafka    {kafka}",
            f"  console  {settings.http_scheme}://{kafka.host}:{http_port}",
            f"  data     {settings.data_dir.resolve()}",
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
