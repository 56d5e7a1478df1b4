"""Producer ids, unique in the cluster: taken from the metadata log a block at a time."""

from __future__ import annotations

import asyncio
from typing import Final

from chronik.metadata.commands import AllocateProducerIds
from chronik.metadata.store import MetadataStore
from chronik.model import NodeId, invariant

BLOCK: Final = 1000
"""What is left of a block when a node stops is never used; there are 2^63 ids."""


class ProducerIds:
    def __init__(self, metadata: MetadataStore, node_id: NodeId) -> None:
        self._metadata = metadata
        self._node_id = node_id
        self._next = 0
        self._end = 0
        self._refill = asyncio.Lock()

    async def next(self) -> int:
        """A new id; RequestError or Unavailable when the metadata log cannot give any."""
        while self._next == self._end:
            async with self._refill:
                if self._next == self._end:
                    await self._take_block()
        self._next += 1
        return self._next - 1

    async def _take_block(self) -> None:
        outcome = await self._metadata.submit(AllocateProducerIds(broker_id=self._node_id, count=BLOCK))
        first = outcome.value
        invariant(first is not None, "a block of producer ids has a first one")
        self._next = int(first or 0)
        self._end = self._next + BLOCK
