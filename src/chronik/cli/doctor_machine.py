"""What `chronik doctor` looks at on this machine: everything a start would stumble over, and slow poison.

Only what a broker depends on: it maps no segments into memory, so that vm.max_map_count does not matter.
"""

from __future__ import annotations

import ctypes
import datetime
import errno
import importlib.metadata
import os
import platform
import resource
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from chronik import __version__
from chronik.cli.client import human_bytes
from chronik.cli.findings import Finding, ok, unknown, warning, wrong
from chronik.cli.start import StartFailed, refuse_open_doors
from chronik.config import Settings, table
from chronik.config_sources import Resolved
from chronik.local.process import is_in_use
from chronik.memory import group_folders, read_number
from chronik.private_files import DIRECTORY_MODE

DISK_FREE_WRONG: Final = 0.05
DISK_FREE_WARNING: Final = 0.15
DISK_BYTES_MIN: Final = 1 << 30
INODES_FREE_MIN: Final = 10_000
FILES_WRONG: Final = 1024
FILES_WARNING: Final = 16_384
MEMORY_BYTES_MIN: Final = 256 << 20
BACKLOG: Final = 1024
"""What the listeners ask for; the kernel gives no more than net.core.somaxconn."""
EARLIEST_PLAUSIBLE_S: Final = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC).timestamp()
CERTIFICATE_DAYS_MIN: Final = 30
VOLATILE: Final = {"tmpfs", "ramfs"}
REMOTE: Final = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"}
_TIME_ERROR: Final = 5
"""adjtimex(2): the clock is not synchronised."""


def look_at_machine(resolved: Resolved) -> list[Finding]:
    settings = resolved.settings
    return [
        *_versions(),
        *_settings(resolved),
        *_ports(settings),
        *_directory(settings.data_dir),
        *_disk(settings.data_dir),
        *_clock(),
        *_limits(),
        *_kernel(),
        *_certificates(settings),
    ]


def _versions() -> Iterator[Finding]:
    said = (
        f"chronik {__version__}, Python {platform.python_version()}, {platform.system()} {platform.release()}"
    )
    if platform.system() != "Linux":
        yield warning("versions", said, "Run nodes on Linux: nothing else is tested.")
        return
    try:
        version = importlib.metadata.version("uvloop")
    except importlib.metadata.PackageNotFoundError:
        yield warning(
            "versions",
            f"{said}, no uvloop",
            "Install it with `pip install uvloop`: a node is slower without.",
        )
        return
    yield ok("versions", f"{said}, uvloop {version}")


def _settings(resolved: Resolved) -> Iterator[Finding]:
    try:
        refuse_open_doors(resolved.settings)
    except StartFailed as error:
        said, _, fix = str(error).partition(": ")
        yield wrong("settings", said, f"{fix[:1].upper()}{fix[1:]}.")
    else:
        yield ok("settings", "a start accepts them")
    for said in resolved.warnings:
        yield warning("settings", said, "Change the setting; `chronik config show` says where it comes from.")


def _ports(settings: Settings) -> Iterator[Finding]:
    is_running = is_in_use(settings.data_dir)
    between_nodes = ("wal_port", "raft_port") if settings.peers else ()
    for name in ("kafka_port", "http_port", *between_nodes):
        port, flag = getattr(settings, name), table()[name].flag
        check = f"port {port}"
        if port == 0:
            continue
        if is_running:
            yield _is_served(settings.reachable_here, port, check, flag)
            continue
        family = socket.AF_INET6 if ":" in settings.bind else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((settings.bind, port))
            except OSError as error:
                yield _not_bound(error, settings.bind, port, check, flag)
            else:
                yield ok(check, "free")


def _is_served(host: str, port: int, check: str, flag: str | None) -> Finding:
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError as error:
        return wrong(
            check,
            f"a node uses the data directory, but nothing answers here ({error.strerror or error})",
            f"Give the same {flag} as to `chronik start`, or restart the node if it is the right one.",
        )
    return ok(check, "the node answers")


