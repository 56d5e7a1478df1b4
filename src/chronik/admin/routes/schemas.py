"""The schema registry's subjects, versions and schemas, as Confluent's clients ask for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec

from chronik.admin.endpoint import Content, HttpCall
from chronik.admin.schema_calls import (
    MEDIA_TYPE,
    ask_registry,
    changing,
    may_see,
    on_subject,
    reading,
    require,
    shown,
)
from chronik.model import ErrorCode, Int32, RequestError
from chronik.registry.errors import RegistryError
from chronik.registry.judge import TYPES
from chronik.registry.messages import RegistryCall, SchemaBody
from chronik.security.acls import Operation, ResourceType
from chronik.server.gate import asks

T = TypeVar("T")

_ALL_CONTEXTS: Final = ":*:"
SEEN_AT_ONCE: Final = 500


class SchemaListQuery(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    subject_prefix: str = ""
    deleted: bool = False
    """Also list what was deleted, but not for good."""
    deleted_only: bool = False
    latest_only: bool = False
    """The latest version of each subject."""
    offset: Int32 = 0
    limit: Int32 = -1
    """-1: all."""


class SchemaIdQuery(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    subject: str = ""
    format: str = ""
    """serialized: of protobuf, the descriptor in base64."""
    fetch_max_id: bool = False
    deleted: bool = False
    offset: Int32 = 0
    limit: Int32 = -1


class SchemaVersionQuery(msgspec.Struct, frozen=True, kw_only=True):
    deleted: bool = False
    format: str = ""


class SchemaCheckQuery(msgspec.Struct, frozen=True, kw_only=True):
    normalize: bool = False
    """Differences of order do not count."""
    verbose: bool = False
    """Say why not."""
    deleted: bool = False


class SchemaDeleteQuery(msgspec.Struct, frozen=True, kw_only=True):
    permanent: bool = False


def _page(found: Sequence[T], query: Any) -> list[T]:
    start = max(query.offset, 0)
    return list(found[start:] if query.limit < 0 else found[start : start + query.limit])


async def _all_seen(call: HttpCall, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The versions whose subjects the caller may see; there may be very many."""
    seen = []
    for place, one in enumerate(found):
        if may_see(call, one["subject"]):
            seen.append(one)
        if place % SEEN_AT_ONCE == 0:
            await asyncio.sleep(0)
    return seen


def _prefix(query: SchemaListQuery) -> str:
    return query.subject_prefix.removeprefix(_ALL_CONTEXTS)


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 10:
        raise RegistryError(404, "An id of a schema is a number.")
    return int(text)


# -- subjects -------------------------------------------------------------------------------------


@reading(
    "GET",
    "/subjects",
    summary="Subjects of the schema registry",
    needs=asks((Operation.DESCRIBE, ResourceType.TOPIC)),
    query=SchemaListQuery,
)
async def schema_subjects(call: HttpCall) -> Content:
    """Only those that the caller may see, sorted by name."""
    query: SchemaListQuery = call.query
    deleted = query.deleted or query.deleted_only
    found = await ask_registry(
        call, RegistryCall(operation="subjects", deleted=deleted, prefix=_prefix(query))
    )
    seen = await _all_seen(call, found)
    names = [one["subject"] for one in seen if one["deleted"] or not query.deleted_only]
    return shown(_page(names, query))


@reading(
    "GET",
    "/subjects/{subject}/versions",
    summary="Versions of a subject",
    needs=on_subject(Operation.DESCRIBE),
    query=SchemaListQuery,
)
async def schema_versions(call: HttpCall) -> Content:
    query: SchemaListQuery = call.query
    deleted = query.deleted or query.deleted_only
    found = await ask_registry(
        call, RegistryCall(operation="versions", subject=call.path["subject"], deleted=deleted)
    )
    numbers = [one["version"] for one in found if one["deleted"] or not query.deleted_only]
    return shown(_page(numbers, query))


