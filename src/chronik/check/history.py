"""The events of a history. One JSON object per line; `op` says which kind it is.

Times are seconds on one clock that all recorders share; `start` is when the operation was begun, `end` when
its outcome was known. An operation still under way when the recording stops has the outcome "info".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import msgspec

from chronik.model import ChronikError

Outcome: TypeAlias = Literal["ok", "fail", "info"]
"""Done; certainly not done and never will be; nobody knows."""


class HistoryError(ChronikError):
    """The file is no history; the message says which line is wrong and why."""


class _Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="op"):
    process: str
    """Who did it. A process does one thing at a time per kind of operation."""
    start: float = 0.0
    end: float = 0.0


class Send(_Event, frozen=True, kw_only=True, tag="send"):
    """One record. `value` is unique in the whole history."""

    topic: str
    partition: int
    value: str
    outcome: Outcome
    offset: int = -1
    """Where the broker says it is (ok, unless acks=0)."""
    acks: int = -1
    idempotent: bool = False
    """The producer asked for exactly-once: a second copy is an anomaly."""
    txn: str | None = None


class Poll(_Event, frozen=True, kw_only=True, tag="poll"):
    """What one fetch of one partition returned: all records visible in [position, next_position)."""

    topic: str
    partition: int
    position: int
    next_position: int
    records: list[tuple[int, str]]
    read_committed: bool = False
    sought: bool = False
    """The consumer chose this position itself: it need not follow from its last poll."""
    final: bool = False
    """Part of the last look at everything, after all faults were healed."""
    log_start: int = 0
    """Final polls: where the log began."""


class Txn(_Event, frozen=True, kw_only=True, tag="txn"):
    """The end of a transaction: `ok` with `committed` or not, or unknown."""

    txn: str
    committed: bool
    outcome: Outcome


class Trim(_Event, frozen=True, kw_only=True, tag="trim"):
    """Records before `offset` were, or may have been, deleted on request."""

    topic: str
    partition: int
    offset: int
    outcome: Outcome = "ok"


class Commit(_Event, frozen=True, kw_only=True, tag="commit"):
    """A group's offset for a partition: written (`is_read` false) or read back."""

    group: str
    topic: str
    partition: int
    offset: int
    outcome: Outcome = "ok"
    is_read: bool = False


Event: TypeAlias = Send | Poll | Txn | Trim | Commit

_DECODER = msgspec.json.Decoder(Event)


def write_history(events: Iterable[Event]) -> Iterator[bytes]:
    """The lines of a history file, each with its newline."""
    encoder = msgspec.json.Encoder()
    for event in events:
        yield encoder.encode(event) + b"\n"


def read_history(lines: Iterable[bytes]) -> Iterator[Event]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _DECODER.decode(line)
        except ValueError as error:
            raise HistoryError(f"line {number} is not an event of a history: {error}") from error
