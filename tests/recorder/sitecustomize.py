"""Notes, inside every node that a test run starts, which client sent which API in which version.

A line has the number of a connection, the client id, the API key and the version; or, once a client has told
it, the number of the connection and the client's name and version.

Python imports this module by itself when its folder is on PYTHONPATH. It does nothing in processes that are
no node of this source tree, nor without REQUESTS_SEEN_DIR. `tests/compat/recording.py` reads the files.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import secrets
import struct
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

WATCHED = "chronik.server.connection"
SOURCE = Path(__file__).resolve().parents[2] / "src"


class _Finder(MetaPathFinder):
    """Lets the module be imported as ever, then installs the notes in it."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != WATCHED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        # Another release of chronik, in a test of upgrades, may offer other versions.
        if spec is None or spec.loader is None or not Path(str(spec.origin)).is_relative_to(SOURCE):
            return spec
        execute = spec.loader.exec_module

        def execute_and_install(module: ModuleType) -> None:
            execute(module)
            _install(module)

        spec.loader.exec_module = execute_and_install  # type: ignore[method-assign]
        return spec


def _install(module: ModuleType) -> None:
    from chronik.wire.api import ApiKey, parse_request_header
    from chronik.wire.schema import decode_request

    kind = module.KafkaConnection
    on_frame = kind._on_frame
    numbers = itertools.count()
    # Process ids are given again in a long run; connections of two nodes must not be mixed up.
    notes = Path(os.environ["REQUESTS_SEEN_DIR"]) / f"{os.getpid()}-{secrets.token_hex(8)}.tsv"

    def write(*columns: object) -> None:
        with open(notes, "a") as file:
            print(*columns, sep="\t", file=file)

    def note(connection: Any, frame: memoryview) -> None:
        session = connection._session
        if session is not None and session.expects_bare:
            return  # a SASL token without a request around it
        known = connection.__dict__.setdefault("requests_seen", (next(numbers), set()))
        number, sent = known
        key, version = struct.unpack_from(">hh", frame)
        if (key, version) in sent:
            return
        sent.add((key, version))
        header, offset = parse_request_header(frame)
        if key == ApiKey.API_VERSIONS and 3 <= version <= 4:
            asked = decode_request(key, version, frame, offset)
            write(number, f"{asked.client_software_name} {asked.client_software_version}")
        write(number, header.client_id or "", key, version)

    def noting(connection: Any, frame: memoryview) -> None:
        # Tests send malformed requests: it is for the node to refuse them.
        with contextlib.suppress(Exception):
            note(connection, frame)
        on_frame(connection, frame)

    kind._on_frame = noting


if os.environ.get("REQUESTS_SEEN_DIR"):
    sys.meta_path.insert(0, _Finder())