def _not_bound(error: OSError, bind: str, port: int, check: str, flag: str | None) -> Finding:
    if error.errno == errno.EADDRINUSE:
        return wrong(
            check,
            "another program has it",
            f"Stop that program (`ss -ltnp 'sport = :{port}'` names it), or choose another with {flag}.",
        )
    if error.errno == errno.EACCES:
        return wrong(check, "only root may listen here", f"Choose a port from 1024 on with {flag}.")
    return wrong(
        check, f"{bind} cannot be listened on ({error.strerror})", "Give --bind an address of this machine."
    )


def _directory(data_dir: Path) -> Iterator[Finding]:
    check = "data directory"
    if not data_dir.exists():
        parent = _existing(data_dir)
        if os.access(parent, os.W_OK | os.X_OK):
            yield ok(check, f"{data_dir} will be made at the first start")
        else:
            yield wrong(
                check,
                f"{data_dir} is not there and {parent} cannot be written to",
                f"Make it for the node's user: `install -d -m 700 -o USER {data_dir}`.",
            )
        return
    found = data_dir.stat()
    if found.st_uid != os.geteuid() and os.geteuid() != 0:
        yield wrong(
            check,
            f"{data_dir} belongs to user {found.st_uid}, this is {os.geteuid()}",
            f"Run as its owner, or give it over: `chown -R USER {data_dir}`.",
        )
    elif found.st_mode & 0o777 & ~DIRECTORY_MODE:
        yield wrong(
            check,
            f"{data_dir} has mode {found.st_mode & 0o777:o}: others on this machine can look into it",
            f"Take that from them: `chmod {DIRECTORY_MODE:o} {data_dir}` (a start does it as well).",
        )
    else:
        yield ok(check, f"{data_dir}, for its owner alone")


def _existing(path: Path) -> Path:
    path = path.absolute()
    return path if path.exists() else _existing(path.parent)


def disk_space(free_bytes: int, total_bytes: int, free_inodes: int | None) -> Finding:
    """`free_inodes` is None on a file system that does not count them."""
    share = free_bytes / total_bytes if total_bytes else 0.0
    said = f"{human_bytes(free_bytes)} free of {human_bytes(total_bytes)} ({share:.0%})"
    fix = "Make room or shorten retention (`chronik config set --topic TOPIC retention.ms=...`)."
    if share < DISK_FREE_WRONG or free_bytes < DISK_BYTES_MIN:
        return wrong("disk", said, fix)
    if share < DISK_FREE_WARNING:
        return warning("disk", said, fix)
    if free_inodes is not None and free_inodes < INODES_FREE_MIN:
        return wrong("disk", f"{free_inodes:,} inodes free", "Remove files, or use a file system with more.")
    return ok("disk", said)


def _disk(data_dir: Path) -> Iterator[Finding]:
    place = _existing(data_dir)
    usage, inodes = shutil.disk_usage(place), os.statvfs(place)
    yield disk_space(usage.free, usage.total, inodes.f_favail if inodes.f_files else None)
    kind = file_system(place, Path("/proc/mounts"))
    if kind in VOLATILE:
        yield warning(
            "file system", f"{kind}: all records are gone after a restart", "Use a disk for --data-dir."
        )
    elif kind in REMOTE:
        yield warning(
            "file system", f"{kind}: a sync may not reach a disk", "Use a local disk for --data-dir."
        )
    elif kind is not None:
        yield ok("file system", kind)


def file_system(path: Path, mounts: Path) -> str | None:
    """The type of the mount that holds a path."""
    found, longest = None, -1
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, point, kind, *_ = line.split(" ")
        point = point.encode().decode("unicode_escape")
        if path.is_relative_to(point) and len(point) >= longest:
            found, longest = kind, len(point)
    return found


