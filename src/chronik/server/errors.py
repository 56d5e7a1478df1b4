"""Which error codes clients get: the one table from exceptions to Kafka's codes, and codes by version."""

from __future__ import annotations

from chronik.model import ErrorCode, RequestError, StorageError, Unavailable

__all__ = ["error_of", "fenced_code"]


def error_of(error: Exception, unavailable: ErrorCode) -> tuple[ErrorCode, str | None]:
    """The table of errors: the code and the message that answer an exception."""
    match error:
        case RequestError():
            return error.code, error.message
        case Unavailable():
            return unavailable, str(error)
        case StorageError():
            return ErrorCode.kafka_storage_error, str(error)
        case TimeoutError():
            return ErrorCode.request_timed_out, "The request was not finished in time."
        case _:
            # Internal errors are logged and not shown to clients.
            return ErrorCode.unknown_server_error, None


def fenced_code(code: ErrorCode, knows_fenced: bool) -> ErrorCode:
    """Older versions of the transaction APIs know only invalid_producer_epoch for it (KIP-588)."""
    if code is ErrorCode.producer_fenced and not knows_fenced:
        return ErrorCode.invalid_producer_epoch
    return code
