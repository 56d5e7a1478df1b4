"""What the pipeline commands share: a Spark session, a bar that follows its tasks, sentences for failures."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from chronik.cli.client import CommandFailed, explain, parse_pairs
from chronik.config_sources import bootstrap, environment
from chronik.model import ChronikError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from chronik.spark.options import Connect

Master: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="where Spark runs: local\\[4], spark://host:7077, yarn, k8s://... "
        "[dim](default: this machine)[/dim]",
        show_default=False,
    ),
]
Jars: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--jar", metavar="PATH", help="a jar that Spark needs, repeatable", show_default=False),
]
Conf: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--spark-conf", metavar="NAME=VALUE", help="a setting of Spark's, repeatable", show_default=False
    ),
]
ReadOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="an option of the data source, for example kafka.security.protocol=SSL; repeatable",
        show_default=False,
    ),
]
Report: TypeAlias = Annotated[
    str | None,
    typer.Option("--report", metavar="FILE.html", help="write a page with a plot", show_default=False),
]

_OURS: Final = re.compile(r"^(?:chronik[\w.]*\.)?(?:\w+): (?P<said>.+)$", re.MULTILINE)
POLL_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class SparkChoice:
    """Where and how Spark runs."""

    master: str | None
    jars: Sequence[str]
    conf: dict[str, str]

    @classmethod
    def of(cls, master: str | None, jars: list[str] | None, conf: list[str] | None) -> SparkChoice:
        return cls(master, tuple(jars or ()), parse_pairs(conf or (), "setting of Spark's"))


def connect_to(servers: str | None, options: list[str] | None = None) -> tuple[Connect, dict[str, str]]:
    """The cluster a command reads, and the data source's options that the user gave."""
    from chronik.spark.options import connect_options

    given = parse_pairs(options or (), "option")
    return connect_options({**given, "kafka.bootstrap.servers": bootstrap(servers, environment())}), given


@contextlib.contextmanager
def spark_session(
    name: str, choice: SparkChoice, *, table_format: str | None = None, warehouse: str | None = None
) -> Iterator[SparkSession]:
    from chronik.spark.session import start_session

    with plain_failures():
        session = start_session(
            f"chronik {name}",
            master=choice.master,
            conf=choice.conf,
            jars=choice.jars,
            table_format=table_format,
            warehouse=warehouse,
        )
        try:
            yield session
        finally:
            session.stop()


@contextlib.contextmanager
def plain_failures() -> Iterator[None]:
    """Whatever Spark throws leaves as one sentence."""
    try:
        yield
    except ChronikError as error:
        raise error if isinstance(error, CommandFailed) else CommandFailed(explain(error)) from error
    except ImportError as error:
        missing = getattr(error, "name", None) or "pyspark"
        raise CommandFailed(f"{missing} is not installed: pip install 'chronik\\[spark]'") from error
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        raise CommandFailed(sentence(str(error))) from error


class Losses:
    """Topics of which records were deleted before they were read. They do not keep others from being done."""

    def __init__(self) -> None:
        self._said: list[str] = []

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        from chronik.spark.planning import DataLoss

        try:
            yield
        except DataLoss as error:
            self._said.append(str(error))

    def fail(self) -> None:
        if self._said:
            raise CommandFailed("\n".join(self._said))


def sentence(said: str) -> str:
    """The one line of a stack trace that says what happened."""
    ours = [match["said"] for match in _OURS.finditer(said) if "chronik" in match[0].partition(":")[0]]
    if ours:
        return ours[-1]
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[0] if lines else "Spark failed and did not say why"


class TaskBar:
    """A bar on stderr: what the job says it has done, and how many of Spark's tasks are through."""

    def __init__(self, spark: SparkSession, description: str, *, unit: str, enabled: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        self._spark = spark
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            TextColumn("{task.fields[tasks]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not (enabled and console.is_terminal),
        )
        self._task = self._bar.add_task(description, total=None, tasks="")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Callable[[int, int], None]:
        self._bar.start()
        if not self._bar.disable:
            self._thread.start()
        return self._moved

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._bar.stop()

    def _moved(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)

    def _follow(self) -> None:
        tracker: Any = self._spark.sparkContext.statusTracker()
        while not self._stop.wait(POLL_SECONDS):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            done = sum(stage.numCompletedTasks for stage in stages if stage)
            total = sum(stage.numTasks for stage in stages if stage)
            self._bar.update(self._task, tasks=f"task {done} of {total}" if total else "")
