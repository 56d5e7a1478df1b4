"""What goes into the consumer group of KIP-848 and what comes out of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple

from chronik.groups.assignors import ASSIGNORS, Partitions
from chronik.groups.subscriptions import Visible

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2


class Part(enum.Enum):
    """The kinds of records that a group is made of; MEMBER, TARGET and CURRENT exist per member."""

    GROUP = 3
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8


class DirtyPart(NamedTuple):
    part: Part
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupConfig:
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    group_size_max: int = 10_000
    member_bytes_max: int = 1024 * 1024
    """Topic names of one member."""
    assignors: tuple[str, ...] = tuple(ASSIGNORS)
    """The assignors that members may ask for; the first one is the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """One request; None means: as before."""

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: tuple[str, ...] | None = None
    topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    visible: Visible | None = None
    """Which topics the member may see; None where everybody sees all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResult:
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: Partitions | None
