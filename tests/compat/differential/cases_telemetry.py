"""Requests about the metrics of clients (KIP-714): subscriptions, and pushes of one client instance each."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from chronik.wire.api import ApiKey
from tests.compat.differential.makers import Make
from tests.compat.differential.world import World
from tests.wire import Fields

K = ApiKey
ZERO: Final = UUID(int=0)
NONE, GZIP = 0, 1
METRICS: Final = bytes.fromhex("0a00")
"""MetricsData of OpenTelemetry with one empty ResourceMetrics."""


def asking(number: int) -> Make:
    return lambda _world: {"client_instance_id": UUID(int=number)}


def pushed(
    number: int, codec: int = NONE, metrics: bytes = METRICS, *, off_by: int = 0, ends: bool = False
) -> Make:
    """By the client instance of this number, which has asked for its subscription before."""

    def make(world: World) -> Fields:
        instance_id = UUID(int=number)
        return {
            "client_instance_id": instance_id,
            "subscription_id": world.subscription_of(instance_id) + off_by,
            "terminating": ends,
            "compression_type": codec,
            "metrics": metrics,
        }

    return make


MADE: Final[Mapping[ApiKey, Mapping[str, Make]]] = {
    K.GET_TELEMETRY_SUBSCRIPTIONS: {
        "a new client": lambda _world: {"client_instance_id": ZERO},
        "a client with an id": asking(1001),
        "the same client again, too early": asking(1001),
        "the reserved id": asking(1),
    },
    K.PUSH_TELEMETRY: {
        "metrics": pushed(2001),
        "again, too early": pushed(2001),
        "the last ones": pushed(2001, ends=True),
        "after the last ones": pushed(2001),
        "compressed": pushed(2002, GZIP, gzip.compress(METRICS)),
        "none": pushed(2003, NONE, b""),
        "an unknown codec": pushed(2004, 99),
        "not what the codec makes": pushed(2005, GZIP, b"no gzip"),
        "another subscription": pushed(2006, off_by=1),
        "too many": pushed(2007, NONE, bytes(2 * 2**20)),
        "the last ones at once": pushed(2008, ends=True),
        "no client instance": lambda _world: {
            "client_instance_id": ZERO,
            "subscription_id": 1,
            "terminating": False,
            "compression_type": NONE,
            "metrics": METRICS,
        },
        "a client that never asked": lambda _world: {
            "client_instance_id": UUID(int=2009),
            "subscription_id": 1,
            "terminating": False,
            "compression_type": NONE,
            "metrics": METRICS,
        },
    },
}
