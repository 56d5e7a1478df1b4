"""What a start on this machine would stumble over, or a node that runs has: settings, ports, directory."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from chronik.config import Settings, table
from chronik.doctor.findings import Finding, ok, warning, wrong
from chronik.doctor.machine import existing
from chronik.private_files import DIRECTORY_MODE


def look_at_start(
    settings: Settings, *, refusal: str | None, doubts: Iterable[str], is_running: bool
) -> list[Finding]:
    """`refusal`: why a start refuses the settings, with the way out behind a colon. `doubts`: warnings that
    a start gives. `is_running`: a node uses the data directory now."""
    return [
        *_settings(refusal, doubts),
        *_ports(settings, is_running=is_running),
        *_directory(settings.data_dir),
    ]


def _settings(refusal: str | None, doubts: Iterable[str]) -> Iterator[Finding]:
    if refusal is not None:
        said, _, fix = refusal.partition(": ")
        yield wrong("settings", said, f"{fix[:1].upper()}{fix[1:]}.")
    else:
        yield ok("settings", "a start accepts them")
    for said in doubts:
        yield warning("settings", said, "Change the setting; `chronik config show` says where it comes from.")


def _ports(settings: Settings, *, is_running: bool) -> Iterator[Finding]:
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
        parent = existing(data_dir)
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
