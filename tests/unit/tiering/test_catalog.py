"""Manifests that are read and written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chronik.metadata import commands as c
from chronik.model import ChronikError, RequestError
from chronik.tiering import catalog
from chronik.tiering.manifest import (
    RemoteManifest,
)
from tests.unit.tiering.support import TOPIC_ID, tiered


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


async def test_a_manifest_made_from_another_than_the_one_that_counts_is_refused(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        remote = world.partition.remote
        assert remote is not None
        other = c.RemoteLog(start_offset=0, end_offset=200, manifest="x", manifest_bytes=1)
        for epoch, previous, then in (
            (0, "", other),
            (1, remote.manifest, other),
            (0, remote.manifest, c.RemoteLog(start_offset=0, end_offset=1, manifest="x")),
            (0, remote.manifest, c.RemoteLog(start_offset=0, end_offset=200)),
        ):
            command = c.SetRemoteLog(
                topic_id=TOPIC_ID, partition=0, leader_epoch=epoch, previous=previous, remote=then
            )
            with pytest.raises(RequestError):
                world.metadata.apply(command)
        assert world.partition.remote == remote


async def test_manifests_in_memory_are_bounded_by_their_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tiered(tmp_path) as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        await world.retain_locally()
        monkeypatch.setattr(catalog, "MANIFESTS_BYTES_MAX", 1)
        own = await world.catalog.manifest(world.partition)
        assert len(own.segments) > 1
        assert await world.catalog.manifest(world.partition) is own, "the last one is kept"
        world.catalog.keep((b"another", 0), "x", own)
        world.catalog.keep((b"another", 1), "x", own)
        again = await world.catalog.manifest(world.partition)
        assert again is not own
        assert again == own


async def test_every_manifest_in_memory_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "MANIFESTS_BYTES_MAX", 500_000)
    async with tiered(tmp_path) as world:
        empty, many_epochs = RemoteManifest(), RemoteManifest((), tuple((n, n) for n in range(3_000)))
        for number in range(1_000):
            world.catalog.keep((b"another", number), "x", empty)
        assert 0 < world.stats.manifest_bytes <= 500_000
        world.catalog.keep((b"large", 0), "x", many_epochs)
        assert 300_000 < world.stats.manifest_bytes <= 500_000
        world.catalog.forget_missing(set())
        assert world.stats.manifest_bytes == 0


async def test_two_clusters_with_long_ids_share_no_folder(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        roots = set()
        for end in ("a", "b"):
            world.metadata.state.cluster_id = 60 * "x" + end
            roots.add(world.catalog.root)
        assert len(roots) == 2


async def test_a_manifest_that_nobody_could_read_is_not_made_to_count(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        await world.fill(100)
        await world.uploader.upload(world.partition)
        before = world.partition.remote
        assert before is not None
        manifest = await world.catalog.manifest(world.partition)
        torn = RemoteManifest((manifest.segments[0], *manifest.segments[2:]), manifest.epochs)
        with pytest.raises(ChronikError):
            await world.catalog.commit(world.partition, 0, torn, 0, before.end_offset)
        assert world.partition.remote == before
