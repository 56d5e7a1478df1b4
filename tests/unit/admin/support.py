"""A whole node in this process, and a small way to talk HTTP to it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chronik.config import Settings
from chronik.node import Node

HOST = "127.0.0.1"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Http:
    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.port = port
        self.tls = tls

    async def raw(self, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(HOST, self.port, ssl=self.tls)
        try:
            writer.write(data)
            return await asyncio.wait_for(reader.read(), 20)
        finally:
            writer.close()

    async def call(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> Answer:
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "connection: close", f"content-length: {len(data)}"]
        given = {"host": f"{HOST}:{self.port}", **(headers or {})}
        lines += [f"{name}: {value}" for name, value in given.items()]
        answer = await self.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        head, _, content = answer.partition(b"\r\n\r\n")
        first, *rest = head.decode().split("\r\n")
        pairs = (line.split(": ", 1) for line in rest)
        return Answer(int(first.split()[1]), {name.lower(): value for name, value in pairs}, content)

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.call("GET", path, headers=headers)

    async def post(self, path: str, body: object, **headers: str) -> Answer:
        return await self.call("POST", path, body, headers=headers)


def with_node(folder: Path, work: Callable[[Node, Http], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        ports = {"kafka_port": 0, "http_port": 0, "wal_port": 0, "raft_port": 0}
        node = Node(Settings(data_dir=folder, **{**ports, **settings}))
        await node.start()
        try:
            await work(node, Http(node.http_port))
        finally:
            await node.stop()

    asyncio.run(main())
