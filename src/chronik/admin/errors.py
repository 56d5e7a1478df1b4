"""What an HTTP client gets when something goes wrong: a status, a code, a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from chronik.model import ChronikError, ErrorCode, RequestError, StorageError, Unavailable
from chronik.query.messages import QueryError
from chronik.registry.errors import RegistryError

__all__ = ["Failure", "HttpError", "failure_of", "sentence"]


class Failure(msgspec.Struct, frozen=True):
    """The body of every answer that is not a success."""

    code: str
    message: str


class HttpError(ChronikError):
    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers or {}


_STATUS: Final[Mapping[ErrorCode, int]] = {
    ErrorCode.unknown_topic_or_partition: 404,
    ErrorCode.unknown_topic_id: 404,
    ErrorCode.group_id_not_found: 404,
    ErrorCode.topic_authorization_failed: 403,
    ErrorCode.group_authorization_failed: 403,
    ErrorCode.cluster_authorization_failed: 403,
    ErrorCode.transactional_id_authorization_failed: 403,
    ErrorCode.delegation_token_authorization_failed: 403,
    ErrorCode.broker_id_not_registered: 404,
    ErrorCode.resource_not_found: 404,
    ErrorCode.duplicate_resource: 409,
    ErrorCode.topic_already_exists: 409,
    ErrorCode.non_empty_group: 409,
    ErrorCode.invalid_update_version: 409,
    ErrorCode.reassignment_in_progress: 409,
    ErrorCode.duplicate_broker_registration: 409,
    ErrorCode.request_timed_out: 504,
    ErrorCode.not_controller: 503,
    ErrorCode.not_leader_or_follower: 503,
    ErrorCode.leader_not_available: 503,
    ErrorCode.coordinator_not_available: 503,
    ErrorCode.coordinator_load_in_progress: 503,
    ErrorCode.not_coordinator: 503,
    ErrorCode.broker_not_available: 503,
    ErrorCode.not_enough_replicas: 503,
    ErrorCode.kafka_storage_error: 503,
    ErrorCode.unknown_server_error: 500,
}


def sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def failure_of(error: Exception) -> tuple[int, Failure]:
    """The table of errors. Internal errors are logged and not shown to clients."""
    match error:
        case HttpError():
            return error.status, Failure(error.code, error.message)
        case QueryError():
            return error.status, Failure(error.code, sentence(error.message))
        case RequestError():
            message = error.message or error.code.name.replace("_", " ")
            return _STATUS.get(error.code, 400), Failure(error.code.name, sentence(message))
        case RegistryError():
            return error.status, Failure(str(error.error_code), error.message)
        case Unavailable():
            return 503, Failure("unavailable", sentence(str(error)))
        case StorageError():
            return 503, Failure("storage_error", sentence(str(error)))
        case TimeoutError():
            return 504, Failure("timed_out", "The request was not finished in time.")
        case _:
            return 500, Failure("internal_error", "Something went wrong inside the node; its log says what.")
