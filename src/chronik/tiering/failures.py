"""What clients hear when the object store fails: that it did. Where it is and what it said is for the log."""

from __future__ import annotations

import logging

from chronik.log_lines import RepeatingLine
from chronik.model import ErrorCode, RequestError, TopicPartition

__all__ = ["store_failed"]

_failed = RepeatingLine(
    logging.getLogger(__name__), logging.WARNING, "%s: a client was told that the object store failed: %s"
)


def store_failed(tp: TopicPartition, error: Exception) -> RequestError:
    _failed(tp, tp, error)
    return RequestError(
        ErrorCode.kafka_storage_error, f"{tp}: the object store failed; the log of this node says why"
    )
