"""Manifests that are read and written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chronik.tiering import catalog
from tests.unit.tiering.support import tiered


async def test_large_manifests_are_worked_on_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 50,000 segments takes a tenth of a second, in which no client would get an answer."""
    threads: dict[str, set[threading.Thread]] = {}

    def noting(name: str) -> Callable[..., Any]:
        work = getattr(catalog, name)

        def noted(*args: Any) -> Any:
            threads.setdefault(name, set()).add(threading.current_thread())
            return work(*args)

        return noted

    for name in ("decode_manifest", "check_manifest", "encode"):
        monkeypatch.setattr(catalog, name, noting(name))
    monkeypatch.setattr(catalog, "LARGE_BYTES", 100)
    monkeypatch.setattr(catalog, "LARGE_SEGMENTS", 1)
    async with tiered(tmp_path) as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        await world.retain_locally()
        world.catalog.forget_missing(())
        assert await world.offsets() == list(range(100))
    assert set(threads) == {"decode_manifest", "check_manifest", "encode"}
    assert all(threading.main_thread() not in seen for seen in threads.values())
