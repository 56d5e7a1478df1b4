"""What the object store has of one record: which object holds it, and its batch if no local copy is left."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from chronik.admin.context import AdminContext
from chronik.model import ChronikError, PeerError
from chronik.records.batch import BatchHeader, read_header
from chronik.records.reader import read_marker
from chronik.replication.partition import Partition

__all__ = ["RemoteBatch", "RemotePlace", "look_into_store"]

STORE_SECONDS: Final = 2.0
"""Shorter than nodes wait for each other's answers: a slow store must not hide what the node itself knows."""


class RemoteBatch(NamedTuple):
    header: BatchHeader
    is_commit: bool | None
    """What a transaction marker says; None for every other batch."""
    transaction: str | None
    """committed or aborted: what is in the store has ended. None for a batch of no transaction."""


class RemotePlace(NamedTuple):
    object_name: str | None
    """None: the store did not tell in time, or what it told made no sense."""
    batch: RemoteBatch | None


async def look_into_store(context: AdminContext, here: Partition, offset: int) -> RemotePlace | None:
    """None if the store does not have the record, or this node has no store."""
    remote = here.remote
    if context.tiering is None or remote is None or not remote.start_offset <= offset < remote.end_offset:
        return None
    name, batch = None, None
    try:
        async with asyncio.timeout(STORE_SECONDS):
            name = await context.tiering.object_of(here, offset)
            if offset < here.log.log_start_offset:
                batch = await _batch(here, offset)
    except (ChronikError, OSError):  # TimeoutError is an OSError
        pass
    return RemotePlace(name, batch)


async def _batch(here: Partition, offset: int) -> RemoteBatch | None:
    until = asyncio.get_running_loop().time() + STORE_SECONDS
    found = await here.read(offset, 1, here.high_watermark, until=until)
    if not found.buffers:
        return None
    data = bytes(found.buffers[0])
    try:
        header = read_header(data)
        marker = read_marker(data[: header.size_bytes]) if header.is_control else None
    except PeerError:
        return None
    if not header.base_offset <= offset <= header.last_offset:
        return None
    transaction = None
    if header.is_transactional and not header.is_control:
        aborted = any(
            producer_id == header.producer_id and first <= header.base_offset
            for producer_id, first in found.aborted or ()
        )
        transaction = "aborted" if aborted else "committed"
    return RemoteBatch(header, None if marker is None else marker.is_commit, transaction)
