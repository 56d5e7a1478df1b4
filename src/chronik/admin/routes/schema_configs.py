"""The schema registry's compatibility levels and modes: for all subjects, and for one."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from chronik.admin.endpoint import Content, HttpCall
from chronik.admin.schema_calls import ask_registry, changing, on_subject, reading, shown
from chronik.registry.errors import RegistryError
from chronik.registry.messages import RegistryCall
from chronik.security.acls import CLUSTER_NAME, Operation, ResourceType
from chronik.server.gate import on_cluster

_MAY_LOOK: Final = on_cluster(Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
_MAY_CHANGE: Final = on_cluster(Operation.ALTER_CONFIGS)


class SchemaConfigQuery(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    default_to_global: bool = False
    """What is in force if the subject has none of its own."""


class SchemaForceQuery(msgspec.Struct, frozen=True, kw_only=True):
    force: bool = False
    """IMPORT also where there are versions."""


class SchemaConfigBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    compatibility: str | None = None
    """BACKWARD, FORWARD or FULL, each also with _TRANSITIVE; NONE."""
    alias: Any = None
    """Not supported, like all that follows: refused unless null."""
    normalize: Any = None
    compatibility_group: Any = None
    compatibility_policy: Any = None
    default_metadata: Any = None
    override_metadata: Any = None
    default_rule_set: Any = None
    override_rule_set: Any = None


class SchemaModeBody(msgspec.Struct, frozen=True, kw_only=True):
    mode: str = ""
    """READWRITE, READONLY, READONLY_OVERRIDE or IMPORT."""


async def _ask(call: HttpCall, operation: str, **more: Any) -> Content:
    wanted = RegistryCall(operation=operation, subject=call.path.get("subject"), **more)
    return shown(await ask_registry(call, wanted))


def _level(body: SchemaConfigBody) -> str:
    for name in body.__struct_fields__[1:]:
        if getattr(body, name):
            raise RegistryError(42205, f"The config {name} is not supported.")
    return body.compatibility or ""


@reading("GET", "/config", summary="Compatibility of all subjects", needs=_MAY_LOOK)
async def schema_config(call: HttpCall) -> Content:
    return await _ask(call, "config")


@changing(
    "PUT",
    "/config",
    summary="Set the compatibility of all subjects",
    needs=_MAY_CHANGE,
    body=SchemaConfigBody,
)
async def set_schema_config(call: HttpCall) -> Content:
    return await _ask(call, "set_config", value=_level(call.body))


@changing("DELETE", "/config", summary="Set the compatibility of all subjects back", needs=_MAY_CHANGE)
async def delete_schema_config(call: HttpCall) -> Content:
    """To BACKWARD."""
    return await _ask(call, "delete_config")


@reading(
    "GET",
    "/config/{subject}",
    summary="Compatibility of a subject",
    needs=on_subject(Operation.DESCRIBE),
    query=SchemaConfigQuery,
)
async def subject_schema_config(call: HttpCall) -> Content:
    return await _ask(call, "config", default_to_global=call.query.default_to_global)


@changing(
    "PUT",
    "/config/{subject}",
    summary="Set the compatibility of a subject",
    needs=on_subject(Operation.ALTER_CONFIGS),
    body=SchemaConfigBody,
)
async def set_subject_schema_config(call: HttpCall) -> Content:
    return await _ask(call, "set_config", value=_level(call.body))


@changing(
    "DELETE",
    "/config/{subject}",
    summary="Give a subject the compatibility of all",
    needs=on_subject(Operation.ALTER_CONFIGS),
)
async def delete_subject_schema_config(call: HttpCall) -> Content:
    return await _ask(call, "delete_config")


@reading("GET", "/mode", summary="Mode of all subjects", needs=_MAY_LOOK)
async def schema_mode(call: HttpCall) -> Content:
    return await _ask(call, "mode")


@changing(
    "PUT",
    "/mode",
    summary="Set the mode of all subjects",
    needs=_MAY_CHANGE,
    query=SchemaForceQuery,
    body=SchemaModeBody,
)
async def set_schema_mode(call: HttpCall) -> Content:
    """READONLY refuses changes, IMPORT takes schemas with the ids that they had elsewhere."""
    return await _ask(call, "set_mode", value=call.body.mode, force=call.query.force)


@reading(
    "GET",
    "/mode/{subject}",
    summary="Mode of a subject",
    needs=on_subject(Operation.DESCRIBE),
    query=SchemaConfigQuery,
)
async def subject_schema_mode(call: HttpCall) -> Content:
    return await _ask(call, "mode", default_to_global=call.query.default_to_global)


@changing(
    "PUT",
    "/mode/{subject}",
    summary="Set the mode of a subject",
    needs=on_subject(Operation.ALTER_CONFIGS),
    query=SchemaForceQuery,
    body=SchemaModeBody,
)
async def set_subject_schema_mode(call: HttpCall) -> Content:
    """IMPORT needs ALTER_CONFIGS on the cluster: ids are everybody's."""
    if call.body.mode.upper() == "IMPORT":
        call.access.require(Operation.ALTER_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
    return await _ask(call, "set_mode", value=call.body.mode, force=call.query.force)


@changing(
    "DELETE",
    "/mode/{subject}",
    summary="Give a subject the mode of all",
    needs=on_subject(Operation.ALTER_CONFIGS),
)
async def delete_subject_schema_mode(call: HttpCall) -> Content:
    return await _ask(call, "delete_mode")
