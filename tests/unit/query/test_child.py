"""The query process ends with its node, whatever its own parts are up to."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chronik.query import child as module
from chronik.query.child import Child, ChildOptions


def test_it_ends_with_its_node_even_if_its_indexer_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them were found that had outlived their nodes by an hour."""
    monkeypatch.setattr(module, "STOP_SECONDS_MAX", 0.01)

    async def main() -> None:
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
        await begun.wait()
        reader.feed_eof()
        await asyncio.wait_for(running, 60)
        is_over = True

    asyncio.run(main())
