"""One input of the fuzzers, and a file of them that can be sent again."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple


class Piece(NamedTuple):
    connection: int
    """Number of the connection within its input: pieces of several frames may take turns."""
    data: bytes


@dataclass(frozen=True, kw_only=True)
class Input:
    what: str
    """For people: the API, the path, the kind of damage."""
    port: str
    """kafka, http, wal or raft; or the name of a reader or of a conversation."""
    pieces: tuple[Piece, ...]
    answers: int = 0
    """Answers that must come on the first connection: the input is well-formed and nothing that waits."""
    login: tuple[int, str] | None = None
    """As which node and for what a link is opened before the pieces are sent."""


@dataclass(frozen=True)
class Recording:
    """What a round sent, in order, and the topic ids that its bytes hold."""

    door: str
    seed: str
    topic_ids: dict[str, str]
    inputs: list[Input] = field(default_factory=list)

    def write(self, path: Path) -> None:
        head = {"door": self.door, "seed": self.seed, "topic_ids": self.topic_ids}
        with path.open("w") as file:
            file.write(json.dumps(head) + "\n")
            for each in self.inputs:
                pieces = [[number, base64.b64encode(data).decode()] for number, data in each.pieces]
                file.write(json.dumps({**asdict(each), "pieces": pieces}) + "\n")

    @staticmethod
    def read(path: Path) -> Recording:
        with path.open() as file:
            head = json.loads(next(file))
            return Recording(
                head["door"], head["seed"], head["topic_ids"], [_input(json.loads(line)) for line in file]
            )

    def with_ids(self, now: dict[str, str]) -> Iterable[Input]:
        """The inputs for a node whose topics of the same names have other ids."""
        changes = [
            (bytes.fromhex(old), bytes.fromhex(now[name]))
            for name, old in self.topic_ids.items()
            if name in now
        ]
        for each in self.inputs:
            pieces = tuple(Piece(number, _replaced(data, changes)) for number, data in each.pieces)
            yield Input(what=each.what, port=each.port, pieces=pieces, answers=each.answers, login=each.login)


def _input(line: dict) -> Input:  # type: ignore[type-arg]
    pieces = tuple(Piece(number, base64.b64decode(data)) for number, data in line["pieces"])
    login = tuple(line["login"]) if line["login"] else None
    return Input(what=line["what"], port=line["port"], pieces=pieces, answers=line["answers"], login=login)


def _replaced(data: bytes, changes: Iterable[tuple[bytes, bytes]]) -> bytes:
    for old, new in changes:
        data = data.replace(old, new)
    return data
