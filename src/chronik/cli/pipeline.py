"""`chronik pipeline`: work on whole topics with Spark, on this machine or on a cluster."""

from __future__ import annotations

import datetime
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from chronik.cli.client import AsJson, Bootstrap, CommandFailed, print_json, print_table
from chronik.cli.pipeline_run import init, run, status
from chronik.cli.pipeline_session import (
    Conf,
    Jars,
    Losses,
    Master,
    ReadOption,
    Report,
    SparkChoice,
    TaskBar,
    connect_to,
    plain_failures,
    spark_session,
)
from chronik.cli.printable import say
from chronik.words import counted, human_bytes

Topics = Annotated[
    list[str], typer.Argument(metavar="TOPIC...", help="one or more topics", show_default=False)
]
SomeTopics = Annotated[
    list[str] | None, typer.Argument(metavar="[TOPIC...]", help="all, if none is named", show_default=False)
]
OnDataLoss = Annotated[
    bool,
    typer.Option(
        "--fail-on-data-loss/--no-fail-on-data-loss",
        help="fail at the end, or not, if records were deleted before they were read; what is there is read",
    ),
]
FINDINGS = 1
"""Exit code of an audit that found something."""


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Move topics into tables and indexes, and prove that they are right, with Spark.",
        no_args_is_help=True,
    )
    for command in (archive, index, audit, compact, stats, run, init, status):
        group.command()(command)
    app.add_typer(group, name="pipeline")


def archive(
    topics: Topics,
    to: Annotated[str, typer.Option("--to", metavar="FOLDER", help="a path, or a URI that Spark knows")],
    table_format: Annotated[
        Literal["parquet", "delta", "iceberg"], typer.Option("--format", help="what tables are made of")
    ] = "parquet",
    decode: Annotated[
        Literal["json", "avro", "raw"], typer.Option("--decode", help="what values are made of")
    ] = "json",
    registry: Annotated[
        str | None, typer.Option("--registry", metavar="URL", help="where the schemas of Avro values are")
    ] = None,
    headers: Annotated[bool, typer.Option("--headers", help="with the records' headers")] = False,
    step: Annotated[
        int, typer.Option("--step", metavar="N", min=1, help="records that are published at once, at most")
    ] = 10_000_000,
    fail_on_data_loss: OnDataLoss = True,
    options: ReadOption = None,
    master: Master = None,
    jars: Jars = None,
    conf: Conf = None,
    as_json: AsJson = False,
    servers: Bootstrap = None,
) -> None:
    """Bring topics into tables: what is new since the last run, every record once.

    Examples:

      chronik pipeline archive orders --to tables

      chronik pipeline archive orders payments --to s3a://lake/topics --format delta --jar delta.jar
    """
    from chronik.spark.jobs.archive import ArchiveOptions
    from chronik.spark.jobs.archive import archive as run_archive

    connect, read = connect_to(servers, options)
    wanted = ArchiveOptions(
        connect=connect,
        folder=to,
        table_format=table_format,
        decode=decode,
        registry=registry,
        step_records=step,
        fail_on_data_loss=fail_on_data_loss,
        include_headers=headers,
        read=read,
    )
    choice = SparkChoice.of(master, jars, conf)
    results, losses = [], Losses()
    with spark_session("archive", choice, table_format=table_format, warehouse=to) as spark:
        for topic in topics:
            with losses.kept(), TaskBar(spark, topic, unit="records", enabled=not as_json) as bar:
                results.append(run_archive(spark, topic, wanted, bar))
    rows = [
        {"topic": r.topic, "records": r.rows, "dead_letters": r.dead, "files": r.files, "bytes": r.size_bytes}
        for r in results
    ]
    if as_json:
        print_json(rows)
        losses.fail()
        return
    print_table(
        ["topic", "#new records", "#bad records", "#files", "#size"],
        [[r.topic, f"{r.rows:,}", f"{r.dead:,}", r.files, human_bytes(r.size_bytes)] for r in results],
        title=f"archived to {to}",
    )
    if any(r.dead for r in results):
        print(f"Bad records, with the reasons, are in {to}/_dead_letters")
    losses.fail()


def index(
    topics: Topics,
    to: Annotated[
        str, typer.Option("--to", metavar="FOLDER", help="where the driver and all executors can write")
    ],
    step: Annotated[
        int, typer.Option("--step", metavar="N", min=1, help="records that are published at once, at most")
    ] = 2_000_000,
    fail_on_data_loss: OnDataLoss = True,
    options: ReadOption = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
    servers: Bootstrap = None,
) -> None:
    """Build search indexes of topics: what is new since the last run, published at once.

    Examples:

      chronik pipeline index orders --to indexes
    """
    from chronik.spark.jobs.index import IndexOptions
    from chronik.spark.jobs.index import index as run_index

    connect, read = connect_to(servers, options)
    wanted = IndexOptions(
        connect=connect, folder=to, step_records=step, fail_on_data_loss=fail_on_data_loss, read=read
    )
    results, losses = [], Losses()
    with spark_session("index", SparkChoice.of(master, None, conf)) as spark:
        for topic in topics:
            with losses.kept(), TaskBar(spark, topic, unit="records", enabled=not as_json) as bar:
                results.append(run_index(spark, topic, wanted, bar))
    if as_json:
        print_json(
            [
                {
                    "topic": r.topic,
                    "new_documents": r.documents,
                    "documents": r.total,
                    "unreadable_batches": r.unreadable,
                    "bytes": r.size_bytes,
                    "path": r.path,
                }
                for r in results
            ]
        )
        losses.fail()
        return
    print_table(
        ["topic", "#new documents", "#documents", "#size", "index"],
        [[r.topic, f"{r.documents:,}", f"{r.total:,}", human_bytes(r.size_bytes), r.path] for r in results],
    )
    for r in results:
        if r.unreadable:
            say(f"{r.topic}: {r.unreadable:,} unreadable batches were left out")
    losses.fail()


