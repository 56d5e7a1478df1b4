"""What a connection remembers of its produce requests, so that the next ones need not be decoded.

A producer's requests to a partition begin with the same bytes but for the correlation id: header, acks,
time-out, topic, partition. What these bytes say is kept. A request that begins like an earlier one is not
decoded again; only its records are cut out (`last_records`). It reaches the handler as a `Call` like any
other, and with `Known`: once a request with this beginning went well, the handler takes a shorter way
(`handlers.produce._PendingBatch`) and answers from a template. tests/unit/server/test_same_answers.py shows
that the answers are the same bytes.

What is kept holds for one generation of the metadata, which is the index of the last entry that was applied.
Within a generation a topic's id keeps its name, and a principal that may write to the topic may go on doing
so. When the generation changes, everything is forgotten.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from chronik.replication.writers import Writer
from chronik.server.call import Call, Responder
from chronik.wire.produce import AnswerTemplate, ProduceHead, ProduceRequest, last_records

if TYPE_CHECKING:
    from chronik.server.dispatch import Handler, HotFunction, RequestContext

_HEAD: Final = struct.Struct(">ii")
"""API key and version as one number; correlation id."""

KNOWN_MAX: Final = 16
"""Beginnings kept for a connection. The oldest goes first."""
LENGTHS_MAX: Final = 4
"""Beginnings are looked up by their bytes, once per known length. This bounds the number of lengths."""
BEGINNING_BYTES_MAX: Final = 512

_new: Final = tuple.__new__


class Known:
    """The beginning of a request, and what follows from it."""

    __slots__ = ("answer", "context", "handler", "head", "key_and_version", "start", "writer")

    def __init__(
        self,
        key_and_version: int,
        handler: Handler[ProduceRequest],
        context: RequestContext,
        head: ProduceHead,
    ) -> None:
        self.key_and_version = key_and_version
        self.handler = handler
        self.context = context
        self.head = head
        self.writer: Writer = context.connection.writer(context.client_id)
        self.start: HotFunction[Any] | None = handler.hot
        """What begins to answer. The handler sets a shorter way once a request with this beginning, outside a
        transaction, was appended at once: that skips checks which depend only on the beginning and the
        metadata."""
        self.answer: AnswerTemplate | None = None
        """The successful response without its varying fields. Built for the second request of this kind."""


class KnownRequests:
    """One per connection."""

    __slots__ = ("_generation", "_known", "_lengths")

    def __init__(self) -> None:
        self._generation = -1
        self._known: dict[bytes, Known] = {}
        """What is known, by the bytes between the correlation id and the length of the records."""
        self._lengths: list[int] = []
        """Offsets in the frame of the records' length field, one per distinct length of a known beginning."""

    def recall(self, frame: memoryview, responder: Responder, generation: int) -> Call[ProduceRequest] | None:
        """The request, if it begins like an earlier one; None if it has to be read."""
        if generation != self._generation:
            self.forget(generation)
            return None
        for records_at in self._lengths:
            known = self._known.get(frame[8:records_at].tobytes())
            if known is not None:
                key_and_version, correlation_id = _HEAD.unpack_from(frame)
                head = known.head
                records = last_records(frame, records_at, head.is_flexible)
                if records is None or key_and_version != known.key_and_version:
                    return None
                # `tuple.__new__`, since a named tuple's own constructor is one more call of Python.
                request = _new(ProduceRequest, (head, [records]))
                return _new(Call, (known.handler, known.context, correlation_id, request, responder, known))
        return None

    def remember(
        self,
        frame: memoryview,
        handler: Handler[ProduceRequest],
        context: RequestContext,
        request: ProduceRequest,
        generation: int,
    ) -> Known | None:
        """Keep what can be used again: the beginning of a request for one partition."""
        records_at = request.head.records_at
        if not 8 < records_at <= BEGINNING_BYTES_MAX:
            return None
        if generation != self._generation:
            self.forget(generation)
        if records_at not in self._lengths:
            if len(self._lengths) == LENGTHS_MAX:
                self.forget(generation)
            self._lengths.append(records_at)
        beginning = frame[8:records_at].tobytes()
        if beginning not in self._known and len(self._known) == KNOWN_MAX:
            del self._known[next(iter(self._known))]
        key_and_version, _ = _HEAD.unpack_from(frame)
        known = self._known[beginning] = Known(key_and_version, handler, context, request.head)
        return known

    def forget(self, generation: int = -1) -> None:
        """Forget all requests. Those kept from now on belong to this generation of the metadata."""
        self._generation = generation
        self._known.clear()
        self._lengths.clear()
