"""A real node with its query process, and ways to write to it and ask it."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node import ChronikNode

DEADLINE_S = 60.0


class QueryNode(ChronikNode):
    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.settings['http_port']}"

    def http(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                raw = answer.read()
        except urllib.error.HTTPError as error:
            raise Refused(error.code, json.loads(error.read())) from None
        return json.loads(raw) if raw[:1] in b"{[" else raw

    def create(self, topic: str, partitions: int = 1, **config: object) -> None:
        body = {"name": topic, "partitions": partitions, "config": config}
        self.http("POST", "/admin/create-topic", body)

    def search(self, topic: str, query: Any, **more: Any) -> Any:
        return self.http("POST", f"/{topic}/_search", {"query": query, "refresh": True, **more})

    def total(self, topic: str, query: Any) -> int:
        answer = self.search(topic, query, size=0)
        assert answer["_shards"]["failed"] == 0, answer
        return int(answer["hits"]["total"]["value"])

    def sql(self, query: str, **more: Any) -> list[list[Any]]:
        rows: list[list[Any]] = self.http("POST", "/_sql", {"query": query, **more})["rows"]
        return rows

    def metric(self, name: str) -> float:
        text = self.http("GET", "/metrics").decode()
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    def child_pid(self, kind: str = "search") -> int | None:
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rsplit(")", 1)[1].split()
                command = (path.parent / "cmdline").read_bytes()
            except OSError:
                continue
            if int(fields[1]) == self.pid and f'"kind":"{kind}"'.encode() in command:
                return int(path.parent.name)
        return None


class Refused(Exception):
    def __init__(self, status: int, failure: Any) -> None:
        super().__init__(f"{status} {failure}")
        self.status = status
        self.code = failure["code"]


def wait_for(what: str, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {DEADLINE_S} s"
        time.sleep(0.02)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[QueryNode]:
    server = QueryNode(tmp_path / "node")
    with server:
        yield server
        server.stop()
