"""The pipeline file as values; whatever is wrong with it is one sentence with a line. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from chronik.spark.pipeline.document import Document, KeyPath, meant

DECODERS: Final = ("json", "avro", "csv", "raw")
FORMATS: Final = ("parquet", "delta", "iceberg", "topic", "index", "console")
MODES: Final = ("append", "update", "complete")
TRIGGERS: Final = ("available-now", "continuous", "batch")
_INTERVAL: Final = re.compile(r"\d+ (?:milliseconds?|seconds?|minutes?|hours?|days?)")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    name: str
    topics: tuple[str, ...] = ()
    table: str | None = None
    table_format: str = "parquet"
    decode: str = "json"
    schema: str | None = None
    registry: str | None = None
    start: str = "earliest"
    watermark_column: str | None = None
    watermark_delay: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def bad_name(self) -> str:
        """The view of the records that could not be decoded."""
        return f"{self.name}_bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    name: str
    position: int
    sql: str | None = None
    python: str | None = None
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    name: str
    input: str
    format: str
    path: str | None = None
    topic: str | None = None
    key: str | None = None
    value: str | None = None
    mode: str = "append"
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    name: str
    bootstrap: str | None
    trigger: str
    checkpoint: str
    sources: Mapping[str, Source]
    steps: tuple[Step, ...]
    sinks: Mapping[str, Sink]

    def views(self) -> set[str]:
        """Everything a step or a sink can read."""
        bad = {source.bad_name for source in self.sources.values() if source.topics}
        return {*self.sources, *(step.name for step in self.steps), *bad}


def parse(document: Document) -> Pipeline:
    values = document.values
    known = ("name", "bootstrap", "trigger", "checkpoint", "sources", "steps", "sinks")
    document.check_keys((), values, known)
    reader = _TableReader(document)
    name = reader.text((), values, "name", required=True) or ""
    sources = {
        key: _source(reader, key, table) for key, table in reader.tables((), values, "sources").items()
    }
    steps = tuple(
        _step(reader, position, table) for position, table in enumerate(reader.list(values, "steps"))
    )
    sinks = {key: _sink(reader, key, table) for key, table in reader.tables((), values, "sinks").items()}
    if not sources:
        raise document.error((), 'there is no source: add a table [sources.orders] with topic = "orders"')
    if not sinks:
        raise document.error((), "there is no sink: add a table [sinks.out] with from, format and path")
    made = Pipeline(
        name=name,
        bootstrap=reader.text((), values, "bootstrap"),
        trigger=_trigger(reader, values),
        checkpoint=reader.text((), values, "checkpoint") or f".chronik/{name}",
        sources=sources,
        steps=steps,
        sinks=sinks,
    )
    _check_names(document, made)
    return made


class _TableReader:
    """Typed access to the file's tables."""

    def __init__(self, document: Document) -> None:
        self.document = document

    def _typed(
        self, path: KeyPath, table: Mapping[str, Any], key: str, fits: Callable[[Any], bool], kind: str
    ) -> Any:
        value = table.get(key)
        if value is not None and not fits(value):
            raise self.document.error((*path, key), f"{key} must be {kind}, not {value!r}")
        return value

    def text(
        self, path: KeyPath, table: Mapping[str, Any], key: str, *, required: bool = False
    ) -> str | None:
        value = self._typed(path, table, key, lambda found: isinstance(found, str) and bool(found), "a text")
        if value is None and required:
            raise self.document.error(path, f"{key} is missing")
        return None if value is None else str(value)

    def choice(
        self, path: KeyPath, table: Mapping[str, Any], key: str, choices: tuple[str, ...], default: str
    ) -> str:
        value = self.text(path, table, key)
        if value is not None and value not in choices:
            raise self.document.error((*path, key), f"{key} {value!r} is not known; {meant(value, choices)}")
        return value or default

    def texts(self, path: KeyPath, table: Mapping[str, Any], key: str) -> tuple[str, ...]:
        def fits(found: Any) -> bool:
            return isinstance(found, str) or (
                isinstance(found, list) and all(isinstance(each, str) for each in found)
            )

        value = self._typed(path, table, key, fits, "a text or a list of texts")
        return () if value is None else (value,) if isinstance(value, str) else tuple(value)

    def tables(self, path: KeyPath, table: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
        def fits(found: Any) -> bool:
            return isinstance(found, dict) and all(isinstance(each, dict) for each in found.values())

        return self._typed(path, table, key, fits, "tables") or {}

    def list(self, table: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
        def fits(found: Any) -> bool:
            return isinstance(found, list) and all(isinstance(each, dict) for each in found)

        return self._typed((), table, key, fits, "written as [[steps]]") or []

    def options(self, path: KeyPath, table: Mapping[str, Any]) -> dict[str, str]:
        found = self._typed(path, table, "options", lambda each: isinstance(each, dict), "a table")
        return {name: _plain(value) for name, value in (found or {}).items()}


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _trigger(reader: _TableReader, values: Mapping[str, Any]) -> str:
    trigger = reader.text((), values, "trigger") or "available-now"
    if trigger not in TRIGGERS and not _INTERVAL.fullmatch(trigger):
        what = (
            f'trigger {trigger!r} is not known: write {", ".join(TRIGGERS)}, or an interval like "10 seconds"'
        )
        raise reader.document.error(("trigger",), what)
    return trigger


def _source(reader: _TableReader, name: str, table: dict[str, Any]) -> Source:
    path: KeyPath = ("sources", name)
    keys = (
        "topic",
        "topics",
        "table",
        "format",
        "decode",
        "schema",
        "registry",
        "start",
        "watermark",
        "options",
    )
    reader.document.check_keys(path, table, keys)
    topics = reader.texts(path, table, "topic") + reader.texts(path, table, "topics")
    place = reader.text(path, table, "table")
    if bool(topics) == (place is not None):
        raise reader.document.error(path, f"source {name} needs either topic or table")
    decode = reader.choice(path, table, "decode", DECODERS, "json")
    schema = reader.text(path, table, "schema")
    registry = reader.text(path, table, "registry")
    if decode == "csv" and schema is None:
        raise reader.document.error(path, 'CSV has no names: add schema = "id bigint, name string"')
    if decode == "avro" and registry is None:
        raise reader.document.error(path, 'Avro needs a schema registry: add registry = "http://host:port"')
    watermark = table.get("watermark", {})
    if "watermark" in table:
        is_table = isinstance(watermark, dict) and set(watermark) == {"column", "delay"}
        if not is_table or not isinstance(watermark["column"], str):
            what = 'write watermark = { column = "at", delay = "1 minute" }'
            raise reader.document.error((*path, "watermark"), what)
        if not _INTERVAL.fullmatch(str(watermark["delay"])):
            what = f'{watermark["delay"]!r} is no delay: write for example "1 minute"'
            raise reader.document.error((*path, "watermark"), what)
    return Source(
        name=name,
        topics=topics,
        table=place,
        table_format=reader.choice(
            path, table, "format", ("parquet", "delta", "iceberg", "json", "csv"), "parquet"
        ),
        decode=decode,
        schema=schema,
        registry=registry,
        start=reader.choice(path, table, "start", ("earliest", "latest"), "earliest"),
        watermark_column=watermark.get("column"),
        watermark_delay=str(watermark.get("delay", "")),
        options=reader.options(path, table),
    )


def _step(reader: _TableReader, position: int, table: dict[str, Any]) -> Step:
    path: KeyPath = ("steps", position)
    reader.document.check_keys(path, table, ("name", "sql", "python", "input"))
    name = reader.text(path, table, "name", required=True) or ""
    sql, python = reader.text(path, table, "sql"), reader.text(path, table, "python")
    if (sql is None) == (python is None):
        raise reader.document.error(path, f"step {name} needs either sql or python")
    inputs = reader.texts(path, table, "input")
    if python is not None and not inputs:
        raise reader.document.error(path, f'step {name} needs an input: add input = "orders"')
    if python is not None and ":" not in python:
        raise reader.document.error(
            (*path, "python"), f'{python!r} names no function: write "file.py:function"'
        )
    return Step(name=name, position=position, sql=sql, python=python, inputs=inputs)


def _sink(reader: _TableReader, name: str, table: dict[str, Any]) -> Sink:
    path: KeyPath = ("sinks", name)
    keys = ("from", "format", "path", "topic", "key", "value", "mode", "partition_by", "options")
    reader.document.check_keys(path, table, keys)
    kind = reader.choice(path, table, "format", FORMATS, "parquet")
    place = reader.text(path, table, "path")
    topic = reader.text(path, table, "topic")
    if kind in ("parquet", "delta", "iceberg", "index") and place is None:
        raise reader.document.error(path, f"sink {name} writes {kind}: add path")
    if kind == "topic" and topic is None:
        raise reader.document.error(path, f"sink {name} writes to a topic: add topic")
    mode = reader.choice(path, table, "mode", MODES, "append")
    if mode != "append" and kind in ("parquet", "iceberg", "index"):
        what = f"{kind} can only be appended to; {mode} goes to a topic, a Delta table or the console"
        raise reader.document.error((*path, "mode"), what)
    return Sink(
        name=name,
        input=reader.text(path, table, "from", required=True) or "",
        format=kind,
        path=place,
        topic=topic,
        key=reader.text(path, table, "key"),
        value=reader.text(path, table, "value"),
        mode=mode,
        partition_by=reader.texts(path, table, "partition_by"),
        options=reader.options(path, table),
    )


def _check_names(document: Document, pipeline: Pipeline) -> None:
    """Names are SQL views: they must be identifiers, different, and made before they are read."""
    seen: set[str] = set()
    paths: list[tuple[str, KeyPath]] = [(name, ("sources", name)) for name in pipeline.sources]
    paths += [(step.name, ("steps", step.position, "name")) for step in pipeline.steps]
    for name, path in paths:
        if not _NAME.fullmatch(name):
            raise document.error(path, f"{name!r} cannot be a name in SQL: letters, digits and _ can")
        if name.lower() in seen:
            raise document.error(path, f"there are two things named {name!r}")
        seen.add(name.lower())
    made = {*pipeline.sources, *(s.bad_name for s in pipeline.sources.values() if s.topics)}
    for step in pipeline.steps:
        for each in step.inputs:
            if each not in made:
                what = f"step {step.name} reads {each!r}, which no source or step before it makes; "
                raise document.error(("steps", step.position, "input"), what + meant(each, made))
        made.add(step.name)
    for sink in pipeline.sinks.values():
        if sink.input not in made:
            what = f"sink {sink.name} reads {sink.input!r}, which nothing makes; {meant(sink.input, made)}"
            raise document.error(("sinks", sink.name, "from"), what)
