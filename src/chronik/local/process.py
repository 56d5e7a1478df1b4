"""A node as a process in the background: started, signalled, waited for, by way of its pid file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from chronik.config import ENV_PREFIX
from chronik.config_sources import environment
from chronik.local.layout import LocalNode
from chronik.local.leash import leashed
from chronik.model import ChronikError
from chronik.private_files import make_private, open_private

POLL_SECONDS: Final = 0.02
STOP_SECONDS_MAX: Final = 30.0

_OWN: Final = (
    "NODE_ID",
    "DATA_DIR",
    "ADVERTISE",
    "KAFKA_PORT",
    "WAL_PORT",
    "RAFT_PORT",
    "HTTP_PORT",
    "SHARDS",
)
"""Variables that would give all nodes the same identity: the file says what each one has."""


class ProcessFailed(ChronikError):
    """A node did not start or stop as it should; the message is one sentence for a person."""


class NodeProcess:
    """The process of one local node, started by this process or by another."""

    def __init__(
        self, node: LocalNode, *, env: Mapping[str, str] | None = None, is_leashed: bool = False
    ) -> None:
        """`is_leashed`: it ends with the thread that starts it (Linux)."""
        self.node = node
        self._is_leashed = is_leashed
        self._env = dict(env or {})
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process that runs the node, or None."""
        if self._child is not None:
            return self._child.pid if self._child.poll() is None else None
        try:
            pid = int(self.node.pid_file.read_text())
        except (OSError, ValueError):
            return None
        # A pid may belong to somebody else by now; a node holds the lock of its data directory.
        return pid if is_in_use(self.node.data_dir) and _exists(pid) else None

    @property
    def is_running(self) -> bool:
        return self.pid is not None

    @property
    def exit_code(self) -> int | None:
        """How a process that this object started ended."""
        return None if self._child is None else self._child.poll()

    def start(self, *, env: Mapping[str, str] | None = None) -> None:
        """Start the node in a session of its own; returns at once."""
        if self.is_running:
            raise ProcessFailed(f"node {self.node.id} runs already, as process {self.pid}")
        make_private(self.node.folder)
        command = [sys.executable, "-c", "from chronik.cli import main; main()", *self.node.start_arguments()]
        with open_private(self.node.log_file, "ab") as log:
            self._child = subprocess.Popen(
                leashed(command) if self._is_leashed else command,
                cwd=self.node.folder,
                env=self._environment(env or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        with open_private(self.node.pid_file, "wb") as pid_file:
            pid_file.write(f"{self._child.pid}\n".encode())

    def signal(self, number: signal.Signals) -> None:
        pid = self.pid
        if pid is None:
            raise ProcessFailed(f"node {self.node.id} does not run")
        os.kill(pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.wait(STOP_SECONDS_MAX)

    def stop(self, *, timeout_s: float = STOP_SECONDS_MAX) -> None:
        """SIGTERM, and wait for an orderly end."""
        self.signal(signal.SIGTERM)
        self.wait(timeout_s)

    def wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self.is_running:
            if time.monotonic() > deadline:
                raise ProcessFailed(
                    f"node {self.node.id} (process {self.pid}) still runs after {timeout_s:g} s"
                )
            time.sleep(POLL_SECONDS)
        with contextlib.suppress(OSError):
            self.node.pid_file.unlink()

    def log_tail(self, lines: int = 1) -> str:
        """The end of the log, where the reason of a failed start stands."""
        try:
            with self.node.log_file.open("rb") as log:
                log.seek(max(0, self.node.log_file.stat().st_size - 8192))
                found = log.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return "\n".join(found[-lines:])

    def _environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        kept = {
            name: value
            for name, value in environment().items()
            if name not in {ENV_PREFIX + own for own in _OWN}
        }
        source = str(Path(__file__).parents[2])
        paths = [source, *(path for path in (kept.get("PYTHONPATH"),) if path)]
        return {**kept, "PYTHONPATH": os.pathsep.join(paths), **self._env, **extra}


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_in_use(data_dir: Path) -> bool:
    """Whether a node holds the lock of this data directory."""
    try:
        with (data_dir / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
