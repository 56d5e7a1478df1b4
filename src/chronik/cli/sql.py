"""`chronik sql`: one query, or a shell with tables, completion and history."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from chronik.cli.client import Bootstrap, CommandFailed
from chronik.cli.http import Http, HttpUrl, with_http
from chronik.cli.printable import complain, printable, say
from chronik.words import counted

HISTORY: Final = Path("~/.chronik_sql_history")
HELP: Final = """\
  SELECT ...;            run a query; it may span lines and ends with a semicolon
  .tables                the topics
  .columns TOPIC         a topic's columns
  .explain SELECT ...    how a query would be run
  .help  .quit           this, and the way out
Tab completes topics, columns and keywords."""
_WORDS: Final = """
    SELECT FROM WHERE GROUP BY ORDER LIMIT DESC ASC AND OR NOT NULL COUNT(*) SUM( AVG( MIN( MAX( DISTINCT JOIN
    ON HAVING INTERVAL BETWEEN LIKE CASE WHEN THEN ELSE END WITH UNION ALL
"""


def register(app: typer.Typer) -> None:
    app.command()(sql)


_Query = Annotated[str | None, typer.Argument(help="one SELECT; none opens a shell", show_default=False)]
_Format = Annotated[
    str, typer.Option("--format", "-f", metavar="FORMAT", help="table, json (a line per row) or csv")
]
_Limit = Annotated[
    int | None, typer.Option("--limit", min=0, metavar="N", help="highest number of rows to show")
]


def sql(
    query: _Query = None,
    form: _Format = "table",
    limit: _Limit = None,
    url: HttpUrl = None,
    servers: Bootstrap = None,
) -> None:
    """Ask topics by SQL: each is a table with its records and the fields of JSON values.

    Examples:

      chronik sql 'SELECT customer, sum(total) FROM orders GROUP BY ALL'

      chronik sql "SELECT * FROM orders WHERE timestamp > now() - INTERVAL 1 HOUR" --format csv

      chronik sql
    """
    if form not in ("table", "json", "csv"):
        raise CommandFailed(f"--format {form!r} is not known: table, json or csv")
    if query is None and not sys.stdin.isatty():
        query = sys.stdin.read()
    if query is not None:
        wanted = query
        with_http(url, servers, lambda http: _run(http, wanted, form, limit))
    else:
        with_http(url, servers, lambda http: _Shell(http, form, limit).run())


async def _run(http: Http, query: str, form: str, limit: int | None) -> None:
    began = time.monotonic()
    answer = await http.post("/_sql", {"query": query, "limit": limit})
    seconds = time.monotonic() - began
    names = [column["name"] for column in answer["columns"]]
    if form == "json":
        for row in answer["rows"]:
            print(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False))
    elif form == "csv":
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(answer["rows"])
    else:
        _print_table(answer, seconds)
    if answer["is_cut"] and form != "table":
        print(f"chronik: only the first {len(answer['rows'])} rows were sent", file=sys.stderr)


def _print_table(answer: dict[str, Any], seconds: float) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for column in answer["columns"]:
        numeric = any(kind in column["type"] for kind in ("INT", "DOUBLE", "DECIMAL", "FLOAT"))
        table.add_column(escape(column["name"]), justify="right" if numeric else "left", overflow="fold")
    for row in answer["rows"]:
        table.add_row(*(_cell(value) for value in row))
    console = Console()
    console.print(table)
    cut = " (there are more)" if answer["is_cut"] else ""
    console.print(f"[dim]{counted(answer['row_count'], 'row')}{cut} in {seconds:.2f} s[/dim]")


def _cell(value: Any) -> str:
    from rich.markup import escape

    if value is None:
        return "[dim]null[/dim]"
    return escape(printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))


class _Shell:
    def __init__(self, http: Http, form: str, limit: int | None) -> None:
        self._http = http
        self._form = form
        self._limit = limit
        self._tables: dict[str, list[str]] = {}

    async def run(self) -> None:
        await self._load_tables()
        self._set_up_line()
        print("SQL over topics; .help tells more, .quit leaves.")
        pending = ""
        while True:
            try:
                line = await asyncio.to_thread(input, "   ...> " if pending else "chronik> ")
            except EOFError:
                print()
                break
            except KeyboardInterrupt:
                pending = ""
                print()
                continue
            text = f"{pending}\n{line}".strip()
            if text in (".quit", ".exit", "quit", "exit"):
                break
            if text.startswith("."):
                pending = ""
                await self._safely(self._command(text))
            elif text.endswith(";"):
                pending = ""
                await self._safely(_run(self._http, text, self._form, self._limit))
            else:
                pending = text
        self._save_history()

    async def _safely(self, work: Any) -> None:
        try:
            await work
        except CommandFailed as error:
            complain(f"chronik: {error}")

    async def _load_tables(self) -> None:
        answer = await self._http.get("/_sql/tables")
        self._tables = {
            table["name"]: [f"{column['name']} {column['type']}" for column in table["columns"]]
            for table in answer["tables"]
        }

    async def _command(self, text: str) -> None:
        name, _, rest = text.partition(" ")
        if name == ".tables":
            await self._load_tables()
            say("\n".join(self._tables) or "no topics yet")
        elif name == ".columns":
            await self._load_tables()
            if rest.strip() not in self._tables:
                raise CommandFailed(f"there is no topic {rest.strip()!r}; .tables lists them")
            say("\n".join(self._tables[rest.strip()]))
        elif name == ".explain":
            say((await self._http.post("/_sql/explain", {"query": rest.rstrip(";")}))["plan"])
        else:
            print(HELP)

    # --- the line ------------------------------------------------------------------------------------

    def _set_up_line(self) -> None:
        with contextlib.suppress(ImportError):
            import readline

            with contextlib.suppress(OSError):
                readline.read_history_file(HISTORY.expanduser())
            readline.set_completer(self._complete)
            readline.set_completer_delims(" \t\n,()=<>;")
            readline.parse_and_bind("tab: complete")

    def _save_history(self) -> None:
        with contextlib.suppress(ImportError, OSError):
            import readline

            readline.set_history_length(1000)
            readline.write_history_file(HISTORY.expanduser())

    def _complete(self, text: str, state: int) -> str | None:
        columns = {column.split(" ")[0] for columns in self._tables.values() for column in columns}
        known = [
            *sorted(self._tables),
            *sorted(columns),
            *_WORDS.split(),
            ".tables",
            ".columns",
            ".explain",
            ".help",
            ".quit",
        ]
        found = [word for word in known if word.lower().startswith(text.lower())]
        return found[state] if state < len(found) else None
