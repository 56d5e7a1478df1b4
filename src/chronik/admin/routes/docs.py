"""The description of all this, for tools and for people."""

from __future__ import annotations

import html
import importlib

import msgspec

from chronik.admin.endpoint import Content, HttpAccess, HttpCall, HttpEndpoint, endpoint
from chronik.admin.needs import is_by_node
from chronik.admin.openapi import describe
from chronik.server.gate import NOTHING

_ACCESS = {
    HttpAccess.OPEN: "",
    HttpAccess.HEALTH: "needs a login if health_needs_key is set",
    HttpAccess.METRICS: "needs a login if metrics_need_key is set",
    HttpAccess.STATUS: "needs a login where there is an authorizer, or a key and a way in for other machines",
    HttpAccess.DATA: "shows records: needs a login where a key is set or there is an authorizer",
    HttpAccess.CHANGE: "changes something: needs a login unless the node listens on loopback only",
}


def _endpoints() -> tuple[HttpEndpoint, ...]:
    # Imported late: the list of endpoints imports this file.
    found: tuple[HttpEndpoint, ...] = importlib.import_module("chronik.admin.routes").ENDPOINTS
    return found


@endpoint(
    "GET",
    "/openapi.json",
    needs=NOTHING,
    summary="This API as OpenAPI 3.1",
    always=True,
    access=HttpAccess.OPEN,
)
async def openapi(_call: HttpCall) -> Content:
    return Content(msgspec.json.encode(describe(_endpoints())), "application/json")


@endpoint(
    "GET",
    "/docs",
    needs=NOTHING,
    summary="This API on one page",
    media_type="text/html",
    always=True,
    access=HttpAccess.OPEN,
)
async def docs_page(_call: HttpCall) -> Content:
    parts = [_section(one) for one in _endpoints()]
    page = (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        "<title>chronik HTTP API</title><link rel=stylesheet href=/console/docs.css>"
        "<h1>chronik HTTP API</h1>"
        "<p>Also as <a href=/openapi.json>OpenAPI</a>. Errors are JSON with <code>code</code> and "
        "<code>message</code>; the schema registry's have <code>error_code</code>.</p>"
        f"{''.join(parts)}</html>"
    )
    return Content(page.encode(), "text/html; charset=utf-8")


def _section(one: HttpEndpoint) -> str:
    rows = [("path", name, "text", "") for name in one.path_names]
    for place, part in (("query", one.query), ("body", one.body)):
        if part is not None and isinstance(part, type) and issubclass(part, msgspec.Struct):
            rows += [
                (place, field.encode_name, _type_name(field.type), "required" if field.required else "")
                for field in msgspec.structs.fields(part)
            ]
    table = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    note = ". ".join(filter(None, (_ACCESS[one.access], rights_of(one))))
    return (
        f"<h2><b>{one.method}</b> {html.escape(one.path)}</h2><p>{html.escape(one.summary)}. "
        f"{html.escape(one.doc)}</p>"
        + (f"<p><small>{note}</small></p>" if note else "")
        + (f"<table><tr><th>in<th>name<th>type<th></tr>{table}</table>" if rows else "")
    )


def rights_of(one: HttpEndpoint) -> str:
    """In words: the rights that a principal needs where an authorizer is configured."""
    demands = [
        f"{operation.name} on {kind.name.lower().replace('_', ' ')}" for operation, kind in one.needs.demands
    ]
    text = f"ACLs: {' and '.join(demands)}" if demands else ""
    if is_by_node(one.needs):
        return f"{text}, or signed by a node" if text else "Signed by a node"
    return text


def _type_name(kind: object) -> str:
    return getattr(kind, "__name__", None) or str(kind).replace("NoneType", "null").replace("typing.", "")
