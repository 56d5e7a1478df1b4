from __future__ import annotations

from pathlib import Path

from chronik.spark.session import java_options


def test_few_cores_get_the_sparing_collector() -> None:
    log4j = Path("/somewhere/log4j2.properties")
    assert "-XX:+UseSerialGC" in java_options(log4j, 2).split()
    assert "GC" not in java_options(log4j, 4)
    for cores in (1, 16):
        assert "-Dlog4j2.configurationFile=file:///somewhere/log4j2.properties" in java_options(log4j, cores)
