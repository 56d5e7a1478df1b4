"""A handler's request has the type that it says: what mypy checks is what the decoder yields."""

from __future__ import annotations

import ast
import dataclasses
import datetime
import inspect
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

import chronik.server
from chronik.server.dispatch import Handler
from chronik.server.handlers import all_handlers
from chronik.wire.api import parse_request_header
from chronik.wire.schema import decode_request, encode_request
from tests.unit.wire.test_schema import Generator, load_request_schema

DECODED = [handler for handler in all_handlers() if isinstance(handler, Handler) and not handler.hot]
by_name = pytest.mark.parametrize("handler", DECODED, ids=lambda handler: handler.api_key.name)


def checked_names(function: Any) -> dict[str, Any]:
    """The names that a handler's module has for type checkers only."""
    module = sys.modules[function.__module__]
    names = dict(vars(module))
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            exec(compile(ast.Module(node.body, []), module.__name__, "exec"), names)
    return names


def request_types(function: Any) -> set[Any]:
    names = checked_names(function)
    parameter = next(iter(inspect.signature(function).parameters.values()))
    hint = eval(str(parameter.annotation), names)
    return set(typing.get_args(hint)) or {hint}


@by_name
def test_a_handler_is_given_the_type_it_names(handler: Handler[Any]) -> None:
    low, high = handler.versions
    given = {
        load_request_schema(handler.api_key, handler.class_version(version))
        for version in range(low, high + 1)
    }
    assert request_types(handler.function) == given
    if handler.on_error is not None:
        assert request_types(handler.on_error) == given


@by_name
def test_a_request_of_any_version_has_all_fields(handler: Handler[Any]) -> None:
    low, high = handler.versions
    for version in range(low, high + 1):
        fields = Generator((handler.api_key, version)).fields(load_request_schema(handler.api_key, version))
        frame = encode_request(handler.api_key, version, 1, "client", fields)
        _, body = parse_request_header(frame, 4)
        sent = decode_request(handler.api_key, version, frame, body)
        assert_holds(handler.decode(version, memoryview(frame), body), sent)


def assert_holds(given: Any, sent: Any) -> None:
    """Everything that was sent, and a value of the right type for every field that was not."""
    if isinstance(sent, tuple):
        for given_item, sent_item in zip(given, sent, strict=True):
            assert_holds(given_item, sent_item)
        return
    if not dataclasses.is_dataclass(sent):
        assert given == sent
        return
    names = {field.name for field in dataclasses.fields(sent)}
    for field in dataclasses.fields(given):
        value = getattr(given, field.name)
        if field.name in names:
            assert_holds(value, getattr(sent, field.name))
        else:
            assert_default(field, value)
    assert names <= {field.name for field in dataclasses.fields(given)}


def assert_default(field: dataclasses.Field[Any], value: Any) -> None:
    if field.default is not dataclasses.MISSING:
        assert value == field.default
        return
    assert value in (None, "", b"", (), 0, datetime.timedelta(0))
    hint = typing.cast("Any", field.type)
    # `tuple[X, ...]` is not a class; whether a value is None or of class X, isinstance can tell by itself.
    types = [typing.get_origin(one) or one for one in typing.get_args(hint)]
    if typing.get_origin(hint) is tuple:
        types = [tuple]
    assert isinstance(value, tuple(types) or hint)


def test_no_function_takes_a_request_of_any_type() -> None:
    found = [
        f"{path.name}: {function.name}"
        for path in Path(chronik.server.__file__).parent.rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for one in (*function.args.args, *function.args.kwonlyargs)
        if one.arg.strip("_") == "request" and one.annotation is not None
        if ast.unparse(one.annotation) == "Any"
    ]
    assert found == []
