"""The query process ends with its node, whatever its own parts are up to."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from chronik.config import Settings
from chronik.metadata.events import BrokerRegistered, CertificatesReloaded
from chronik.query import child as module
from chronik.query.child import Child, ChildOptions
from chronik.query.confinement import Confinement
from chronik.query.gateway import QueryGateway
from chronik.query.messages import Assignment, Credentials
from chronik.records import compression
from tests.unit.server.live import live


@pytest.mark.parametrize(("kind", "most"), [("search", 600), ("sql", 700 + 448)])
def test_each_process_has_its_own_limit_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, most: int
) -> None:
    """The search process could once take four gigabytes, whatever the settings said."""
    wanted: list[Confinement] = []
    monkeypatch.setattr(module, "confine", lambda given: wanted.append(given) or {})
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    settings = Settings(search_memory_bytes_max=600 << 20, sql_memory_bytes_max=700 << 20, data_dir=tmp_path)
    gateway = QueryGateway(settings, None, None, kafka=("127.0.0.1", 1), endpoint="kafka", credentials=None)  # type: ignore[arg-type]
    options = msgspec.convert(gateway._options(kind), ChildOptions)
    module.settle(options)
    assert wanted[0].data_bytes_max == most << 20


async def test_processes_hear_that_their_node_registered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they log in with is void from then on."""
    sent: list[object] = []
    given = Credentials(mechanism="m", user="query", password="p")
    gateway = QueryGateway(
        Settings(node_id=7, data_dir=tmp_path),
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        kafka=("127.0.0.1", 1),
        credentials=lambda: given,
    )
    for process in gateway.processes:
        monkeypatch.setattr(process, "send", sent.append)
    monkeypatch.setattr(gateway, "_update_assignment", lambda: None)
    gateway._on_event(BrokerRegistered(broker_id=8, broker_epoch=1))
    assert sent == []
    gateway._on_event(BrokerRegistered(broker_id=7, broker_epoch=2))
    assert sent == [given, given]
    gateway._on_event(CertificatesReloaded())
    assert sent == [given] * 4, "what it believes is among them"


async def test_what_is_not_indexed_yet_has_a_part_of_it(tmp_path: Path) -> None:
    options = ChildOptions(data_dir=str(tmp_path), host="127.0.0.1", port=1, search_memory_bytes=600 << 20)
    child = Child(options, None)  # type: ignore[arg-type]
    assert child._indexer._tails_bytes_max == 150 << 20


async def test_it_ends_with_its_node_even_if_its_indexer_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them were found that had outlived their nodes by an hour."""
    monkeypatch.setattr(module, "STOP_SECONDS_MAX", 0.01)

    begun = asyncio.Event()

    async def goes_on() -> None:
        begun.set()
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if is_over:
                    raise

    is_over = False
    reader = asyncio.StreamReader()
    child = Child(ChildOptions(data_dir=str(tmp_path), host="127.0.0.1", port=1), None)  # type: ignore[arg-type]
    monkeypatch.setattr(child._indexer, "run", goes_on)
    running = asyncio.get_running_loop().create_task(child.run(reader))
    child._take(Assignment(topics={}))  # it indexes from here on
    await begun.wait()
    reader.feed_eof()
    await asyncio.wait_for(running, 60)
    is_over = True


async def test_it_ends_if_its_indexer_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node starts another one: it would go on without an index otherwise, and nobody would hear of it."""

    async def fails() -> None:
        raise KeyError("a bug")

    child = Child(ChildOptions(data_dir=str(tmp_path), host="127.0.0.1", port=1), None)  # type: ignore[arg-type]
    monkeypatch.setattr(child._indexer, "run", fails)
    child._take(Assignment(topics={}))
    with pytest.raises(KeyError, match="a bug"):
        await asyncio.wait_for(child.run(asyncio.StreamReader()), 10)


def test_its_decompression_has_the_limit_of_the_node(tmp_path: Path) -> None:
    """In a process of its own: it gives up its rights as well."""
    code = (
        "import sys\n"
        "from chronik.query.child import ChildOptions, settle\n"
        "from chronik.records.compression import decompressed_bytes_allowed\n"
        "settle(ChildOptions(data_dir=sys.argv[1], host='h', port=1, decompressed_bytes_max=3 << 20))\n"
        "print(decompressed_bytes_allowed(1))\n"
    )
    run = [sys.executable, "-c", code, str(tmp_path)]
    found = subprocess.run(run, capture_output=True, text=True, check=True)
    assert int(found.stdout) == 3 << 20


async def test_a_node_tells_its_children_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_process = compression._Process
    monkeypatch.setattr(of_process, "decompressed_bytes_max", of_process.decompressed_bytes_max)
    async with live(tmp_path, decompressed_bytes_max=5 << 20) as node:
        context = node.node.parts.admin_context(node.node.listener_ports)
        for kind in ("search", "sql"):
            options = msgspec.convert(context.queries._options(kind), ChildOptions)
            assert options.decompressed_bytes_max == 5 << 20