@reading(
    "GET",
    "/subjects/{subject}/versions/{version}",
    summary="One version of a subject",
    needs=on_subject(Operation.DESCRIBE),
    query=SchemaVersionQuery,
)
async def schema_version(call: HttpCall) -> Content:
    """`latest` is a version too."""
    return shown(await _version(call))


@reading(
    "GET",
    "/subjects/{subject}/versions/{version}/schema",
    summary="The schema of a version, and nothing else",
    needs=on_subject(Operation.DESCRIBE),
    query=SchemaVersionQuery,
)
async def schema_version_text(call: HttpCall) -> Content:
    return Content((await _version(call))["schema"].encode(), MEDIA_TYPE)


async def _version(call: HttpCall, operation: str = "version") -> Any:
    return await ask_registry(
        call,
        RegistryCall(
            operation=operation,
            subject=call.path["subject"],
            version=call.path["version"],
            deleted=call.query.deleted,
            format=call.query.format,
        ),
    )


@reading(
    "GET",
    "/subjects/{subject}/versions/{version}/referencedby",
    summary="Ids of the schemas that refer to a version",
    needs=on_subject(Operation.DESCRIBE),
    query=SchemaIdQuery,
)
async def schema_referenced_by(call: HttpCall) -> Content:
    found = await _version(call, "referenced_by")
    ids = dict.fromkeys(one["id"] for one in found if may_see(call, one["subject"]))
    return shown(_page(list(ids), call.query))


@changing(
    "POST",
    "/subjects/{subject}/versions",
    summary="Register a schema",
    needs=on_subject(Operation.WRITE),
    query=SchemaCheckQuery,
    body=SchemaBody,
)
async def register_schema(call: HttpCall) -> Content:
    """The id that it has: that of the same schema, if there is one. With another subject's schemas as
    references, DESCRIBE on those is needed too. 409 if it is not compatible, 422 if it is no schema."""
    return shown(await _ask_about(call, "register"))


@reading(
    "POST",
    "/subjects/{subject}",
    summary="Find a schema in a subject",
    needs=on_subject(Operation.DESCRIBE),
    query=SchemaCheckQuery,
    body=SchemaBody,
)
async def find_schema(call: HttpCall) -> Content:
    """The version that has this schema."""
    return shown(await _ask_about(call, "lookup"))


async def _ask_about(call: HttpCall, operation: str, version: str = "") -> Any:
    body: SchemaBody = call.body
    for one in body.references or ():
        require(call, Operation.DESCRIBE, one.subject)
    return await ask_registry(
        call,
        RegistryCall(
            operation=operation,
            subject=call.path["subject"],
            version=version,
            body=body,
            normalize=call.query.normalize,
            deleted=call.query.deleted,
        ),
    )


@changing(
    "DELETE",
    "/subjects/{subject}",
    summary="Delete a subject",
    needs=on_subject(Operation.DELETE),
    query=SchemaDeleteQuery,
)
async def delete_subject(call: HttpCall) -> Content:
    """Its versions are not listed any more; their ids stay. A second call with `permanent=true` forgets
    them."""
    return shown(
        await ask_registry(
            call,
            RegistryCall(
                operation="delete_subject", subject=call.path["subject"], permanent=call.query.permanent
            ),
        )
    )


@changing(
    "DELETE",
    "/subjects/{subject}/versions/{version}",
    summary="Delete a version of a subject",
    needs=on_subject(Operation.DELETE),
    query=SchemaDeleteQuery,
)
async def delete_schema_version(call: HttpCall) -> Content:
    return shown(
        await ask_registry(
            call,
            RegistryCall(
                operation="delete_version",
                subject=call.path["subject"],
                version=call.path["version"],
                permanent=call.query.permanent,
            ),
        )
    )


# -- schemas by id --------------------------------------------------------------------------------


@reading(
    "GET",
    "/schemas/types",
    summary="Types of schemas",
    needs=asks((Operation.DESCRIBE, ResourceType.TOPIC)),
)
async def schema_types(call: HttpCall) -> Content:
    """The same for everybody who may see any topic."""
    if not call.access.allows_any(Operation.DESCRIBE, ResourceType.TOPIC):
        raise RequestError(ErrorCode.topic_authorization_failed)
    return shown(list(TYPES))


