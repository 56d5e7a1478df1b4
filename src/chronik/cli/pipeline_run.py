"""`chronik pipeline run|init|status`: declarative pipelines."""

from __future__ import annotations

import time
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chronik.cli.client import AsJson, Bootstrap, CommandFailed, print_json, print_table
from chronik.cli.pipeline_session import (
    Conf,
    Jars,
    Master,
    ReadOption,
    SparkChoice,
    connect_to,
    plain_failures,
    spark_session,
)

if TYPE_CHECKING:
    from chronik.spark.options import Connect
    from chronik.spark.pipeline.run import RunStatus

StateFolder = Annotated[
    str, typer.Option("--state", metavar="FOLDER", help="where running pipelines say how they are doing")
]
DEFAULT_STATE = ".chronik/running"


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="see `chronik pipeline init`")],
    check: Annotated[bool, typer.Option("--check", help="only say whether the file is right")] = False,
    state: StateFolder = DEFAULT_STATE,
    options: ReadOption = None,
    master: Master = None,
    jars: Jars = None,
    conf: Conf = None,
    as_json: AsJson = False,
    servers: Bootstrap = None,
) -> None:
    """Run a pipeline that a file describes. Everything in it is checked before Spark starts.

    Examples:

      chronik pipeline run orders.toml

      chronik pipeline run orders.toml --check
    """
    from chronik.spark.pipeline.run import Run, load

    def connect_for(given: str | None) -> Connect:
        return connect_to(servers or given, options)[0]

    with plain_failures():
        loaded = load(file, connect_for)
    if check:
        print(f"{file} is right: {len(loaded.pipeline.sources)} sources, {len(loaded.pipeline.sinks)} sinks")
        return
    sinks = loaded.pipeline.sinks.values()
    table_format = next((sink.format for sink in sinks if sink.format in ("delta", "iceberg")), None)
    warehouse = next((sink.path for sink in sinks if sink.format == "iceberg"), None)
    if warehouse is not None and "://" not in warehouse:
        warehouse = str(loaded.folder / warehouse)
    choice = SparkChoice.of(master, jars, conf)
    name = f"pipeline {loaded.pipeline.name}"
    with spark_session(name, choice, table_format=table_format, warehouse=warehouse) as spark:
        work = Run(spark, loaded, print)
        _follow(work, Path(state), quiet=as_json)
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(work.status))
    else:
        _print_result(work.status)


def _follow(work: Any, state: Path, *, quiet: bool) -> None:
    from rich.console import Console

    from chronik.spark.pipeline.run import write_status

    console = Console(stderr=True)
    path = write_status(work.status, state)
    try:
        with console.status("starting", spinner="line") as line:

            def show(status: RunStatus) -> None:
                write_status(status, state)
                if not quiet:
                    line.update(_line(status))

            work.start()
            work.follow(show)
    except KeyboardInterrupt:
        work.stop()
        raise
    finally:
        write_status(work.status, state)
        if all(query.state == "done" for query in work.status.queries):
            path.unlink(missing_ok=True)


def _line(status: RunStatus) -> str:
    parts = []
    for query in status.queries:
        lag = f", {query.lag:,} behind" if query.lag is not None else ""
        parts.append(f"{query.sink}: {query.rows:,} rows, {query.rows_per_second:,.0f}/s{lag}")
    return "; ".join(parts)


def _print_result(status: RunStatus) -> None:
    seconds = status.updated_at - status.started_at
    print_table(
        ["sink", "#rows read", "#batches", "state"],
        [[q.sink, f"{q.rows:,}", "" if q.batch is None else q.batch + 1, q.state] for q in status.queries],
        title=f"{status.name}: {seconds:.0f} s",
    )


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="the file to write")],
    force: Annotated[bool, typer.Option("--force", help="even if the file exists")] = False,
) -> None:
    """Write a pipeline file with every key and what it does.

    Examples:

      chronik pipeline init orders.toml
    """
    if file.exists() and not force:
        raise CommandFailed(f"{file} exists already: choose another name, or pass --force")
    text = resources.files("chronik.spark.pipeline").joinpath("example.toml").read_text()
    file.write_text(text)
    print(f"{file} written: change it, then run `chronik pipeline run {file}`")


def status(state: StateFolder = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """Show the pipelines that run: rates, lag, state.

    Examples:

      chronik pipeline status
    """
    import msgspec

    from chronik.spark.pipeline.run import is_alive, read_statuses

    found = read_statuses(Path(state))
    if as_json:
        print_json([{**msgspec.to_builtins(each), "alive": is_alive(each)} for each in found])
        return
    if not found:
        print(f"no pipeline runs (nothing in {state})")
        return
    rows = []
    for each in found:
        alive = is_alive(each)
        for query in each.queries:
            state_now = query.state if alive is not False or query.state != "running" else "killed"
            rows.append(
                [
                    each.name,
                    query.sink,
                    state_now,
                    f"{query.rows:,}",
                    f"{query.rows_per_second:,.0f}",
                    "" if query.lag is None else f"{query.lag:,}",
                    f"{time.time() - each.updated_at:.0f} s ago",
                    query.error,
                ]
            )
    print_table(["pipeline", "sink", "state", "#rows", "#rows/s", "#lag", "seen", "error"], rows)
