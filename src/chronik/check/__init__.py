"""Judges what clients saw: a history of sends, polls, transactions and trims in, named anomalies out.

Flow: `history` has the events and their JSON lines, one per operation; `checker` looks at a whole history.
Histories come from the simulator and from real clusters alike, and `chronik check FILE` reads them.

Invariants: an operation that certainly failed ("fail") and one whose fate nobody knows ("info") are different
things: what the first wrote may never be seen, what the second wrote may be seen or not. Nothing is an
anomaly that a correct cluster could show.

Not its job: making histories, or looking into brokers. It knows the outside of a cluster only.
"""

from __future__ import annotations

from chronik.check.checker import Anomaly, Verdict, check
from chronik.check.history import Commit, Event, Poll, Send, Trim, Txn, read_history, write_history

__all__ = [
    "Anomaly",
    "Commit",
    "Event",
    "Poll",
    "Send",
    "Trim",
    "Txn",
    "Verdict",
    "check",
    "read_history",
    "write_history",
]
