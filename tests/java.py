"""Apache Kafka's own programs, run from the jars that `make jars` fetched."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
JARS = Path(os.environ.get("JARS_DIR", ROOT / ".jars"))

SEVERAL_TOOLS = ROOT / "tests" / "compat" / "foreign" / "java" / "SeveralTools.java"
_ENDED = re.compile(r"==== (\d+)\n")  # some tools do not end their last line

CURRENT = "kafka"
"""Apache Kafka 4.1; the other sets are `kafka-2.8` and `kafka-0.11`."""

QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""The quick compiler and the simple collector: less CPU for all that lives for seconds."""
TOOL_OPTIONS = ("-Xmx512m", *QUICK)


ARCHIVE = ROOT / "build" / "java" / "tools.jsa"
"""The classes of the current tools as a JVM loads them fastest; `make setup` writes it (java_archive.py)."""
# An archive that does not fit the jars or the JVM any longer is not used, and the JVM need not say so.
_FROM_ARCHIVE = (f"-XX:SharedArchiveFile={ARCHIVE}", "-Xlog:cds=off", "-Xlog:class+path=off")


class JavaFailed(AssertionError):
    """A Java program ended with an error; the message holds what it printed."""


@dataclass(frozen=True)
class Output:
    out: str
    err: str

    def lines(self) -> list[str]:
        return self.out.splitlines()


def java() -> str:
    found = shutil.which("java")
    if found is None:
        raise JavaFailed("java is not on the PATH; `make setup` installs it")
    return found


def classpath(jar_set: str = CURRENT) -> str:
    folder = JARS / jar_set
    if not any(folder.glob("*.jar")):
        raise JavaFailed(f"there are no jars in {folder}; `make jars` fetches them")
    return f"{folder}/*"


def command(
    main: str, *arguments: str, jar_set: str = CURRENT, options: tuple[str, ...] = TOOL_OPTIONS
) -> list[str]:
    if set(options) >= set(TOOL_OPTIONS) and jar_set == CURRENT and ARCHIVE.exists():
        options = (*options, *_FROM_ARCHIVE)
    return [java(), *options, "-cp", classpath(jar_set), main, *arguments]


def run(
    main: str,
    *arguments: str,
    stdin: str | bytes | None = None,
    jar_set: str = CURRENT,
    options: tuple[str, ...] = TOOL_OPTIONS,
    timeout_s: float = 120,
    check: bool = True,
) -> Output:
    """Run a main class to its end; its failure or its silence past the deadline fails the test."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    try:
        done = subprocess.run(
            command(main, *arguments, jar_set=jar_set, options=options),
            input=data,
            stdin=subprocess.DEVNULL if data is None else None,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        said = (expired.stdout or b"") + (expired.stderr or b"")
        raise JavaFailed(f"{main} did not end within {timeout_s} s: {said.decode()[-2000:]}") from None
    output = Output(done.stdout.decode(), done.stderr.decode())
    if check and done.returncode != 0:
        raise JavaFailed(f"{main} ended with {done.returncode}: {output.out[-2000:]}\n{output.err[-2000:]}")
    return output


def from_start(bootstrap: str, topic: str) -> tuple[str, ...]:
    """Arguments with which a console consumer reads the only partition of a topic from its first record."""
    return "--bootstrap-server", bootstrap, "--topic", topic, "--partition", "0", "--offset", "earliest"


def run_several(*calls: tuple[str, ...], timeout_s: float = 120) -> list[Output]:
    """Run main classes with their arguments one after the other in a single JVM; none may fail."""
    lines = "".join("\t".join(call) + "\n" for call in calls)
    printed = run(str(SEVERAL_TOOLS), stdin=lines, timeout_s=timeout_s)
    outputs, since = [], 0
    for end in _ENDED.finditer(printed.out):
        outputs.append(Output(printed.out[since : end.start()], ""))
        if end[1] != "0":
            raise JavaFailed(f"{calls[len(outputs) - 1]} ended with {end[1]}: {outputs[-1].out[-2000:]}")
        since = end.end()
    if len(outputs) != len(calls):
        raise JavaFailed(f"{len(outputs)} of {len(calls)} tools ended: {printed.out[-2000:]}{printed.err}")
    return outputs
