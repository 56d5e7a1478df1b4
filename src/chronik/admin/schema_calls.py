"""Calls of the schema registry: answered here if this node leads `_schemas`, else by the node that does.

Who may do what was decided before. A subject stands for a topic: `orders-key` and `orders-value` for
`orders`, any other subject for the topic of its own name, whether there is one or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from chronik.admin.endpoint import (
    Content,
    Dialect,
    Function,
    HttpAccess,
    HttpCall,
    HttpEndpoint,
    endpoint,
)
from chronik.admin.errors import Failure, HttpError
from chronik.model import SCHEMAS_TOPIC, ChronikError, ErrorCode, RequestError, Unavailable
from chronik.registry.errors import RegistryError
from chronik.registry.limits import SUBJECT_CHARS_MAX
from chronik.registry.messages import RegistryAnswer, RegistryCall
from chronik.registry.operations import QUESTIONS
from chronik.registry.records import CONTEXTS
from chronik.security.acls import Operation, ResourceType
from chronik.security.quotas import REQUEST_SHARE
from chronik.server.coordinators import ensure_internal_topic
from chronik.server.gate import Needs, on_named

__all__ = [
    "MEDIA_TYPE",
    "NODE_ASK",
    "NODE_CHANGE",
    "ask_registry",
    "changing",
    "may_see",
    "on_subject",
    "reading",
    "require",
    "shown",
    "topic_of",
]

MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
NODE_ASK: Final = "/_node/schemas/ask"
NODE_CHANGE: Final = "/_node/schemas/change"
SECONDS: Final = 20.0
AGAIN_SECONDS: Final = 0.1
"""How soon the registry is asked again that is about to move to another node."""
_ONCE_ONLY: Final = frozenset({"delete_subject", "delete_version", "delete_config", "delete_mode"})
"""Changes that would find nothing left to change if they were tried a second time."""
_SUFFIXES: Final = ("-key", "-value")


def topic_of(subject: str) -> str:
    """The topic whose ACLs decide about a subject."""
    for suffix in _SUFFIXES:
        if subject.endswith(suffix) and len(subject) > len(suffix):
            return subject.removesuffix(suffix)
    return subject


def on_subject(operation: Operation) -> Needs:
    return on_named(operation, ResourceType.TOPIC, lambda call: topic_of(_name(call)))


def _name(call: HttpCall) -> str:
    return call.path["subject"]


def may_see(call: HttpCall, subject: str) -> bool:
    return call.access.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic_of(subject))


def require(call: HttpCall, operation: Operation, subject: str) -> None:
    call.access.require(operation, ResourceType.TOPIC, topic_of(subject))


# -- answers --------------------------------------------------------------------------------------


def shown(value: object) -> Content:
    return Content(msgspec.json.encode(value), MEDIA_TYPE)


_CODES: Final = {400: 400, 401: 40101, 403: 40301, 404: 404, 503: 50302, 504: 50002, 500: 50001}


class SchemaFailure(msgspec.Struct, frozen=True):
    """An error as Confluent's registry says it."""

    error_code: int
    message: str


def _failure(status: int, failure: Failure) -> Content:
    code = int(failure.code) if failure.code.isdecimal() else _CODES.get(status, status)
    return Content(msgspec.json.encode(SchemaFailure(code, failure.message)), MEDIA_TYPE, status=status)


_CONFLUENT: Final = Dialect(failure=_failure, failure_type=SchemaFailure)
_Declare: TypeAlias = Callable[..., Callable[[Function], HttpEndpoint]]
reading: Final[_Declare] = partial(
    endpoint, media_type=MEDIA_TYPE, access=HttpAccess.STATUS, dialect=_CONFLUENT, quota=REQUEST_SHARE
)
changing: Final[_Declare] = partial(
    endpoint, media_type=MEDIA_TYPE, access=HttpAccess.CHANGE, dialect=_CONFLUENT, quota=REQUEST_SHARE
)


# -- asking ---------------------------------------------------------------------------------------


async def ask_registry(call: HttpCall, wanted: RegistryCall) -> Any:
    """What the registry answers; RegistryError as it says."""
    _check_subject(wanted.subject)
    caller = call.caller
    wanted = replace(wanted, asker=caller.access.host if caller.is_anonymous else caller.principal)
    try:
        async with asyncio.timeout(SECONDS):
            answer = await _answer(call, wanted)
    except TimeoutError:
        raise RegistryError(50002, "The schema registry did not answer in time.") from None
    call.context.quotas.charge_work(caller.principal, answer.work_s)
    if answer.error_code:
        raise RegistryError(answer.error_code, answer.message)
    return answer.value


def _check_subject(subject: str | None) -> None:
    if subject is None:
        return
    if not subject or len(subject) > SUBJECT_CHARS_MAX or not subject.isprintable():
        raise RegistryError(42208, f"A subject has 1 to {SUBJECT_CHARS_MAX} characters that can be printed.")
    if subject.startswith(CONTEXTS) or subject == "__GLOBAL":
        raise RegistryError(42208, "Contexts of subjects are not supported.")


async def _answer(call: HttpCall, wanted: RegistryCall) -> RegistryAnswer:
    context = call.context
    schemas = context.services.schemas
    is_question = wanted.operation in QUESTIONS
    if schemas.is_blocked:
        raise RegistryError(
            50001,
            f"The registry has no place for schemas: the topic {SCHEMAS_TOPIC} is not one of a registry. "
            "Keep its records elsewhere and delete it.",
        )
    if not schemas.has_topic and is_question:
        return await schemas.run_empty(wanted)
    while True:
        try:
            if not schemas.has_topic:
                await ensure_internal_topic(context.services, SCHEMAS_TOPIC, 1)
            answer = await _ask_once(call, wanted, is_question=is_question)
            if not (answer.is_elsewhere or (answer.is_unsure and wanted.operation not in _ONCE_ONLY)):
                return answer
        except HttpError as error:
            if error.status in (401, 403):
                raise
            if error.status != 503:
                raise RegistryError(50003, f"The schema registry cannot be asked: {error.message}") from None
        except (RequestError, Unavailable) as error:
            if wanted.operation in _ONCE_ONLY and not isinstance(error, RequestError):
                raise RegistryError(50003, f"Whether the change was made is not known: {error}.") from None
            if isinstance(error, RequestError) and error.code not in _PASSING:
                raise
        await asyncio.sleep(AGAIN_SECONDS)


_PASSING: Final = frozenset(
    {
        *(ErrorCode.coordinator_not_available, ErrorCode.not_controller, ErrorCode.topic_already_exists),
        *(ErrorCode.request_timed_out, ErrorCode.not_leader_or_follower),
    }
)


async def _ask_once(call: HttpCall, wanted: RegistryCall, *, is_question: bool) -> RegistryAnswer:
    context = call.context
    schemas, leader = context.services.schemas, context.services.schemas.leader
    if leader == context.node_id:
        return await schemas.run(wanted)
    if leader not in context.peers.addresses():
        return RegistryAnswer(is_elsewhere=True)  # nobody leads it now; somebody soon will
    path = NODE_ASK if is_question else NODE_CHANGE
    answer = await context.peers.ask(
        leader, "POST", path, wanted, timeout_s=SECONDS, authorization=call.authorization
    )
    try:
        return msgspec.convert(answer, RegistryAnswer)
    except msgspec.ValidationError as error:
        raise ChronikError(f"node {leader} sent an answer that cannot be read: {error}") from None