def _clock() -> Iterator[Finding]:
    fix = "Let chrony or systemd-timesyncd set it (`timedatectl set-ntp true`)."
    if time.time() < EARLIEST_PLAUSIBLE_S:
        now = datetime.datetime.now(datetime.UTC)
        yield wrong("clock", f"it says {now:%Y-%m-%d}, which is in the past", fix)
        return
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))
    except (OSError, AttributeError):
        state = -1
    if state < 0:
        yield unknown("clock", "the kernel does not tell whether it is synchronised")
    elif state == _TIME_ERROR:
        yield warning("clock", "not synchronised: timestamps and retention by age go by it", fix)
    else:
        yield ok("clock", "synchronised")


def _limits() -> Iterator[Finding]:
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_unlimited = files == resource.RLIM_INFINITY
    said = "unlimited" if is_unlimited else f"at most {files:,}, half of them for Kafka connections"
    fix = "Raise it: LimitNOFILE= in the systemd unit, or `ulimit -Hn` in the shell that starts the node."
    if not is_unlimited and files < FILES_WRONG:
        yield wrong("open files", said, fix)
    elif not is_unlimited and files < FILES_WARNING:
        yield warning("open files", said, fix)
    else:
        yield ok("open files", said)
    size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size != resource.RLIM_INFINITY:
        yield wrong(
            "file size",
            f"files may have {human_bytes(size)} at most",
            "Lift the limit: `ulimit -f unlimited`.",
        )


def _kernel() -> Iterator[Finding]:
    backlog = read_number(Path("/proc/sys/net/core/somaxconn"))
    if backlog is None:
        yield unknown("net.core.somaxconn", "cannot be read")
    elif backlog < BACKLOG:
        yield warning(
            "net.core.somaxconn",
            f"{backlog}: connections are refused when more arrive at once",
            f"Raise it: `sysctl -w net.core.somaxconn={BACKLOG}`.",
        )
    else:
        yield ok("net.core.somaxconn", str(backlog))
    available = available_memory(Path("/proc/meminfo"), Path("/sys/fs/cgroup"))
    if available is None:
        yield unknown("memory", "the kernel does not tell how much is available")
    elif available < MEMORY_BYTES_MIN:
        yield wrong("memory", f"{human_bytes(available)} available", "Stop other programs or add memory.")
    else:
        yield ok("memory", f"{human_bytes(available)} available")


def available_memory(meminfo: Path, cgroup: Path, own_group: Path = Path("/proc/self/cgroup")) -> int | None:
    """What may still be used: of the machine, or of the control group if that is less.

    A control group counts the page cache as used; the kernel gives back what is inactive of it first.
    """
    found = []
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    except OSError:
        pass
    for folder, (_, limit_name, used_name, cache_name) in group_folders(own_group, cgroup):
        limit, used = read_number(folder / limit_name), read_number(folder / used_name)
        if limit is not None and used is not None:
            cache = _statistic(folder / "memory.stat", cache_name)
            found.append(max(0, limit - max(0, used - cache)))
    return min(found, default=None)


def _statistic(path: Path, name: str) -> int:
    """One value of a file of `name value` lines; 0 if it is not there."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)


def _certificates(settings: Settings) -> Iterator[Finding]:
    for name in table():
        path = getattr(settings, name)
        if name.endswith("tls_cert") and path is not None:
            yield _certificate(f"certificate {path.name}", path)


def _certificate(check: str, path: Path) -> Finding:
    from cryptography.x509 import load_pem_x509_certificates

    try:
        chain = load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        return wrong(check, f"{path} cannot be read ({error})", "Give a PEM file that the node may read.")
    end = min(one.not_valid_after_utc for one in chain)
    days = (end - datetime.datetime.now(datetime.UTC)).days
    fix = "Put a new certificate into the file and restart the node."
    if days < 0:
        return wrong(check, f"expired on {end:%Y-%m-%d}", fix)
    if days < CERTIFICATE_DAYS_MIN:
        return warning(check, f"expires on {end:%Y-%m-%d}, in {days} days", fix)
    return ok(check, f"valid until {end:%Y-%m-%d}")
