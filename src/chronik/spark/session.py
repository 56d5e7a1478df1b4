"""The Spark session that jobs run in: embedded on this machine by default, on any master when told so."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chronik.model import ChronikError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MAJOR_MIN: Final = 17
_JAVA_HINT: Final = (
    f"Spark needs Java {JAVA_MAJOR_MIN} or later: install it, on Debian with "
    "apt-get install openjdk-17-jre-headless, or set JAVA_HOME"
)
_ARROW: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Turn off Arrow's bounds check per value: Spark asks only for rows that exist."""
_FEW_CORES: Final = 2
_FEW_CORES_COLLECTOR: Final = "-XX:+UseSerialGC"
"""The collector for few cores. While tasks keep all cores busy, Java's default one falls behind and lets the
heap grow: a third more memory for the same work in the same time."""
_TABLE_FORMATS: Final[Mapping[str, Mapping[str, str]]] = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
    "iceberg": {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.archive": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.archive.type": "hadoop",
    },
}


class SparkMissing(ChronikError):
    """Spark cannot be started here; the message says what to install."""


def java_problem() -> str | None:
    """Why Spark cannot run on the Java of this machine, in one sentence; None if it can."""
    home = os.environ.get("JAVA_HOME")  # noqa: TID251 (where Spark itself looks for Java)
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return f"no Java was found. {_JAVA_HINT}"
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return f"{java} cannot be run. {_JAVA_HINT}"
    match = re.search(r'version "(\d+)(?:\.(\d+))?', said.stderr + said.stdout)
    major = int(match[1]) if match else 0
    if major == 1 and match is not None:  # Java 8 calls itself 1.8
        major = int(match[2] or 0)
    return None if major >= JAVA_MAJOR_MIN else f"Java {major} is too old. {_JAVA_HINT}"


def java_options(log4j: Path, cores: int) -> str:
    """How the JVM of a local Spark is started."""
    options = [f"-Dlog4j2.configurationFile={log4j.as_uri()}", _ARROW]
    if cores <= _FEW_CORES:
        options.append(_FEW_CORES_COLLECTOR)
    return " ".join(options)


def start_session(
    name: str,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    jars: Sequence[str] = (),
    table_format: str | None = None,
    warehouse: str | None = None,
) -> SparkSession:
    """A session that knows the data source. Without a master: the one of spark-submit, or this machine."""
    try:
        from pyspark import SparkConf
        from pyspark.sql import SparkSession
    except ImportError:
        raise SparkMissing("pyspark is not installed: pip install 'chronik[spark]'") from None
    if (problem := java_problem()) is not None:
        raise SparkMissing(problem)
    from chronik.spark.source import ChronikDataSource

    given = dict(SparkConf().getAll())
    settings = {
        "spark.master": master or given.get("spark.master", "local[*]"),
        "spark.app.name": name,
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.daemon.module": "chronik.spark.daemon",
        **_TABLE_FORMATS.get(table_format or "", {}),
        **(conf or {}),
    }
    is_local = settings["spark.master"].startswith("local")
    # Spark takes the Python of its workers from here and nowhere else.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # noqa: TID251
    if is_local:
        log4j = Path(__file__).with_name("log4j2.properties")
        settings.setdefault("spark.ui.enabled", "false")
        settings.setdefault("spark.sql.shuffle.partitions", str(2 * (os.cpu_count() or 1)))
        settings.setdefault("spark.driver.extraJavaOptions", java_options(log4j, os.cpu_count() or 1))
    if table_format == "iceberg" and warehouse:
        settings["spark.sql.catalog.archive.warehouse"] = warehouse
    if jars:
        settings["spark.jars"] = ",".join([*jars, *filter(None, [given.get("spark.jars")])])
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(ChronikDataSource)
    return session
