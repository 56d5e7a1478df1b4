"""Loopback ports that nobody uses."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from contextlib import ExitStack

from chronik.local.layout import HOST

_LOWEST = 15_000
_HIGHEST = 32_000


def free_ports(count: int, *, given: Collection[int] = ()) -> list[int]:
    """Ports nobody listens on now, all different, and none of those `given` out before.

    They lie below the range from which systems take ports for outgoing connections: a node that is down for
    a while must find its port free when it comes back.
    """
    rng = random.SystemRandom()
    with ExitStack() as held:
        found: list[int] = []
        while len(found) < count:
            port = rng.randrange(_LOWEST, _HIGHEST)
            if port in given:
                continue
            probe = held.enter_context(socket.socket())
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            found.append(port)
        return found
