"""Loopback ports that nobody uses."""

from __future__ import annotations

import os
import random
import socket
from collections import deque
from collections.abc import Collection
from contextlib import ExitStack

from chronik.local.layout import HOST

_LOWEST = 15_000
_HIGHEST = 32_000
_SHARES = 64
"""Processes that look at the same time take ports of different shares, by their process id: a port that one
found free and has yet to give to a node is not found by another."""

_lately: deque[int] = deque(maxlen=(_HIGHEST - _LOWEST) // _SHARES // 2)
"""Given out by this process and perhaps not in use yet, or of a node that is down for a moment."""


def free_ports(count: int, *, given: Collection[int] = ()) -> list[int]:
    """Ports nobody listens on now, all different, and none of those `given` out before.

    They lie below the range from which systems take ports for outgoing connections: a node that is down for
    a while must find its port free when it comes back.
    """
    rng = random.SystemRandom()
    share = range(_LOWEST + os.getpid() % _SHARES, _HIGHEST, _SHARES)
    avoided = {*given, *list(_lately)[-(len(share) // 2) :]}
    with ExitStack() as held:
        found: list[int] = []
        while len(found) < count:
            port = rng.choice(share)
            if port in avoided:
                continue
            probe = held.enter_context(socket.socket())
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            found.append(port)
            _lately.append(port)
        return found
