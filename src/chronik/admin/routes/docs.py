"""The description of all this, for tools and for people."""

from __future__ import annotations

import html
import importlib

import msgspec

from chronik.admin.endpoint import Access, Call, Content, Endpoint, endpoint
from chronik.admin.openapi import describe

_ACCESS = {
    Access.OPEN: "",
    Access.DATA: "shows records: needs the API key where one is set",
    Access.CHANGE: "changes something: needs the API key unless the node listens on loopback only",
}
_STYLE = """
:root{color-scheme:light dark;--line:#8884;--soft:#8881}
body{font:15px/1.55 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
h2{font-size:1rem;margin:2rem 0 .3rem;font-family:ui-monospace,monospace}
h2 b{display:inline-block;min-width:4.5rem;color:#3b82f6}
p{margin:.3rem 0}table{border-collapse:collapse;width:100%;margin:.5rem 0}
td,th{text-align:left;padding:.3rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}
code{background:var(--soft);padding:.1rem .3rem;border-radius:4px}small{opacity:.75}
"""


def _endpoints() -> tuple[Endpoint, ...]:
    # The list names this file's endpoints, so it can only be looked up when it is complete.
    found: tuple[Endpoint, ...] = importlib.import_module("chronik.admin.routes").ENDPOINTS
    return found


@endpoint("GET", "/openapi.json", summary="This API as OpenAPI 3.1", always=True)
async def openapi(_call: Call) -> Content:
    return Content(msgspec.json.encode(describe(_endpoints())), "application/json")


@endpoint("GET", "/docs", summary="This API on one page", media_type="text/html", always=True)
async def docs_page(_call: Call) -> Content:
    parts = [_section(one) for one in _endpoints()]
    page = (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>chronik HTTP API</title><style>{_STYLE}</style><h1>chronik HTTP API</h1>"
        "<p>Also as <a href=/openapi.json>OpenAPI</a>. Errors are JSON with <code>code</code> and "
        f"<code>message</code>.</p>{''.join(parts)}</html>"
    )
    return Content(page.encode(), "text/html; charset=utf-8")


def _section(one: Endpoint) -> str:
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
    note = _ACCESS[one.access]
    return (
        f"<h2><b>{one.method}</b> {html.escape(one.path)}</h2><p>{html.escape(one.summary)}. "
        f"{html.escape(one.doc)}</p>"
        + (f"<p><small>{note}</small></p>" if note else "")
        + (f"<table><tr><th>in<th>name<th>type<th></tr>{table}</table>" if rows else "")
    )


def _type_name(kind: object) -> str:
    return getattr(kind, "__name__", None) or str(kind).replace("NoneType", "null").replace("typing.", "")
