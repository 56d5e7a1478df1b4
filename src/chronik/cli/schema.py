"""`chronik schema`: schemas of the registry that every cluster has."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from chronik.cli.client import AsJson, Bootstrap, CommandFailed, print_json, print_table
from chronik.cli.http import HttpUrl, with_http
from chronik.cli.printable import printable, say

Subject = Annotated[str, typer.Argument(metavar="SUBJECT", show_default=False)]
SchemaFile = Annotated[
    str, typer.Argument(metavar="FILE", help="the schema; - for standard input", show_default=False)
]
Type = Annotated[
    str | None,
    typer.Option(
        "--type", metavar="TYPE", help="avro, json or protobuf [dim](default: by the file's name)[/dim]"
    ),
]
References = Annotated[
    list[str] | None,
    typer.Option(
        "--reference", "-r", metavar="NAME=SUBJECT:VERSION", help="a schema that this one refers to"
    ),
]
Normalize = Annotated[bool, typer.Option("--normalize", help="differences of order do not count")]
_TYPES: Final = {".avsc": "AVRO", ".proto": "PROTOBUF", ".json": "JSON"}


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="List, fetch, register, check and delete schemas.", no_args_is_help=True)
    group.command("list")(list_)
    group.command()(get)
    group.command("register")(register_)
    group.command()(check)
    group.command()(delete)
    app.add_typer(group, name="schema")


def list_(
    subject: Annotated[str | None, typer.Argument(metavar="[SUBJECT]", show_default=False)] = None,
    deleted: Annotated[
        bool, typer.Option("--deleted", help="also what was deleted, but not for good")
    ] = False,
    as_json: AsJson = False,
    url: HttpUrl = None,
    servers: Bootstrap = None,
) -> None:
    """List subjects with their latest version, or all versions of one.

    Examples:

      chronik schema list

      chronik schema list orders-value
    """
    options = (
        "deleted=true" if deleted else f"deleted=false&latestOnly={'true' if subject is None else 'false'}"
    )
    options += "" if subject is None else f"&subjectPrefix={_quoted(subject)}"
    found = with_http(url, servers, lambda http: http.get(f"/schemas?{options}"))
    if subject is not None:
        found = [one for one in found if one["subject"] == subject]
        if not found:
            raise CommandFailed(f"there is no subject {subject!r}")
    if as_json:
        print_json(found)
        return
    rows = [
        (
            one["subject"],
            str(one["version"]),
            str(one["id"]),
            one.get("schemaType", "AVRO"),
            "deleted" if one.get("deleted") else "",
        )
        for one in found
    ]
    print_table(("subject", "version", "id", "type", ""), rows)


def get(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT|ID", show_default=False)],
    version: Annotated[str, typer.Option("--version", metavar="N", help="a version")] = "latest",
    by_id: Annotated[bool, typer.Option("--id", help="the argument is the id of a schema")] = False,
    as_json: AsJson = False,
    url: HttpUrl = None,
    servers: Bootstrap = None,
) -> None:
    """Print a schema: of a subject, or the one with an id.

    Examples:

      chronik schema get orders-value

      chronik schema get orders-value --version 2

      chronik schema get 17 --id
    """
    path = f"/subjects/{_quoted(subject)}/versions/{_quoted(version)}"
    found = with_http(
        url, servers, lambda http: http.get(f"/schemas/ids/{_quoted(subject)}" if by_id else path)
    )
    if as_json:
        print_json(found)
        return
    text = found["schema"]
    is_json = found.get("schemaType", "AVRO") != "PROTOBUF"
    shown = json.dumps(json.loads(text), indent=2, ensure_ascii=False) if is_json else text.rstrip("\n")
    print(printable(shown) if sys.stdout.isatty() else shown)  # a file gets it as it is


def register_(
    subject: Subject,
    file: SchemaFile,
    type_: Type = None,
    references: References = None,
    normalize: Normalize = False,
    url: HttpUrl = None,
    servers: Bootstrap = None,
) -> None:
    """Register a schema and print its id.

    Examples:

      chronik schema register orders-value order.avsc

      chronik schema register orders-value order.proto -r common.proto=common:1
    """
    body = _body(file, type_, references)
    path = f"/subjects/{_quoted(subject)}/versions?normalize={str(normalize).lower()}"
    print(with_http(url, servers, lambda http: http.post(path, body))["id"])


def check(
    subject: Subject,
    file: SchemaFile,
    type_: Type = None,
    references: References = None,
    url: HttpUrl = None,
    servers: Bootstrap = None,
) -> None:
    """Say whether a schema could be registered: exit code 1 and the reasons if not.

    Example: chronik schema check orders-value order.avsc
    """
    body = _body(file, type_, references)
    path = f"/compatibility/subjects/{_quoted(subject)}/versions?verbose=true"
    found: dict[str, Any] = with_http(url, servers, lambda http: http.post(path, body))
    if found["is_compatible"]:
        say(f"the schema is compatible with those of {subject}")
        return
    for one in found["messages"]:
        say(one)
    raise typer.Exit(1)


def delete(
    subject: Subject,
    version: Annotated[str | None, typer.Option("--version", metavar="N", help="this version alone")] = None,
    permanent: Annotated[
        bool, typer.Option("--permanent", help="for good, what was deleted before: data with its id is lost")
    ] = False,
    url: HttpUrl = None,
    servers: Bootstrap = None,
) -> None:
    """Delete a subject, or a version: it is not listed any more, and its id stays.

    Examples:

      chronik schema delete orders-value --version 2

      chronik schema delete orders-value --permanent
    """
    of_version = "" if version is None else f"/versions/{_quoted(version)}"
    path = f"/subjects/{_quoted(subject)}{of_version}?permanent={str(permanent).lower()}"
    found = with_http(url, servers, lambda http: http.request("DELETE", path, None))
    numbers = found if isinstance(found, list) else [found]
    say(f"deleted of {subject}: version {', '.join(map(str, numbers))}")


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _body(file: str, given: str | None, references: list[str] | None) -> dict[str, Any]:
    kind = (given or _TYPES.get(Path(file).suffix, "")).upper()
    if kind not in _TYPES.values():
        raise CommandFailed("the schema's type is not known: --type avro, json or protobuf")
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{file} cannot be read: {error}") from None
    return {"schema": text, "schemaType": kind, "references": [_reference(one) for one in references or ()]}


def _reference(text: str) -> dict[str, Any]:
    name, equals, rest = text.rpartition("=")
    subject, colon, version = rest.rpartition(":")
    if not (equals and colon and version.isdecimal()):
        raise CommandFailed(f"{text!r} is no reference: write NAME=SUBJECT:VERSION")
    return {"name": name, "subject": subject, "version": int(version)}
