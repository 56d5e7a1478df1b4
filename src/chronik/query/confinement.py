"""Restricts a query process to its task by means of the kernel, so that a bug in it does less harm.

Landlock leaves it the files that it needs to read, one folder to write, and connections to brokers' ports.
seccomp takes away new processes, other programs, and what has no place in a query. Resource limits bound its
memory and files. All of it is inherited by threads that start later, so it is set up before there are any; it
cannot be undone. Where a kernel lacks a part, the process runs without and says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import resource
import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

__all__ = ["Confinement", "confine"]

# landlock.h
_READ: Final = 1 << 2 | 1 << 3
_WRITE: Final = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8
"""Write and remove files and folders, make either. No links, sockets, pipes or devices."""
_ALL_BY_ABI: Final = ((1, (1 << 13) - 1), (2, 1 << 13), (3, 1 << 14), (5, 1 << 15))
"""File rights by the ABI version that introduced them. Landlock denies all of them that no rule grants."""
_MAKE_LINK: Final = 1 << 12
_TRUNCATE: Final = 1 << 14
_ABI_TRUNCATE: Final = 3
_CONNECT: Final = 2
_BIND_AND_CONNECT: Final = 3
_ABI_NETWORK: Final = 4
_SIGNALS_AND_SOCKETS: Final = 3
"""Signals to other processes, and connections to their abstract sockets."""
_ABI_SCOPES: Final = 6
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ABI_QUESTION: Final = 1
_RULE_PATH, _RULE_PORT = 1, 2

_PR_GET_SECCOMP: Final = 21
_PR_SET_NO_NEW_PRIVS: Final = 38
_SECCOMP_SET_MODE_FILTER: Final = 1
_SECCOMP_ALL_THREADS: Final = 1
_CLONE_THREAD: Final = 0x10000

_FILES: Final = (
    *("/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf"),
    *("/etc/services", "/etc/protocols", "/etc/localtime", "/etc/ld.so.cache"),
    *("/proc/self", "/proc/stat", "/proc/meminfo", "/proc/cpuinfo", "/sys/devices/system/cpu"),
    "/proc/sys/vm/overcommit_memory",
    *("/sys/fs/cgroup", "/dev/null", "/dev/urandom", "/usr", "/lib", "/lib64"),
)
"""Readable besides Python and what is named for the task. Nothing of other processes, and no secrets.

