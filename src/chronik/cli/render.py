"""How a record looks on the terminal: plain value, a format of the user's, or JSON."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from chronik.cli.client import CommandFailed
from chronik.model import TopicPartition

if TYPE_CHECKING:
    from chronik.records.reader import Record

Renderer: TypeAlias = "Callable[[TopicPartition, Record], bytes]"

_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_NULL: Final = b"null"


def _value(record: Record) -> bytes:
    if record.unreadable is not None:
        return f"[{record.unreadable}]".encode()
    return _NULL if record.value is None else record.value


_FIELDS: Final[dict[str, Renderer]] = {
    "topic": lambda tp, _: tp.topic.encode(),
    "partition": lambda tp, _: b"%d" % tp.partition,
    "offset": lambda _, record: b"%d" % record.offset,
    "timestamp": lambda _, record: b"%d" % record.timestamp_ms,
    "key": lambda _, record: _NULL if record.key is None else record.key,
    "value": lambda _, record: _value(record),
    "headers": lambda _, record: b",".join(
        name.encode() + b"=" + (_NULL if content is None else content) for name, content in record.headers
    ),
}
_TOKEN: Final = re.compile(r"\{(\w*)\}|\\(.)", re.DOTALL)


def renderer(template: str | None, *, as_json: bool) -> Renderer:
    if as_json and template is not None:
        raise CommandFailed("--json and --format both say how a record looks: give one of them")
    if as_json:
        return lambda tp, record: json.dumps(as_plain(tp, record), ensure_ascii=False).encode() + b"\n"
    if template is None:
        return lambda _, record: _value(record) + b"\n"
    return compile_template(template)


def compile_template(template: str) -> Renderer:
    """A function that fills `{field}` places; a newline is added unless the format ends in an escape."""
    parts: list[bytes | Renderer] = []
    position = 0
    for match in _TOKEN.finditer(template):
        parts.append(template[position : match.start()].encode())
        position = match.end()
        name, escape = match.groups()
        if escape is not None:
            parts.append(_ESCAPES.get(escape, b"\\" + escape.encode()))
        elif name in _FIELDS:
            parts.append(_FIELDS[name])
        else:
            known = " ".join("{" + field + "}" for field in _FIELDS)
            raise CommandFailed(f"--format: {{{name}}} is not known, {known} are")
    parts.append(template[position:].encode())
    if not template.endswith(("\\n", "\\0", "\\t", "\\r", "\n")):
        parts.append(b"\n")
    return lambda tp, record: b"".join(p if isinstance(p, bytes) else p(tp, record) for p in parts)


def as_plain(tp: TopicPartition, record: Record) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "topic": tp.topic,
        "partition": tp.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
    }
    _put(plain, "key", record.key)
    _put(plain, "value", record.value)
    if record.unreadable is not None:
        plain["error"] = str(record.unreadable)
    plain["headers"] = []
    for name, content in record.headers:
        header: dict[str, Any] = {"name": name}
        _put(header, "value", content)
        plain["headers"].append(header)
    return plain


def _put(plain: dict[str, Any], name: str, data: bytes | None) -> None:
    """Text as text; what is not UTF-8 as base64, with a field that says so."""
    try:
        plain[name] = None if data is None else data.decode()
    except UnicodeDecodeError:
        plain[name] = base64.b64encode(data or b"").decode()
        plain[f"{name}_encoding"] = "base64"
