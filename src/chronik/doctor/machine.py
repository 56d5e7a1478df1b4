"""What is looked at on a machine whether a node runs there or not: disk, clock, limits, certificates.

Only what a broker depends on: it maps no segments into memory, so that vm.max_map_count does not matter.
"""

from __future__ import annotations

import ctypes
import datetime
import importlib.metadata
import os
import platform
import resource
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from chronik import __version__
from chronik.config import Settings, table
from chronik.doctor.findings import Finding, ok, unknown, warning, wrong
from chronik.memory import group_folders, read_number
from chronik.words import human_bytes

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
_READABLE: Final = "Give a PEM file that the node may read."
VOLATILE: Final = {"tmpfs", "ramfs"}
REMOTE: Final = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"}
_TIME_ERROR: Final = 5
"""adjtimex(2): the clock is not synchronised."""


def look_at_machine(settings: Settings) -> list[Finding]:
    return [
        *versions(),
        *_disk(settings.data_dir),
        *_clock(),
        *_limits(),
        *_kernel(),
        *_certificates(settings),
    ]


def versions() -> Iterator[Finding]:
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


def existing(path: Path) -> Path:
    path = path.absolute()
    return path if path.exists() else existing(path.parent)


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
    place = existing(data_dir)
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
        if path is None:
            continue
        if name.endswith("tls_cert"):
            yield _certificate(f"certificate {path.name}", path)
        elif name.endswith(("tls_ca", "tls_client_ca")):
            yield _authorities(f"authorities {path.name}", path)


def _ends(path: Path) -> list[datetime.datetime] | str:
    """When the certificates of a file expire, ascending; or why that cannot be said."""
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return sorted(one.not_valid_after_utc for one in load_pem_x509_certificates(path.read_bytes()))
    except (OSError, ValueError) as error:
        return f"{path} cannot be read ({error})"


def _certificate(check: str, path: Path) -> Finding:
    ends = _ends(path)
    if isinstance(ends, str):
        return wrong(check, ends, _READABLE)
    end = ends[0]
    days = (end - datetime.datetime.now(datetime.UTC)).days
    fix = "Put a new certificate into the file and restart the node."
    if days < 0:
        return wrong(check, f"expired on {end:%Y-%m-%d}", fix)
    if days < CERTIFICATE_DAYS_MIN:
        return warning(check, f"expires on {end:%Y-%m-%d}, in {days} days", fix)
    return ok(check, f"valid until {end:%Y-%m-%d}")


def _authorities(check: str, path: Path) -> Finding:
    """Findings on a file of authorities. While one replaces another the file has both, and the older one may
    have expired."""
    ends = _ends(path)
    if isinstance(ends, str):
        return wrong(check, ends, _READABLE)
    now = datetime.datetime.now(datetime.UTC)
    fix = "Add the new authority to the file, then replace the certificates that the old one signed."
    if ends[-1] < now:
        return wrong(check, f"expired on {ends[-1]:%Y-%m-%d}: no certificate is believed", fix)
    if ends[0] < now:
        gone = sum(end < now for end in ends)
        fix = "Take it out of the file once no certificate that it signed is in use."
        return warning(check, f"{gone} of {len(ends)} expired, the first on {ends[0]:%Y-%m-%d}", fix)
    days = (ends[0] - now).days
    if days < CERTIFICATE_DAYS_MIN:
        return warning(check, f"one of {len(ends)} expires on {ends[0]:%Y-%m-%d}, in {days} days", fix)
    return ok(check, f"valid until {ends[0]:%Y-%m-%d}")
