"""What clients make a node remember: one budget in bytes, of which each kind of state has a share.

Anybody who reaches a node can invent group ids, transactional ids, producer ids and fetch sessions. Each
costs little and stays for minutes or days, so together they are bounded. The shares are fixed parts of one
setting: whoever fills one kind takes nothing from the others. What happens to something for which there is
no room depends on its kind, see docs/decisions/0060-one-budget-for-what-clients-leave.md.

Sizes are estimates: what the objects take in memory, about.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

__all__ = ["BYTES_MAX", "ClientState", "Held", "Share"]

BYTES_MAX: Final = 512 * 1024 * 1024
_PARTS: Final = {
    "groups": 64,
    "committed_offsets": 64,
    "fetch_sessions": 64,
    "producer_ids": 47,
    "transactional_ids": 16,
    "client_metrics": 1,
}
"""Parts of the budget, of 256 together."""


class Share:
    """The part of the budget for one kind of state."""

    __slots__ = ("bytes_max", "held_bytes", "kind", "refused")

    def __init__(self, kind: str, bytes_max: int) -> None:
        self.kind = kind
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self.refused = 0
        """How often there was no room."""

    def has_room(self, size_bytes: int) -> bool:
        return self.held_bytes + size_bytes <= self.bytes_max

    def note_refusal(self) -> None:
        self.refused += 1

    def hold(self) -> Held:
        return Held(self)


class Held:
    """What one owner (a coordinator's shard, a partition's log) holds of a share."""

    __slots__ = ("bytes", "is_released", "share")

    def __init__(self, share: Share) -> None:
        self.share = share
        self.bytes = 0
        self.is_released = False

    def add(self, size_bytes: int) -> None:
        """More, or less if negative. Nothing counts any more once the owner is gone."""
        if not self.is_released:
            self.bytes += size_bytes
            self.share.held_bytes += size_bytes

    def release(self) -> None:
        """The owner is gone, and with it all that it held."""
        self.add(-self.bytes)
        self.is_released = True


class ClientState:
    """The budget of one node."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        shares = {kind: Share(kind, bytes_max * part // 256) for kind, part in _PARTS.items()}
        self._shares = shares
        self.groups = shares["groups"]
        """Members of groups: their subscriptions and assignments."""
        self.committed_offsets = shares["committed_offsets"]
        """Committed offsets, with those of transactions that are still open."""
        self.fetch_sessions = shares["fetch_sessions"]
        self.producer_ids = shares["producer_ids"]
        """What partitions remember of producers' sequence numbers."""
        self.transactional_ids = shares["transactional_ids"]
        """Transactional ids, with the partitions of their transactions."""
        self.client_metrics = shares["client_metrics"]
        """What clients pushed last (KIP-714)."""

    def __iter__(self) -> Iterator[Share]:
        return iter(self._shares.values())
