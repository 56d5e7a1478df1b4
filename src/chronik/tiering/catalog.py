"""Which objects make up a partition's remote log: manifests are read, written and made to count here."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Container, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Protocol, TypeAlias
from uuid import UUID

from chronik.metadata.commands import Command, Noop, RemoteLog, SetRemoteLog
from chronik.metadata.state import ClusterState
from chronik.metadata.values import Outcome
from chronik.metrics import TieringStats
from chronik.model import ErrorCode, RequestError, StorageError, Unavailable
from chronik.objects.door import ObjectDoor
from chronik.replication.replica import Replica
from chronik.storage.disk import IoThread
from chronik.tiering.fetches import Fetches, ObjectPart
from chronik.tiering.manifest import (
    MANIFEST_BYTES_MAX,
    DamagedObject,
    RemoteManifest,
    check_manifest,
    cluster_folder,
    decode_manifest,
    encode,
    manifest_name,
    remote_log,
)

__all__ = ["EMPTY", "Catalog", "Key"]

EMPTY: Final = RemoteManifest()
MANIFESTS_BYTES_MAX: Final = 96 * 1024 * 1024
"""Of all manifests that are kept in memory, about. The one that was read last always is."""
_SEGMENT_BYTES: Final = 500
_EPOCH_BYTES: Final = 120
_MANIFEST_BYTES: Final = 1_000
"""Even an empty one, with what refers to it."""
LARGE_BYTES: Final = 128 * 1024
LARGE_SEGMENTS: Final = 1_000
"""What is larger is decoded, checked and encoded beside the event loop: it takes a millisecond or more."""
_MEMORY_PER_BYTE: Final = 4
"""Memory that a manifest takes while it is decoded, for each of its bytes."""
Key: TypeAlias = tuple[bytes, int]


class MetadataSubmitter(Protocol):
    @property
    def state(self) -> ClusterState: ...
    def submit(self, command: Command) -> Coroutine[Any, Any, Outcome]: ...


class Catalog:
    def __init__(
        self,
        door: ObjectDoor,
        fetches: Fetches,
        metadata: MetadataSubmitter,
        rng: random.Random,
        stats: TieringStats,
    ) -> None:
        self.door = door
        self._fetches = fetches
        self.metadata = metadata
        self.stats = stats
        self._rng = rng
        self._manifests: OrderedDict[Key, tuple[str, RemoteManifest]] = OrderedDict()
        """Manifests with the names of their objects; least recently used first."""
        self._locks: dict[Key, asyncio.Lock] = {}
        self._unanswered: set[Key] = set()
        """Partitions whose last change may count or not."""

    # --- names -------------------------------------------------------------------------------------

    @property
    def root(self) -> str:
        """The folder of this cluster in the store."""
        cluster_id = self.metadata.state.cluster_id
        if cluster_id is None:
            raise Unavailable("The cluster has no id yet.")
        return cluster_folder(cluster_id)

    def topic_folder(self, topic_id: UUID) -> str:
        return f"{self.root}/{topic_id.hex}"

    def folder(self, partition: Replica) -> str:
        return f"{self.topic_folder(partition.topic_id)}/{partition.tp.partition}"

    def path(self, partition: Replica, name: str) -> str:
        return f"{self.folder(partition)}/{name}"

    def unique(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"

    # --- reading -----------------------------------------------------------------------------------

    async def manifest(self, partition: Replica) -> RemoteManifest:
        """The manifest that the metadata log names, as far as this node knows it."""
        remote = partition.remote
        if remote is None or not remote.manifest:
            return EMPTY
        key = _key(partition)
        known = self._manifests.get(key)
        if known is not None and known[0] == remote.manifest:
            self._manifests.move_to_end(key)
            return known[1]
        if not 0 < remote.manifest_bytes <= MANIFEST_BYTES_MAX:
            raise DamagedObject(f"the manifest of {partition.tp} has {remote.manifest_bytes} bytes")
        part = ObjectPart(self.path(partition, remote.manifest), 0, remote.manifest_bytes)
        fetch = partial(self._fetch, partition, remote, part)
        return await self._fetches.get(part, fetch, _MEMORY_PER_BYTE * part.size)

    async def _fetch(self, partition: Replica, remote: RemoteLog, part: ObjectPart) -> RemoteManifest:
        data = await self.door.get(*part)
        try:
            if len(data) <= LARGE_BYTES:
                found = decode_manifest(data, remote)
            else:
                found = await partition.log.disk.run(IoThread.READ, partial(decode_manifest, data, remote))
        except DamagedObject as error:
            self.stats.damaged += 1
            raise DamagedObject(f"the manifest of {partition.tp} is damaged: {error}") from None
        if partition.remote is not None and partition.remote.manifest == remote.manifest:
            self.keep(_key(partition), remote.manifest, found)
        return found

    def keep(self, key: Key, name: str, manifest: RemoteManifest) -> None:
        self._drop(key)
        self._manifests[key] = (name, manifest)
        self.stats.manifest_bytes += _bytes_of(manifest)
        while self.stats.manifest_bytes > MANIFESTS_BYTES_MAX and len(self._manifests) > 1:
            self._drop(next(iter(self._manifests)))

    def _drop(self, key: Key) -> None:
        dropped = self._manifests.pop(key, None)
        if dropped is not None:
            self.stats.manifest_bytes -= _bytes_of(dropped[1])

    # --- changing ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def changing(self, partition: Replica) -> AsyncIterator[None]:
        """Held by who changes a partition's remote log, or the start of its log, on the leader.

        What an earlier change that got no answer came to is known inside: it could undo a deletion later.
        """
        key = _key(partition)
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key in self._unanswered:
                await self.metadata.submit(Noop())
                self._unanswered.discard(key)
            yield

    def forget_missing(self, known: Container[Key]) -> None:
        """Drop what is kept of partitions that have no replica here any more."""
        for key in [key for key, lock in self._locks.items() if key not in known and not lock.locked()]:
            del self._locks[key]
        self._unanswered = {key for key in self._unanswered if key in known}
        for key in [key for key in self._manifests if key not in known]:
            self._drop(key)

    async def commit(
        self,
        partition: Replica,
        leader_epoch: int,
        manifest: RemoteManifest,
        start_offset: int,
        end_offset: int,
    ) -> None:
        """Make this manifest the one that counts. Call it inside `changing`.

        RequestError if the partition has another leader epoch by now, or another manifest counts. After
        Unavailable or a time-out it may count or not: the partition's `remote` tells, sooner or later.
        """
        before = partition.remote
        previous = "" if before is None else before.manifest
        if not manifest.segments:
            after = RemoteLog(start_offset=end_offset, end_offset=end_offset)
        elif before is not None and manifest is self._known(partition, previous):
            after = RemoteLog(
                start_offset=start_offset,
                end_offset=before.end_offset,
                manifest=previous,
                manifest_bytes=before.manifest_bytes,
                manifest_crc=before.manifest_crc,
                size_bytes=before.size_bytes,
            )
        else:
            after = await self._store(partition, leader_epoch, manifest, start_offset)
        command = SetRemoteLog(
            topic_id=partition.topic_id,
            partition=partition.tp.partition,
            leader_epoch=leader_epoch,
            previous=previous,
            remote=after,
        )
        await self._submit(_key(partition), command)
        if after.manifest:
            self.keep(_key(partition), after.manifest, manifest)

    async def _submit(self, key: Key, command: SetRemoteLog) -> None:
        self._unanswered.add(key)
        try:
            await self.metadata.submit(command)
        except RequestError as error:
            if error.code != ErrorCode.request_timed_out:
                self._unanswered.discard(key)  # refused
            raise
        self._unanswered.discard(key)

    def _known(self, partition: Replica, name: str) -> RemoteManifest | None:
        known = self._manifests.get(_key(partition))
        return known[1] if known is not None and known[0] == name else None

    async def _store(
        self, partition: Replica, leader_epoch: int, manifest: RemoteManifest, start_offset: int
    ) -> RemoteLog:
        work = partial(_checked, manifest, start_offset)
        data = (
            work()
            if len(manifest.segments) <= LARGE_SEGMENTS
            else await partition.log.disk.run(IoThread.BACKGROUND, work)
        )
        if len(data) > MANIFEST_BYTES_MAX:
            raise StorageError(f"the manifest of {partition.tp} would have {len(data)} bytes")
        name = manifest_name(leader_epoch, manifest.segments[-1].end_offset, self.unique())

        async def whole() -> AsyncIterator[bytes]:
            yield data

        await self.door.put(self.path(partition, name), whole)
        return remote_log(manifest, start_offset, name, data)


def _checked(manifest: RemoteManifest, start_offset: int) -> bytes:
    """The manifest as it is stored. Blocking if it is large."""
    check_manifest(manifest, start_offset, manifest.segments[-1].end_offset)
    return encode(manifest)


def _key(partition: Replica) -> Key:
    return partition.topic_id.bytes, partition.tp.partition


def _bytes_of(manifest: RemoteManifest) -> int:
    """Memory, about: it must not cost a look at each segment."""
    return _MANIFEST_BYTES + _SEGMENT_BYTES * len(manifest.segments) + _EPOCH_BYTES * len(manifest.epochs)
