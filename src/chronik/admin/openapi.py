"""The description of every endpoint, made from the endpoints themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from chronik import __version__
from chronik.admin.endpoint import HttpAccess, HttpEndpoint
from chronik.admin.errors import Failure

__all__ = ["describe"]

_REF: Final = "#/components/schemas/{name}"


def describe(endpoints: Sequence[HttpEndpoint]) -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    types: list[Any] = [Failure, *{one.dialect.failure_type for one in endpoints if one.dialect is not None}]
    for one in endpoints:
        types += [part for part in (one.query, one.body, one.answer) if part is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    by_type = {id(part): schema for part, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        path = one.path.replace(":path}", "}")
        paths.setdefault(path, {})[one.method.lower()] = _operation(one, by_type, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "chronik",
            "version": __version__,
            "description": "Administration, data access and figures of a chronik node. Every error is JSON "
            "with `code` and `message`; the schema registry's have `error_code` and `message`.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def _operation(one: HttpEndpoint, by_type: dict[int, Any], components: dict[str, Any]) -> dict[str, Any]:
    kind = Failure if one.dialect is None else one.dialect.failure_type
    media_type = "application/json" if one.dialect is None else one.media_type
    failure = {"content": {media_type: {"schema": by_type[id(kind)]}}}
    answer: dict[str, Any] = {"description": one.summary}
    if one.answer is not None:
        answer["content"] = {"application/json": {"schema": by_type[id(one.answer)]}}
    else:
        answer["content"] = {one.media_type: {}}
    operation: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.summary,
        "description": one.doc,
        "responses": {"200": answer, "default": {"description": "What went wrong", **failure}},
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in one.path_names
    ]
    if one.query is not None:
        schema = components[one.query.__name__]
        for name, part in schema.get("properties", {}).items():
            required = name in schema.get("required", ())
            parameters.append({"name": name, "in": "query", "required": required, "schema": part})
    if parameters:
        operation["parameters"] = parameters
    if one.body is not None:
        content = {"application/json": {"schema": by_type[id(one.body)]}}
        operation["requestBody"] = {"required": True, "content": content}
    if one.access is not HttpAccess.OPEN:
        operation["security"] = [{"bearer": []}, {"key": []}, {}]
    return operation
