"""The results file of the matrix: pairs of figures by cell, merged over runs."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Final

import msgspec

FILE: Final = Path(__file__).parent / "results" / "matrix.json"

Pair = tuple[float, float]
"""Apache Kafka's figure and chronik's, of one round."""


def key(nodes: int, state: str, cell: str, figure: str) -> str:
    return f"{nodes}|{state}|{cell}|{figure}"


class Row(msgspec.Struct):
    machine: str
    command: str
    date: str
    pairs: list[Pair]

    @property
    def medians(self) -> Pair:
        return statistics.median(one for one, _ in self.pairs), statistics.median(
            own for _, own in self.pairs
        )

    @property
    def ratios(self) -> list[float]:
        """chronik's figure over Apache Kafka's, pair by pair."""
        return [own / theirs for theirs, own in self.pairs if theirs]

    @property
    def ratio(self) -> float | None:
        found = self.ratios
        return statistics.median(found) if found else None


class Results:
    def __init__(self, path: Path, rows: dict[str, Row]) -> None:
        self._path = path
        self.rows = rows
        self._fresh: set[str] = set()
        """Keys that this run has begun anew."""
        self._told = ("", "", "")

    @classmethod
    def load(cls, path: Path) -> Results:
        rows = msgspec.json.decode(path.read_bytes(), type=dict[str, Row]) if path.exists() else {}
        return cls(path, rows)

    def begin(self, machine: str, command: str, date: str) -> None:
        self._told = machine, command, date

    def add(self, name: str, pair: Pair) -> None:
        """The first pair of a run takes the place of all that an earlier run left for the same cell."""
        if name not in self._fresh:
            self._fresh.add(name)
            self.rows[name] = Row(*self._told, pairs=[])
        self.rows[name].pairs.append(pair)

    def save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_bytes(msgspec.json.format(msgspec.json.encode(self.rows), indent=1) + b"\n")
