"""Scripted clusters whose whole conversation is kept beside the test, for people to read.

A transcript is a text file: lines that start with `> ` are commands, what follows each is what
happened. After an intended change, write them anew and read the difference:

    RAFT_TRANSCRIPTS=write python -m pytest tests/unit/raft/test_transcripts.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chronik.model import ChronikError
from chronik.raft import ChangeKind, ConfigChange
from tests.unit.raft.cluster import Cluster, show_status

FILES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


class Script:
    def __init__(self) -> None:
        self.cluster = Cluster()
        self.lines: list[str] = []

    def play(self, command: str) -> list[str]:
        self.lines = []
        name, *words = command.split()
        try:
            getattr(self, f"do_{name}")(*words)
        except ChronikError as error:
            self.lines.append(f"{type(error).__name__}: {error}")
        return self.lines or ["ok"]

    def do_cluster(self, *words: str) -> None:
        options = dict(word.split("=") for word in words if "=" in word)
        self.cluster = Cluster(
            *(int(word) for word in words if "=" not in word),
            **{key: int(value) for key, value in options.items()},
        )
        self.cluster.log = lambda line: self.lines.append(line)

    def do_join(self, node: str) -> None:
        self.cluster.add(int(node))

    def do_campaign(self, node: str) -> None:
        self.cluster[int(node)].campaign()
        self.cluster.drive(int(node))

    def do_settle(self) -> None:
        self.cluster.settle()

    def do_tick(self, node: str, count: str = "1") -> None:
        self.cluster.tick(int(node), int(count))

    def do_propose(self, node: str, text: str) -> None:
        self.cluster.propose(int(node), text)

    def do_change(self, node: str, kind: str, target: str) -> None:
        self.cluster[int(node)].propose_config(ConfigChange(ChangeKind(kind), int(target)))
        self.cluster.drive(int(node))

    def do_transfer(self, node: str, target: str) -> None:
        self.cluster[int(node)].transfer_leadership(int(target))
        self.cluster.drive(int(node))

    def do_read(self, node: str, ctx: str) -> None:
        self.cluster[int(node)].read_index(int(ctx))
        self.cluster.drive(int(node))

    def do_compact(self, node: str) -> None:
        self.cluster.nodes[int(node)].compact()

    def do_hold_disk(self) -> None:
        self.cluster.auto_sync = False

    def do_free_disk(self) -> None:
        self.cluster.auto_sync = True

    def do_sync(self, node: str) -> None:
        self.cluster.sync(int(node))

    def do_deliver_all(self) -> None:
        """Without syncing any disk."""
        while self.cluster.network:
            self.cluster.deliver()

    def do_isolate(self, *nodes: str) -> None:
        self.cluster.isolate(*map(int, nodes))

    def do_heal(self) -> None:
        self.cluster.heal()

    def do_crash(self, node: str) -> None:
        self.cluster.crash(int(node))

    def do_restart(self, node: str) -> None:
        self.cluster.restart(int(node))

    def do_status(self, *nodes: str) -> None:
        for node in nodes:
            self.lines.extend(show_status(self.cluster[int(node)]).splitlines())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    script, lines = Script(), []
    for line in path.read_text().splitlines():
        if line.startswith("> "):
            lines += [line, *script.play(line[2:]), ""]
        elif line.startswith("# "):
            lines.append(line)
    text = "\n".join(lines).rstrip() + "\n"
    if os.environ.get("RAFT_TRANSCRIPTS") == "write":
        path.write_text(text)
    assert text == path.read_text()


def test_there_are_transcripts() -> None:
    assert len(FILES) >= 5