@reading(
    "GET",
    "/schemas/ids/{id}",
    summary="The schema with an id",
    needs=asks((Operation.DESCRIBE, ResourceType.TOPIC)),
    query=SchemaIdQuery,
)
async def schema_by_id(call: HttpCall) -> Content:
    """For callers who may see one of the subjects that have it."""
    found = await _by_id(call)
    hidden = {"versions"} if call.query.fetch_max_id else {"versions", "maxId"}
    return shown({name: value for name, value in found.items() if name not in hidden})


@reading(
    "GET",
    "/schemas/ids/{id}/schema",
    summary="The schema with an id, and nothing else",
    needs=asks((Operation.DESCRIBE, ResourceType.TOPIC)),
    query=SchemaIdQuery,
)
async def schema_text_by_id(call: HttpCall) -> Content:
    return Content((await _by_id(call))["schema"].encode(), MEDIA_TYPE)


@reading(
    "GET",
    "/schemas/ids/{id}/subjects",
    summary="Subjects that have the schema with an id",
    needs=asks((Operation.DESCRIBE, ResourceType.TOPIC)),
    query=SchemaIdQuery,
)
async def schema_id_subjects(call: HttpCall) -> Content:
    names = dict.fromkeys(one["subject"] for one in _seen(call, await _by_id(call)))
    return shown(_page(list(names), call.query))


@reading(
    "GET",
    "/schemas/ids/{id}/versions",
    summary="Subjects and versions that have the schema with an id",
    needs=asks((Operation.DESCRIBE, ResourceType.TOPIC)),
    query=SchemaIdQuery,
)
async def schema_id_versions(call: HttpCall) -> Content:
    found = [
        {"subject": one["subject"], "version": one["version"]} for one in _seen(call, await _by_id(call))
    ]
    return shown(_page(found, call.query))


async def _by_id(call: HttpCall) -> Any:
    found = await ask_registry(
        call, RegistryCall(operation="by_id", id=_number(call.path["id"]), format=call.query.format)
    )
    if not any(may_see(call, one["subject"]) for one in found["versions"]):
        raise RequestError(ErrorCode.topic_authorization_failed)
    return found


def _seen(call: HttpCall, found: Any) -> list[dict[str, Any]]:
    return [
        one
        for one in found["versions"]
        if may_see(call, one["subject"]) and (call.query.deleted or not one["deleted"])
    ]


@reading(
    "GET",
    "/schemas",
    summary="All versions of all subjects",
    needs=asks((Operation.DESCRIBE, ResourceType.TOPIC)),
    query=SchemaListQuery,
)
async def schema_list(call: HttpCall) -> Content:
    """Only those that the caller may see."""
    query: SchemaListQuery = call.query
    wanted = RegistryCall(
        operation="schemas", deleted=query.deleted, prefix=_prefix(query), latest_only=query.latest_only
    )
    return shown(_page(await _all_seen(call, await ask_registry(call, wanted)), query))


@reading(
    "POST",
    "/compatibility/subjects/{subject}/versions/{version}",
    summary="Is a schema compatible with one version?",
    needs=on_subject(Operation.DESCRIBE),
    query=SchemaCheckQuery,
    body=SchemaBody,
)
async def check_schema_version(call: HttpCall) -> Content:
    """It is judged by the compatibility of its subject; nothing is registered."""
    return _checked(call, await _ask_about(call, "check", call.path["version"]))


@reading(
    "POST",
    "/compatibility/subjects/{subject}/versions",
    summary="Is a schema compatible with those that it would have to be?",
    needs=on_subject(Operation.DESCRIBE),
    query=SchemaCheckQuery,
    body=SchemaBody,
)
async def check_schema(call: HttpCall) -> Content:
    return _checked(call, await _ask_about(call, "check"))


def _checked(call: HttpCall, found: dict[str, Any]) -> Content:
    return shown(found if call.query.verbose else {"is_compatible": found["is_compatible"]})
