"""The error code for a fenced producer."""

from __future__ import annotations

from chronik.model import ErrorCode

__all__ = ["fenced_code"]


def fenced_code(code: ErrorCode, knows_fenced: bool) -> ErrorCode:
    """Older versions of the transaction APIs know only invalid_producer_epoch for it (KIP-588)."""
    if code is ErrorCode.producer_fenced and not knows_fenced:
        return ErrorCode.invalid_producer_epoch
    return code
