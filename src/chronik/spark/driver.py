"""What the data source does for the session that registers it, so that a plain session needs no settings."""

from __future__ import annotations

import os
import sys
from typing import Final

from pyspark import SparkContext

_PYTHONS: Final = ("spark.pyspark.python", "spark.pyspark.driver.python")


def use_own_python() -> None:
    """In the driver of a local session: let Spark start the Python that runs this program.

    Spark looks for `python3` on the PATH, which is another Python where no environment is activated. On a
    cluster nobody here knows where Python lies, and somebody who chose one knows better: both stay as they
    are. Does nothing outside a driver.
    """
    context = SparkContext._active_spark_context  # None in Spark's planners and workers
    if context is None or not (context.master or "").startswith("local"):
        return
    conf = context.getConf()
    if "PYSPARK_PYTHON" not in os.environ and not any(map(conf.contains, _PYTHONS)):  # noqa: TID251
        context.pythonExec = sys.executable
