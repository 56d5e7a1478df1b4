"""What leaves on a link: frames, gathered so that each turn of the loop writes once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from chronik.links.seal import TAG_BYTES, Seal
from chronik.records.batch import Buffer

WRITE_BUFFER_BYTES_MAX: Final = 16 * 1024 * 1024


class Outbox:
    """The sending half of a link, from the moment it is connected until it is closed."""

    __slots__ = ("_flush_scheduled", "_loop", "_out", "_transport", "is_writable", "sealing")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._out: list[Buffer] = []
        self._flush_scheduled = False
        self.sealing: Seal | None = None
        """Closes each frame that is queued from now on, where the link has no TLS and the nodes a secret."""
        self.is_writable = True
        """False while the peer does not read as fast as this node writes."""

    def open(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_MAX)

    def close(self) -> None:
        self._transport = None
        self._out.clear()

    def pause(self) -> None:
        self.is_writable = False

    def resume(self) -> None:
        self.is_writable = True

    def seal_with(self, sealing: Seal | None) -> None:
        """What is queued from now on is sealed, if there is a seal."""
        self.sealing = sealing

    def send(self, head: bytes, body: Sequence[Buffer] = ()) -> None:
        """Queue a frame; everything queued in one turn of the loop leaves in one write."""
        if self._transport is None:
            return
        size = len(head) + sum(map(len, body))
        if self.sealing is None:
            self._out.append(size.to_bytes(4, "big") + head)
            self._out += body
        else:
            self._out.append((size + TAG_BYTES).to_bytes(4, "big") + head)
            self._out += body
            self._out.append(self.sealing.tag(head, body))
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        out, self._out = self._out, []
        if self._transport is not None and out:
            self._transport.writelines(out)