DuckDB's allocator (jemalloc) looks whether the machine overcommits. Where it cannot, it reserves addresses
first and puts memory into it with MAP_FIXED, and `RLIMIT_DATA` does not count what replaces a mapping.
"""


class _Machine(msgspec.Struct, frozen=True):
    audit_arch: int
    seccomp: int
    clone: int
    tgkill: int
    socket: int
    refused: tuple[int, ...]
    """fork, vfork, execve, execveat, kill, tkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal,
    ptrace, process_vm_*, pidfd_getfd, open_by_handle_at, mount,
    umount2, pivot_root, chroot, unshare, setns, bpf, perf_event_open, modules, keys, userfaultfd, io_uring.
    aarch64 has no fork and vfork."""


_CLONE3: Final = 435
_SOCKET_TYPE: Final = 0xF
"""The type of a socket without its flags."""
_MACHINES: Final = {
    "x86_64": _Machine(
        0xC000003E,
        317,
        56,
        234,
        41,
        (
            *(57, 58, 59, 322, 62, 200, 129, 297, 424),
            *(101, 310, 311, 438, 304, 165, 166, 155, 161, 272, 308, 321, 298),
            *(175, 313, 176, 248, 249, 250, 323, 425),
        ),
    ),
    "aarch64": _Machine(
        0xC00000B7,
        277,
        220,
        131,
        198,
        (
            *(221, 281, 129, 130, 138, 240, 424),
            *(117, 270, 271, 438, 265, 40, 39, 41, 51, 97, 268, 280, 241),
            *(105, 273, 106, 217, 218, 219, 282, 425),
        ),
    ),
}


class Confinement(msgspec.Struct, frozen=True, kw_only=True):
    """What a process may use."""

    writable: Path
    readable: Sequence[Path] = ()
    ports: Sequence[int] = ()
    data_bytes_max: int
    """Memory of its own; files that are mapped do not count."""
    files_max: int
    may_link: bool = False
    """Make symbolic links in its folder."""


def confine(wanted: Confinement) -> dict[str, str]:
    """Take everything else away from this process, for good. Returns what holds, for people."""
    libc = ctypes.CDLL(None, use_errno=True)
    others = len(os.listdir("/proc/self/task")) - 1 if Path("/proc/self/task").is_dir() else 0
    holds = {"environment": f"{len(os.environ)} variables"}  # noqa: TID251 (counted, not read)
    holds["memory"] = _limit(
        resource.RLIMIT_DATA, wanted.data_bytes_max, f"{wanted.data_bytes_max >> 20} MiB"
    )
    holds["open files"] = _limit(resource.RLIMIT_NOFILE, wanted.files_max, str(wanted.files_max))
    _limit(resource.RLIMIT_CORE, 0, "")
    no_new_rights = libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    holds["no new privileges"] = "yes" if no_new_rights else "not on this kernel"
    try:
        holds["files and network"] = _landlock(libc, wanted)
        if others:
            holds["files and network"] += f", but not {others} threads that ran before"
    except OSError as error:
        holds["files and network"] = f"not confined: {error.strerror}"
    try:
        holds["processes"] = _seccomp(libc)
    except OSError as error:
        holds["processes"] = f"not confined: {error.strerror}"
    return holds


def offered() -> dict[str, str]:
    """What this kernel offers to confine a process with, for people. Confines nothing."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = libc.syscall(_CREATE_RULESET, None, 0, _ABI_QUESTION)
    network = "" if found >= _ABI_NETWORK else ", without the network"
    filters = libc.prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) >= 0 and platform.machine() in _MACHINES
    return {
        "environment": "a few variables",
        "memory": "limited",
        "open files": "limited",
        "files and network": f"Landlock {found}{network}" if found >= 1 else "not confined: no Landlock",
        "processes": "seccomp" if filters else "not confined: no seccomp",
    }


def _limit(what: int, value: int, said: str) -> str:
    """Both the soft and the hard limit, so that the process cannot raise it."""
    _, hard = resource.getrlimit(what)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(what, (value, value))
    except (OSError, ValueError) as error:
        return f"not limited: {error}"
    return f"at most {said}"


# --- Landlock ------------------------------------------------------------------------------------------


