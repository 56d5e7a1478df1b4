"""Tells the service manager how the node is doing (sd_notify), if one started it and wants to know."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Mapping

log = logging.getLogger(__name__)


def notify(env: Mapping[str, str], message: str) -> None:
    """Send one message such as READY=1. Without NOTIFY_SOCKET there is nobody to tell."""
    address = env.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # a name without a file
        address = "\0" + address[1:]
    with contextlib.closing(
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    ) as manager:
        try:
            manager.sendto(message.encode(), address)
        except OSError as error:
            log.warning("the service manager cannot be told %s: %s", message, error)
