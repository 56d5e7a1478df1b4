"""What clients pushed last (KIP-714), in memory for whoever looks (`GET /admin/client-metrics`).

Of each client the last push, nothing older. Anybody may push where a subscription asks, so what is kept is
bounded in number and in bytes: points stay packed, texts are cut, and all together fit into a share of the
budget for what clients make a node remember. Whoever keeps most gives way first.
"""

from __future__ import annotations

import sys
import uuid
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from chronik.client_state import ClientState, Share
from chronik.server.otlp import PackedPoints

__all__ = ["RECENT_MAX", "TEXT_CHARS_MAX", "LastPush", "LastPushes"]

RECENT_MAX: Final = 100
"""Clients whose last push is kept."""
TEXT_CHARS_MAX: Final = 100
"""Characters that are kept of a client id, and of each other text that a client tells about itself."""
PUSH_BYTES: Final = 1_000
"""What a push takes, about, without its texts and points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastPush:
    """What a client told last."""

    instance_id: uuid.UUID
    principal: str
    client: Mapping[str, str]
    pushed_ms: int
    interval_ms: int
    size_bytes: int
    points: PackedPoints | None
    """None: the metrics could not be read."""
    held_bytes: int
    """Memory that it takes, about."""

    @classmethod
    def of(
        cls,
        instance_id: uuid.UUID,
        principal: str,
        client: Mapping[str, str],
        points: PackedPoints | None,
        *,
        pushed_ms: int,
        interval_ms: int,
        size_bytes: int,
    ) -> LastPush:
        kept = {key: text[:TEXT_CHARS_MAX] for key, text in client.items()}
        texts = sum(map(sys.getsizeof, (principal, *kept.values())))
        return cls(
            instance_id=instance_id,
            principal=principal,
            client=kept,
            pushed_ms=pushed_ms,
            interval_ms=interval_ms,
            size_bytes=size_bytes,
            points=points,
            held_bytes=PUSH_BYTES + texts + (len(points.data) if points is not None else 0),
        )

    def without_points(self) -> LastPush:
        if self.points is None:
            return self
        none = PackedPoints(left_out=self.points.count + self.points.left_out)
        return replace(self, points=none, held_bytes=self.held_bytes - len(self.points.data))


class LastPushes:
    def __init__(self, share: Share | None = None) -> None:
        """`share` is for these pushes alone."""
        self._share = share or ClientState().client_metrics
        self._held = self._share.hold()
        self._pushes: OrderedDict[uuid.UUID, LastPush] = OrderedDict()

    def keep(self, push: LastPush) -> None:
        """In the place of the client's last one."""
        if push.held_bytes > self._share.bytes_max:
            push = push.without_points()
        if push.instance_id in self._pushes:
            self._forget(push.instance_id)
        while self._pushes and not self._share.has_room(push.held_bytes):
            self._share.note_refusal()
            self._forget(self._oldest_of_most({key: one.held_bytes for key, one in self._pushes.items()}))
        if not self._share.has_room(push.held_bytes):
            self._share.note_refusal()
            return
        self._held.add(push.held_bytes)
        self._pushes[push.instance_id] = push
        if len(self._pushes) > RECENT_MAX:
            self._forget(self._oldest_of_most(dict.fromkeys(self._pushes, 1)))

    def newest_first(self) -> list[LastPush]:
        return list(reversed(self._pushes.values()))

    def _oldest_of_most(self, weights: Mapping[uuid.UUID, int]) -> uuid.UUID:
        """The oldest push of the principal that keeps most, so that none pushes out all others."""
        by_principal: Counter[str] = Counter()
        for key, weight in weights.items():
            by_principal[self._pushes[key].principal] += weight
        ((most, _),) = by_principal.most_common(1)
        return next(key for key, one in self._pushes.items() if one.principal == most)

    def _forget(self, instance_id: uuid.UUID) -> None:
        self._held.add(-self._pushes.pop(instance_id).held_bytes)
