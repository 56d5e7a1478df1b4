"""One process from which all Python processes of a local Spark are forked, so that they share what they load.

Spark starts a Python for every kind of planning question, for each stream and for the workers. Each would
load pyspark and pyarrow for itself, in time and in memory. Here the first that Spark starts makes a nursery,
which loads that once; each start, the first included, sends its order there (module, arguments, environment,
standard streams), is replaced by a process that does nothing but end when the order has been carried out,
and the nursery forks one that carries it out.

The nursery ends when Spark closes the standard input of the process that made it, which Spark's death does
too. A start that finds no nursery and cannot make one goes on by itself, as plain Python would.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import hashlib
import importlib
import json
import os
import select
import shutil
import signal
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NoReturn

_SIZE: Final = struct.Struct(">I")
_TAKEN: Final = b"+"
_LOADED: Final = (
    "pyspark.worker",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "chronik.spark.source",
)
"""What most need. Not what is run as `__main__`, nor the compiled scanner: only workers want that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A module to run as `python -m` would."""

    module: str
    arguments: list[str]
    path: list[str]
    directory: str
    environment: dict[str, str]

    @classmethod
    def of_this_process(cls, module: str) -> Order:
        return cls(
            module=module,
            arguments=sys.argv[1:],
            path=sys.path,
            directory=os.getcwd(),
            environment=dict(os.environ),  # noqa: TID251 (handed on as Spark made it)
        )

    def adopt(self) -> None:
        """Make this process what the one that sent the order was."""
        os.environ.clear()  # noqa: TID251
        os.environ.update(self.environment)  # noqa: TID251
        os.chdir(self.directory)
        sys.argv[1:] = self.arguments
        sys.path[:] = self.path
        with contextlib.suppress(OSError):  # what ps shows, since the command line is the nursery's
            Path("/proc/self/comm").write_text((self.arguments or [self.module])[0].rpartition("sql.")[2])


def forked(module: str, directory: Path) -> str:
    """Returns in the process that is to run a module, with the module's name; maybe another than this one.

    Only for what Spark starts: it gives its processes a pipe to read from, and does not ask how they ended.
    The directory must be writable for this user alone: who may write there may run programs.
    """
    if not stat.S_ISFIFO(os.fstat(0).st_mode):
        return module
    order = Order.of_this_process(module)
    try:
        connection = _connected(directory / _name(order))
    except OSError:
        return module
    if isinstance(connection, Order):
        return connection.module
    if _sent(connection, order):
        _wait_for_the_end_of(connection)
    return module


def _connected(path: Path) -> socket.socket | Order:
    """A connection to the nursery, which is made if there is none; an order in processes forked from that."""
    with _locked(path.parent):
        if (connection := _connect(path)) is not None:
            return connection
        path.unlink(missing_ok=True)
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(path))
        server.listen()
    if not os.fork():
        try:
            return _serve(server, path)
        except (OSError, struct.error):  # who sent the order is gone: it must not be carried out by the next
            sys.exit(1)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    server.close()
    return connection


def _name(order: Order) -> str:
    """A nursery for each Spark, and for each way in which its processes want Python to start."""
    start = [sys.executable, order.path[1:], order.environment.get("PYTHONHASHSEED")]  # first is where it is
    digest = hashlib.sha256(json.dumps(start).encode()).hexdigest()
    return f"spark-{os.getppid()}-{digest[:12]}"


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    opened = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _connect(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    return connection


def _sent(connection: socket.socket, order: Order) -> bool:
    """Whether a process was made that carries the order out."""
    text = json.dumps(asdict(order)).encode()
    try:
        socket.send_fds(connection, [_SIZE.pack(len(text))], [0, 1, 2])
        connection.sendall(text)
        return connection.recv(1) == _TAKEN
    except OSError:
        return False


def _received(connection: socket.socket) -> Order:
    """The order, with its standard streams put in place of this process's."""
    size, streams, _, _ = socket.recv_fds(connection, _SIZE.size, 3)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    with connection.makefile("rb") as file:
        order = Order(**json.loads(file.read(*_SIZE.unpack(size))))
    connection.sendall(_TAKEN)
    return order


def _wait_for_the_end_of(connection: socket.socket) -> NoReturn:
    """Spark watches this process and may end it; it need not hold a Python meanwhile.

    The other end is open as long as a process lives that came from the order, and nothing is ever sent.
    """
    cat = shutil.which("cat")
    if cat is not None:
        os.dup2(connection.fileno(), 0)
        os.execv(cat, ["cat"])
    connection.recv(1)
    sys.exit()


def _share_the_fate_of(connection: int) -> None:
    """Spark ends a process by a signal to the one it started: when that is gone, the signal comes here."""
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(connection, fcntl.F_SETFL, os.O_ASYNC)


def _serve(server: socket.socket, path: Path) -> Order:
    """Be the nursery. Returns in the processes that it forks."""
    lifeline = os.dup(0)
    with open(os.devnull, "r+b") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text("pyspark.nursery")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # noqa: TID251 (numpy's, as Spark sets it for its workers)
    with contextlib.suppress(ImportError):  # whoever needs it says so better
        for name in _LOADED:
            importlib.import_module(name)
    gc.freeze()  # a collection would touch, and so copy, the pages that all share
    waiting = select.poll()
    waiting.register(server, select.POLLIN)
    waiting.register(lifeline, 0)
    while True:
        if any(source == lifeline for source, _ in waiting.poll()):
            path.unlink(missing_ok=True)
            sys.exit()
        connection, _ = server.accept()
        if not os.fork():
            server.close()
            os.close(lifeline)
            signal.signal(signal.SIGINT, interrupted)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            order = _received(connection)
            _share_the_fate_of(connection.detach())
            order.adopt()
            return order
        connection.close()
