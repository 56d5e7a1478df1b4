"""Declarative pipelines: a TOML file with sources, steps and sinks, run as Spark queries.

Flow: `document` reads the file and knows the line of every key; `spec` turns it into values and says what is
wrong with it; `checks` asks the cluster and the files it names; only then does `run` start Spark, `frames`
build the views that sources and steps stand for, and `sinks` start one query for each sink.

Invariants: a mistake in the file is found before Spark starts and is one sentence with its line; a sink's
query that is killed and started again leaves every row once in its table, topic or index.
"""
