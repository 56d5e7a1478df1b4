"""What a confined process can still do: tried from inside, on this kernel (R02)."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import textwrap
from typing import Any

import pytest

PROBE = """
import asyncio, ctypes, json, os, platform, socket, sys, threading
from pathlib import Path
from chronik.query.confinement import Confinement, confine

own, secret, archive, allowed_port, other_port = sys.argv[1:]
held = os.pidfd_open(os.getpid())
holds = confine(Confinement(
    writable=Path(own), readable=[Path(archive)], ports=[int(allowed_port)],
    data_bytes_max=200 * 1024 * 1024, files_max=64))

def tried(work):
    try:
        work()
    except BaseException as error:
        return type(error).__name__
    return "done"

def fork():
    if os.fork() == 0:
        os._exit(0)

def connect(port):
    with socket.create_connection(("127.0.0.1", int(port)), 5):
        pass

def bind():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))

def call(x86_64, aarch64, *given):
    number = x86_64 if platform.machine() == "x86_64" else aarch64
    if ctypes.CDLL(None, use_errno=True).syscall(number, *given) < 0:
        raise OSError(ctypes.get_errno(), "refused")

def in_thread(work):
    found = []
    thread = threading.Thread(target=lambda: found.append(tried(work)))
    thread.start()
    thread.join()
    return found[0]

def duckdb_list():
    import duckdb
    duckdb.sql("SELECT len(range(100000000))").fetchall()

own, secret, archive = Path(own), Path(secret), Path(archive)
(own / "a").write_text("1")
print(json.dumps({"holds": holds, "tried": {
    "write own": tried(lambda: (own / "deep").mkdir() or (own / "deep" / "b").write_text("2")),
    "rename own": tried(lambda: (own / "a").rename(own / "c")),
    "thread": in_thread(lambda: None),
    "read archive": tried((archive / "data").read_text),
    "write archive": tried(lambda: (archive / "data").write_text("x")),
    "make in archive": tried(lambda: (archive / "new").write_text("x")),
    "remove in archive": tried((archive / "data").unlink),
    "truncate in archive": tried(lambda: os.truncate(archive / "data", 0)),
    "read secret": tried(secret.read_text),
    "read secret in thread": in_thread(secret.read_text),
    "read others": tried(Path(f"/proc/{os.getppid()}/environ").read_bytes),
    "write tmp": tried(lambda: (own.parent / "planted").write_text("x")),
    "symlink": tried(lambda: (own / "link").symlink_to("/etc/passwd")),
    "exec": tried(lambda: os.execv("/bin/true", ["true"])),
    "fork": tried(fork),
    "spawn": tried(lambda: os.posix_spawn("/bin/true", ["true"], {})),
    "kill": tried(lambda: os.kill(os.getppid(), 0)),
    # To itself: Landlock forbids signals to others where the kernel is new enough.
    "tkill": tried(lambda: call(200, 130, threading.get_native_id(), 0)),
    "tgkill": tried(lambda: call(234, 131, os.getppid(), os.getppid(), 0)),
    "own tgkill": tried(lambda: call(234, 131, os.getpid(), threading.get_native_id(), 0)),
    "rt_sigqueueinfo": tried(lambda: call(129, 138, os.getpid(), 0, bytes(128))),
    "rt_tgsigqueueinfo": tried(lambda: call(297, 240, os.getpid(), threading.get_native_id(), 0, bytes(128))),
    "pidfd_send_signal": tried(lambda: call(424, 424, held, 0, None, 0)),
    "unix socket": tried(lambda: socket.socket(socket.AF_UNIX).close()),
    "netlink socket": tried(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close()),
    "packet socket": tried(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM).close()),
    "raw socket": tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close()),
    "names": tried(lambda: socket.getaddrinfo("localhost", 80)),
    "loop": tried(lambda: asyncio.run(asyncio.sleep(0))),
    "connect": tried(lambda: connect(allowed_port)),
    "connect elsewhere": tried(lambda: connect(other_port)),
    "bind": tried(bind),
    "memory": tried(lambda: bytearray(300 * 1024 * 1024)),
    "memory of DuckDB": in_thread(duckdb_list),
    "files": tried(lambda: [os.dup(0) for _ in range(100)]),
}}))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("confined")
    own, archive = root / "own", root / "archive"
    for folder in (own, archive):
        folder.mkdir()
    (archive / "data").write_text("archived")
    (root / "secret").write_text("key")
    with socket.create_server(("127.0.0.1", 0)) as allowed, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [str(one.getsockname()[1]) for one in (allowed, other)]
        given = [str(own), str(root / "secret"), str(archive), *ports]
        command = [sys.executable, "-I", "-c", textwrap.dedent(PROBE), *given]
        found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert (archive / "data").read_text() == "archived"
    assert sorted(path.name for path in archive.iterdir()) == ["data"]
    assert not (own.parent / "planted").exists()
    return json.loads(found.stdout)


def test_everything_holds_on_this_kernel(seen: Any) -> None:
    assert seen["holds"]["files and network"].startswith("Landlock ")
    assert "threads" not in seen["holds"]["files and network"]
    assert seen["holds"]["processes"].startswith("seccomp")
    assert seen["holds"]["no new privileges"] == "yes"
    assert seen["holds"]["memory"] == "at most 200 MiB"


@pytest.mark.parametrize(
    "what", ["write own", "rename own", "thread", "read archive", "connect", "own tgkill", "names", "loop"]
)
def test_its_task_is_possible(seen: Any, what: str) -> None:
    assert seen["tried"][what] == "done"


@pytest.mark.parametrize(
    "what",
    [
        *("write archive", "make in archive", "remove in archive", "truncate in archive", "read secret"),
        *("read secret in thread", "read others", "write tmp", "symlink", "exec", "fork", "spawn", "kill"),
        *("connect elsewhere", "bind", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"),
        *("pidfd_send_signal", "unix socket", "netlink socket", "packet socket", "raw socket"),
    ],
)
def test_nothing_else_is(seen: Any, what: str) -> None:
    assert seen["tried"][what] == "PermissionError"


def test_memory_and_files_are_limited(seen: Any) -> None:
    assert seen["tried"]["memory"] == "MemoryError"
    assert seen["tried"]["memory of DuckDB"] == "OutOfMemoryException", "its allocator is another one"
    assert seen["tried"]["files"] == "OSError"
