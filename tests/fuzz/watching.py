"""What a node looks like from outside while it is fed: how soon `/health` answers, memory, its log."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from pathlib import Path
from typing import Final

from tests.node import ChronikNode
from tests.process import HOST

HEALTH_SECONDS_MAX: Final = 2.0
INTERVAL_S: Final = 0.1
MIB: Final = 1024 * 1024


def memory(pid: int, name: str = "VmRSS") -> int:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended a moment ago
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0


def processes(node: ChronikNode) -> dict[str, int]:
    """The node and its query processes, by what they are."""
    found = {"node": node.pid}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rsplit(")", 1)[1].split()[1])
            command = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == node.pid:
            kind = next(
                (kind for kind in ("search", "sql") if f'"kind":"{kind}"'.encode() in command), "child"
            )
            found[kind] = int(path.parent.name)
    return found


class Watch:
    """Looks at a node between `start` and `stop`; `problems` is what was wrong."""

    def __init__(self, node: ChronikNode, budgets: dict[str, int]) -> None:
        """`budgets` are bytes of resident memory by process, the node's on top of what it has at `start`."""
        self._node = node
        self._budgets = budgets
        self.peaks: dict[str, int] = {}
        self.slowest_s = 0.0
        self.health_s: list[float] = []
        self.problems: list[str] = []
        self._base = 0
        self._log_at = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def start(self) -> None:
        self._base = memory(self._node.pid)
        self._log_at = self._node.log.stat().st_size
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        if not self._node.running:
            self.problems.append(f"the node ended: {self._node.log_tail()}")
        self.read_log()
        for kind, peak in self.peaks.items():
            used = peak - self._base if kind == "node" else peak
            if used > self._budgets[kind]:
                self.problems.append(
                    f"{kind} took {used // MIB} MiB, {self._budgets[kind] // MIB} are allowed"
                )

    def health_p95_s(self) -> float:
        ordered = sorted(self.health_s)
        return ordered[int(len(ordered) * 0.95)] if ordered else 0.0

    def read_log(self) -> None:
        """Tracebacks since the last look."""
        with self._node.log.open("rb") as file:
            file.seek(self._log_at)
            text = file.read().decode(errors="replace")
            self._log_at = file.tell()
        at = text.find("Traceback (most recent")
        if at >= 0:
            self.problems.append(f"a traceback in the log: {text[max(0, at - 300) : at + 3000]}")

    def _look(self) -> None:
        while not self._is_over.wait(INTERVAL_S):
            try:
                self._ask_health()
                for kind, pid in processes(self._node).items():
                    self.peaks[kind] = max(self.peaks.get(kind, 0), memory(pid))
            except OSError as error:
                if self._node.running:
                    self.problems.append(f"/health: {error!r}")
                    continue
                return

    def _ask_health(self) -> None:
        began = time.monotonic()
        connection = http.client.HTTPConnection(HOST, int(str(self._node.settings["http_port"])), timeout=20)
        connection.request("GET", "/health")
        status = connection.getresponse().status
        connection.close()
        took = time.monotonic() - began
        self.slowest_s = max(self.slowest_s, took)
        self.health_s.append(took)
        if status != 200 or took > HEALTH_SECONDS_MAX:
            self.problems.append(f"/health: {status} after {took:.1f} s")
