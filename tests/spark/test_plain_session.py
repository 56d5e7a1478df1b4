"""A session as Spark makes it, without settings, in a program whose environment is not activated (O07)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.node import ChronikNode
from tests.spark.topics import Topics

PROGRAM = """
import sys

from pyspark.sql import SparkSession

from chronik.spark import ChronikDataSource

bootstrap, source, target = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(ChronikDataSource)
servers = {"kafka.bootstrap.servers": bootstrap}

frame = spark.read.format("chronik").options(**servers, subscribe=source).load()
print("read", frame.count(), frame.where("offset >= 7").count())

frame.select("value").write.format("chronik").options(**servers, topic=target).mode("append").save()

stream = spark.readStream.format("chronik").options(**servers, subscribe=target, startingOffsets="earliest")
query = stream.load().writeStream.format("memory").queryName("seen").trigger(availableNow=True)
query.option("checkpointLocation", "checkpoint").start().awaitTermination()
print("streamed", spark.table("seen").count())

spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
frame = spark.read.format("chronik").options(**servers, subscribe=source).load()
few = frame.where("offset = 7")
print("filtered", few.count(), frame.count(), few.union(frame.where("offset < 3")).count())
"""


def test_reads_streams_and_writes_need_no_settings(node: ChronikNode, topics: Topics, tmp_path: Path) -> None:
    source, target = topics.create(), topics.create()
    topics.fill(source, [b"%d" % number for number in range(10)])
    java = shutil.which("java")
    assert java is not None
    (tmp_path / "program.py").write_text(PROGRAM)
    said = subprocess.run(
        [sys.executable, "program.py", node.bootstrap, source, target],
        cwd=tmp_path,
        env={
            "PATH": os.pathsep.join(("/usr/bin", "/bin", str(Path(java).parent))),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in said.stdout.splitlines() if line.split()[0] in ("read", "streamed", "filtered")]
    assert lines == ["read 10 3", "streamed 10", "filtered 1 10 4"], said.stderr[-4000:]
