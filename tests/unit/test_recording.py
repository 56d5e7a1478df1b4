"""The notes on which client sent what: kept by a run that writes them, checked by every other run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from chronik.wire.api import ApiKey
from tests.compat import recording
from tests.compat.recording import Row

ROOT = Path(__file__).parents[2]
JAVA, KCAT = "apache-kafka-java 4.1.1", "kcat"
FETCH, HEARTBEAT = int(ApiKey.FETCH), int(ApiKey.HEARTBEAT)
CONFTEST = """
import os, sys
from pathlib import Path
from tests.compat import recording

recording.TESTS = Path(__file__).parent
recording.TABLE = recording.TESTS / "protocol.tsv"

def pytest_addoption(parser):
    parser.addoption("--write-protocol", action="store_true")

def pytest_configure(config):
    recording.record_requests(config)
"""
TEST = """
import os
from pathlib import Path

def test_a_client_asks():
    with open(Path(os.environ["REQUESTS_SEEN_DIR"]) / "1.tsv", "a") as file:
        file.write({lines!r})
"""
ELSEWHERE = """
import os

def test_nothing_is_noted_here():
    assert "REQUESTS_SEEN_DIR" not in os.environ
"""


def seen(folder: Path, *rows: tuple[object, ...]) -> set[Row]:
    (folder / "7.tsv").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    return recording.read_seen(folder)[0]


def test_rows_that_cannot_be_are_not_read(tmp_path: Path) -> None:
    rows = seen(
        tmp_path,
        *((0, JAVA), (0, "c", FETCH, 12), (0, "c", FETCH, 3), (0, "c", FETCH), (0, "c", "x", 12)),
        (1, "nobody", FETCH, 12),
    )
    assert rows == {Row(FETCH, 12, "Java 4.1")}
    assert recording.read_seen(tmp_path)[1] == {"nobody"}


def test_a_client_that_logs_in_before_it_says_who_it_is(tmp_path: Path) -> None:
    handshake = int(ApiKey.SASL_HANDSHAKE)
    rows = seen(tmp_path, (3, "consumer-1", handshake, 1), (3, JAVA), (3, "consumer-1", FETCH, 12))
    assert rows == {Row(handshake, 1, "Java 4.1"), Row(FETCH, 12, "Java 4.1")}


def test_a_client_that_never_came_to_say_who_it_is(tmp_path: Path) -> None:
    """A login on a node that stopped meanwhile: the client id alone would make it a Java of old."""
    handshake = int(ApiKey.SASL_HANDSHAKE)
    rows = seen(tmp_path, (3, "consumer-1", handshake, 1), (4, "consumer-2", FETCH, 5))
    assert rows == {Row(FETCH, 5, "Java 0.11")}


def test_what_is_sent_by_chance_fails_no_run(tmp_path: Path) -> None:
    rows = seen(tmp_path, (0, JAVA), (0, "c", FETCH, 12), (0, "c", HEARTBEAT, 4), (1, KCAT, FETCH, 11))
    assert len(rows) == 3
    assert recording.must_be_listed(rows) == [Row(FETCH, 12, "Java 4.1")]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider"),
            *("--rootdir", str(folder), "-c", str(folder / "pytest.ini"), str(folder), *arguments),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        timeout=120,
        check=False,
    )


def test_a_run_fails_when_the_table_lacks_what_it_saw(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for folder, text in (
        ("compat", TEST.format(lines=f"0\t{JAVA}\n0\tc\t{FETCH}\t12\n")),
        ("crash", ELSEWHERE),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "test_one.py").write_text(text)
    table = tmp_path / "protocol.tsv"
    listed = f"{FETCH}\t11\tsarama\n"
    table.write_text(listed)
    failed = run(tmp_path, "-p", "xdist", "-n", "1")
    assert (failed.returncode, table.read_text()) == (1, listed), failed.stdout
    assert "FETCH v12 by Java 4.1" in failed.stdout
    written = run(tmp_path, "--write-protocol")
    assert (written.returncode, table.read_text()) == (0, f"{listed}{FETCH}\t12\tJava 4.1\n"), written.stdout