def audit(
    topics: SomeTopics = None,
    folders: Annotated[
        list[str] | None,
        typer.Option(
            "--data-dir",
            metavar="NAME=PATH",
            help="read the segment files of a node's data directory instead of asking nodes; repeatable",
        ),
    ] = None,
    report: Report = None,
    options: ReadOption = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
    servers: Bootstrap = None,
) -> None:
    """Read every replica of every partition and prove that they agree, or name where they part.

    The exit code is 0 for a clean audit and 1 for one with findings.

    Examples:

      chronik pipeline audit

      chronik pipeline audit orders --report audit.html

      chronik pipeline audit --data-dir one=/copy/node1 --data-dir two=/copy/node2
    """
    from chronik.cli.client import parse_pairs
    from chronik.cli.offline_metadata import assigned_replicas
    from chronik.spark.jobs.audit import audit as run_audit
    from chronik.spark.jobs.audit import replicas_of_cluster, replicas_of_folders
    from chronik.spark.jobs.audit_report import write

    connect, _ = connect_to(servers, options)
    connect = replace(connect, deadline_ms=15_000)
    with plain_failures():
        if folders:
            named = parse_pairs(folders, "data directory")
            scope = replicas_of_folders(named, topics or [], assigned_replicas(named.values()))
        else:
            scope = replicas_of_cluster(connect, topics or [])
    with (
        spark_session("audit", SparkChoice.of(master, None, conf)) as spark,
        TaskBar(spark, "audit", unit="steps", enabled=not as_json) as bar,
    ):
        result = run_audit(spark, connect, scope, bar)
    if report is not None:
        write(result, Path(report))
    if as_json:
        print_json(
            {
                "clean": result.is_clean,
                "findings": [asdict(each) for each in result.findings],
                "replicas": [asdict(each) for each in result.replicas],
            }
        )
    else:
        _print_audit(result, report)
    if not result.is_clean:
        raise typer.Exit(FINDINGS)


def _print_audit(result: Any, report: str | None) -> None:
    if result.findings:
        print_table(
            ["topic", "#partition", "#offset", "replica", "what"],
            [[f.topic, f.partition, f"{f.offset:,}", f.replica, f.what] for f in result.findings],
            title="findings, first ones first",
        )
    records = sum(each.records for each in result.replicas)
    partitions = {(each.topic, each.partition) for each in result.replicas}
    verdict = "every replica agrees" if result.is_clean else counted(len(result.findings), "finding")
    replicas = counted(len(result.replicas), "replica")
    print(f"{verdict}: {replicas} of {counted(len(partitions), 'partition')}, {records:,} records read")
    if report is not None:
        print(f"The report is in {report}, its plots beside it")


def compact(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="what `pipeline archive` wrote to")],
    target_mb: Annotated[
        int, typer.Option("--target-mb", min=1, metavar="MB", help="how large files should become")
    ] = 256,
    keep_days: Annotated[
        int | None,
        typer.Option("--keep-days", min=0, metavar="N", help="remove days older than this number of days"),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Turn an archive's small files into large ones; remove what is too old.

    Examples:

      chronik pipeline compact tables --keep-days 90
    """
    from chronik.spark.jobs.compact import CompactOptions, topics_in
    from chronik.spark.jobs.compact import compact as run_compact
    from chronik.spark.jobs.files import Folder

    wanted = CompactOptions(folder=folder, target_bytes=target_mb * 1024 * 1024, retention_days=keep_days)
    today = datetime.datetime.now(datetime.UTC).date()
    results = []
    with spark_session("compact", SparkChoice.of(master, None, conf)) as spark:
        found = topics_in(Folder(spark, folder))
        if not found:
            raise CommandFailed(f"{folder} is no archive: `chronik pipeline archive` makes one")
        for topic in found:
            with TaskBar(spark, topic, unit="days", enabled=not as_json) as bar:
                results.append(run_compact(spark, topic, wanted, today, bar))
    if as_json:
        print_json([asdict(each) for each in results])
        return
    print_table(
        ["topic", "#files before", "#files after", "#size", "#days removed"],
        [
            [r.topic, r.files_before, r.files_after, human_bytes(r.bytes_before), r.days_expired]
            for r in results
        ],
    )


def stats(
    topics: Topics,
    hours: Annotated[
        int | None, typer.Option("--hours", min=1, metavar="N", help="only the last N hours")
    ] = None,
    report: Report = None,
    options: ReadOption = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
    servers: Bootstrap = None,
) -> None:
    """Count records, bytes and keys by topic and hour; show who is how far behind.

    Examples:

      chronik pipeline stats orders --hours 24 --report orders.html
    """
    from chronik.cli.pipeline_plot import print_hours
    from chronik.spark.jobs.stats import stats as run_stats
    from chronik.spark.jobs.stats import write

    connect, read = connect_to(servers, options)
    since = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=hours) if hours else None
    with (
        spark_session("stats", SparkChoice.of(master, None, conf)) as spark,
        TaskBar(spark, "stats", unit="steps", enabled=not as_json) as bar,
    ):
        found = run_stats(spark, connect, topics, since, read, bar)
    if report is not None:
        write(found, Path(report))
    if as_json:
        print_json(asdict(found))
        return
    print_hours(found)
    if report is not None:
        print(f"The report is in {report}, its plots beside it")