def _landlock(libc: ctypes.CDLL, wanted: Confinement) -> str:
    abi = libc.syscall(_CREATE_RULESET, None, 0, _ABI_QUESTION)
    if abi < 1:
        raise OSError(ctypes.get_errno(), "this kernel has no Landlock")
    handled = sum(rights for since, rights in _ALL_BY_ABI if since <= abi)
    network = _BIND_AND_CONNECT if abi >= _ABI_NETWORK else 0
    scopes = _SIGNALS_AND_SOCKETS if abi >= _ABI_SCOPES else 0
    attributes = struct.pack("=QQQ", handled, network, scopes)
    size = 8 if abi < _ABI_NETWORK else 16 if abi < _ABI_SCOPES else 24
    ruleset = _call(libc, _CREATE_RULESET, attributes[:size], size, 0)
    try:
        for path in _readable(wanted.readable):
            _allow_path(libc, ruleset, path, _READ)
        writes = _READ | _WRITE | (_TRUNCATE if abi >= _ABI_TRUNCATE else 0)
        writes |= _MAKE_LINK if wanted.may_link else 0
        _allow_path(libc, ruleset, wanted.writable, writes)
        for port in wanted.ports if network else ():
            _call(libc, _ADD_RULE, ruleset, _RULE_PORT, struct.pack("=QQ", _CONNECT, port), 0)
        _call(libc, _RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    ports = ", ".join(map(str, sorted(wanted.ports)))
    reach = f"connects to ports {ports} only" if network else "the network is not confined"
    return f"Landlock {abi}: writes its own folder only, reads what it needs, {reach}"


def _readable(named: Iterable[Path]) -> Iterable[Path]:
    modules = (Path(one) for one in sys.path if one)
    yield from {Path(sys.prefix), Path(sys.base_prefix), *modules, *map(Path, _FILES), *named}


def _allow_path(libc: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        found = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not path.is_dir():
                rights &= _READ & ~(1 << 3)
            _call(libc, _ADD_RULE, ruleset, _RULE_PATH, struct.pack("=Qi", rights, found), 0)
        finally:
            os.close(found)


def _call(libc: ctypes.CDLL, number: int, *given: int | bytes) -> int:
    result = int(libc.syscall(number, *given))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


# --- seccomp -------------------------------------------------------------------------------------------

_LOAD: Final = 0x20
_IF_EQUAL: Final = 0x15
_AND: Final = 0x54
_IF_AT_LEAST: Final = 0x35
_IF_ANY_BIT: Final = 0x45
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_KILL: Final = 0x80000000
_ERROR: Final = 0x00050000
_OTHER_ABI: Final = 0x40000000
"""System calls of the x32 ABI have numbers from here on, which the list would not match."""


def _seccomp(libc: ctypes.CDLL) -> str:
    machine = _MACHINES.get(platform.machine())
    if machine is None or sys.platform != "linux":
        raise OSError(errno.ENOSYS, f"no list of system calls for {platform.machine()}")
    program = b"".join(struct.pack("=HBBI", *step) for step in _program(machine))
    held = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(held))
    _call(libc, machine.seccomp, _SECCOMP_SET_MODE_FILTER, _SECCOMP_ALL_THREADS, header)
    return "seccomp: no other program, no other process, no signals to others, TCP and UDP only"


def _program(machine: _Machine) -> Iterable[tuple[int, int, int, int]]:
    refuse = (_RETURN, 0, 0, _ERROR | errno.EPERM)
    yield (_LOAD, 0, 0, 4)  # the architecture
    yield (_IF_EQUAL, 1, 0, machine.audit_arch)
    yield (_RETURN, 0, 0, _KILL)
    yield (_LOAD, 0, 0, 0)  # the number of the call
    yield (_IF_AT_LEAST, 0, 1, _OTHER_ABI)
    yield refuse
    for number in machine.refused:
        yield (_IF_EQUAL, 0, 1, number)
        yield refuse
    # clone3 has its flags in memory, which a filter cannot read. Without it libc uses clone.
    yield (_IF_EQUAL, 0, 1, _CLONE3)
    yield (_RETURN, 0, 0, _ERROR | errno.ENOSYS)
    # A signal to a thread of this process is how abort() ends it.
    yield (_IF_EQUAL, 0, 4, machine.tgkill)
    yield (_LOAD, 0, 0, 16)  # its first argument: the process
    yield (_IF_EQUAL, 1, 0, os.getpid())
    yield refuse
    yield (_RETURN, 0, 0, _ALLOW)
    # Kafka's ports are reached by TCP, names are asked for by UDP. Landlock sees TCP only.
    yield (_IF_EQUAL, 0, 10, machine.socket)
    yield (_LOAD, 0, 0, 16)  # the family
    yield (_IF_EQUAL, 2, 0, socket.AF_INET)
    yield (_IF_EQUAL, 1, 0, socket.AF_INET6)
    yield refuse
    yield (_LOAD, 0, 0, 24)  # the type
    yield (_AND, 0, 0, _SOCKET_TYPE)
    yield (_IF_EQUAL, 2, 0, socket.SOCK_STREAM)
    yield (_IF_EQUAL, 1, 0, socket.SOCK_DGRAM)
    yield refuse
    yield (_RETURN, 0, 0, _ALLOW)
    yield (_IF_EQUAL, 0, 3, machine.clone)
    yield (_LOAD, 0, 0, 16)  # its first argument: flags
    yield (_IF_ANY_BIT, 1, 0, _CLONE_THREAD)
    yield refuse
    yield (_RETURN, 0, 0, _ALLOW)
