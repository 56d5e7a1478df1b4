"""Lets Spark find the data source by itself: it looks for modules named `pyspark_*` with a `DefaultSource`.

Where chronik is installed, `format("chronik")` works without registering anything.
"""

from chronik.spark.source import ChronikDataSource as DefaultSource

__all__ = ["DefaultSource"]
