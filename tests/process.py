"""A server in a process of its own: start, wait until it answers, stop, kill, start again."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

from chronik.local.leash import leashed

HOST = "127.0.0.1"
POLL_S = 0.02


class ServerFailed(AssertionError):
    """The server did not start or stop as it should; the message holds the end of its log."""


def cpu_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def brokers_seen(port: int, timeout_s: float = 2) -> int:
    """How many brokers a Metadata request (version 1) to this port names; 0 when nobody answers."""
    body = struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 0)
    try:
        with socket.create_connection((HOST, port), timeout=timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            answer = connection.makefile("rb").read(12)
    except OSError:
        return 0
    return int(struct.unpack(">i", answer[8:12])[0]) if len(answer) == 12 else 0


class ServerProcess:
    """What tests and benchmarks need of a broker, whoever made it.

    A subclass says how the process is started; the data stays in `folder` between starts.
    """

    name = "server"

    def __init__(self, folder: Path, *, kafka_port: int, env: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.kafka_port = kafka_port
        self.env = env or {}
        self.log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.kafka_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.env}

    def prepare(self) -> None:
        """What must be done once before the first start."""

    def spawn(self) -> None:
        """Start the process and do not wait for anything."""
        assert not self.running
        self.folder.mkdir(parents=True, exist_ok=True)
        self.prepare()
        with self.log.open("ab") as log:
            # What a short-lived thread starts would end with it.
            lasting = threading.current_thread() is threading.main_thread()
            self._process = subprocess.Popen(
                leashed(self.command()) if lasting else self.command(),
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start(self, *, timeout_s: float = 60) -> float:
        """Start and wait until it names itself to clients; returns the seconds that took."""
        began = time.monotonic()
        self.spawn()
        assert self._process is not None
        while not brokers_seen(self.kafka_port):
            if self._process.poll() is not None:
                raise ServerFailed(f"{self.name} ended with {self._process.returncode}: {self.log_tail()}")
            if time.monotonic() - began > timeout_s:
                self.kill()
                raise ServerFailed(f"{self.name} did not answer within {timeout_s} s: {self.log_tail()}")
            time.sleep(POLL_S)
        return time.monotonic() - began

    def stop(self, *, number: signal.Signals = signal.SIGTERM, timeout_s: float = 60) -> float:
        """A signal, and wait for an orderly end; returns the seconds that took."""
        process = self._process
        if process is None or process.poll() is not None:
            return 0.0
        began = time.monotonic()
        process.send_signal(number)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(
                f"{self.name} ignored {number.name} for {timeout_s} s: {self.log_tail()}"
            ) from None
        if code not in (0, 143):  # 143: a Java process that ended in order on SIGTERM
            raise ServerFailed(f"{self.name} ended with {code}: {self.log_tail()}")
        return time.monotonic() - began

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        self.stop()
        self.start()

    def rss_bytes(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise ServerFailed(f"{self.name} has no resident memory: {self.log_tail()}")

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def segment_files(self, topic: str) -> list[Path]:
        """The `.log` files of a topic's partitions, in order."""
        raise NotImplementedError

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
