"""What the links between nodes cost: open, with a secret (a tag on every frame), and with TLS.

Both ends are in this process, over loopback; CPU seconds are of both together, the least of several rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from chronik.cli.start import loop_factory
from chronik.links.authority import make_certificates, node_files
from chronik.links.certificates import NodeTls
from chronik.links.connections import Acceptor, Dialer
from chronik.links.handshake import NO_SECRET, LinkIdentity, NodeKey
from chronik.links.link import Link

SIZES = {1 << 20: 400, 16 * 1024: 20_000, 100: 100_000}
"""Bytes of a frame's body, and how many are sent."""
_IN_FLIGHT = 8 << 20
HOST = "127.0.0.1"


class _End:
    def __init__(self) -> None:
        self.link: Link | None = None
        self.heard = 0

    def on_open(self, link: Link) -> None:
        self.link = link

    def on_closed(self, link: Link) -> None:
        self.link = None

    def on_frame(self, link: Link, frame: memoryview) -> None:
        self.heard += 1

    def on_writable(self, link: Link) -> None:
        pass


async def _measure(identities: tuple[LinkIdentity, LinkIdentity], size: int, count: int) -> float:
    near, far = _End(), _End()
    acceptor = Acceptor(identities[1], {"data": far})
    port = await acceptor.start(HOST, 0)
    dialer = Dialer(
        identity=identities[0],
        peer_id=2,
        address=(HOST, port),
        purpose="data",
        handler=near,
        jitter=lambda: 0.0,
    )
    dialer.start()
    while near.link is None or far.link is None:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    body, ahead = memoryview(os.urandom(size)), max(1, _IN_FLIGHT // (size + 100))
    began = time.process_time()
    sent = 0
    while far.heard < count:
        while sent < count and sent - far.heard < ahead:
            near.link.outbox.send(b"head", (body,))
            sent += 1
        await asyncio.sleep(0)
    took = time.process_time() - began
    await dialer.stop()
    await acceptor.stop()
    return took


def _identities(kind: str, folder: Path) -> tuple[LinkIdentity, LinkIdentity]:
    def of(node_id: int) -> LinkIdentity:
        tls = None
        if kind == "TLS":
            cert, key = node_files(folder, node_id)
            tls = NodeTls(node_id=node_id, cert=cert, key=key, ca=folder / "ca.pem")
        secret = b"secret" if kind == "secret" else NO_SECRET
        return LinkIdentity(node_id, (secret,), os.urandom, NodeKey(os.urandom(32)), tls=tls)

    return of(1), of(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name, asyncio.Runner(loop_factory=loop_factory()) as runner:
        folder = Path(name)
        make_certificates(folder, "bench", (1, 2), datetime.now(UTC), 2)
        print("CPU of both ends      frame      µs/frame     GB/s")
        for size, count in SIZES.items():
            best = {
                kind: min(runner.run(_measure(_identities(kind, folder), size, count)) for _ in range(rounds))
                for kind in ("open", "secret", "TLS")
            }
            for kind, took in best.items():
                print(
                    f"{kind:<18} {size:>8} {took / count * 1e6:>13.1f} {size * count / took / 1e9:>8.2f}"
                    f"   {best['open'] / took:.2f} of open"
                )


if __name__ == "__main__":
    main()
