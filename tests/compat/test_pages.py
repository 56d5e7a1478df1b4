"""Every command and program of the pages for readers runs as it stands there, but for addresses (O05)."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.clients import until
from tests.compat.test_readme import ROOT, run
from tests.node import ChronikNode

DOCUMENTED = "127.0.0.1:9092"
DOCUMENTED_HTTP = "127.0.0.1:6092"
PAGES = {
    "DEVELOPERS": ["ada {", "eve {", "12.5", "billing", "23.5"],
    "OPERATORS": ["orders-copy"],
    "DATA_ENGINEERS": ["ada", "20.5"],
    "PERFORMANCE": ["p99"],
    "SCHEMAS": ["the writer lacks it", "AVRO", '"name": "total"'],
}
"""The pages whose blocks all run, with what must be in what they print."""
NOT_RUN = {"CONCEPTS": set(), "COMPARISON": set(), "MIGRATING": {"sh"}}
"""Pages without blocks, and one whose commands are for two clusters: `test_migrate` gives them."""

pytestmark = pytest.mark.usefixtures("only_chronik")


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of every block of code."""
    return re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / "docs" / f"{page}.md").read_text(), re.S | re.M)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChronikNode]:
    made = ChronikNode(tmp_path_factory.mktemp("pages"))
    made.start()
    yield made
    made.kill()


def command_folder(folder: Path) -> Path:
    """A folder with the command `chronik` of this source."""
    folder.mkdir()
    script = folder / "chronik"
    script.write_text(f"#!{sys.executable}\nfrom chronik.cli import main\nmain()\n")
    script.chmod(0o700)
    return folder


def as_shell(language: str, code: str) -> str:
    if language == "python":
        return f"{shlex.quote(sys.executable)} - <<'PROGRAM'\n{code}PROGRAM\n"
    return code


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs(page: str, node: ChronikNode, tmp_path: Path) -> None:
    found = blocks(page)
    assert found
    assert {language for language, _ in found} <= {"sh", "python"}
    script = "".join(as_shell(language, code) for language, code in found).replace(DOCUMENTED, node.bootstrap)
    script = script.replace(DOCUMENTED_HTTP, f"127.0.0.1:{node.settings['http_port']}")
    said = run(
        script,
        tmp_path,
        CHRONIK_BOOTSTRAP=node.bootstrap,
        COLUMNS="120",
        PATH=f"{command_folder(tmp_path / 'bin')}{os.pathsep}{os.environ['PATH']}",
    )
    assert [word for word in PAGES[page] if word not in said] == [], said


def test_the_calls_of_the_page_on_http_answer(tmp_path: Path) -> None:
    """The page asks for records of a topic that it has just made: they are written in between."""
    ((language, code),) = blocks("HTTP")
    assert language == "sh"
    with ChronikNode(tmp_path / "node") as node:
        address = f"127.0.0.1:{node.settings['http_port']}"
        calls = code.replace("localhost:6092", address).replace("curl ", "curl -sS --fail-with-body ")
        status, create, search, sql = calls.splitlines()
        assert json.loads(run(status, tmp_path))["node_id"] == 1
        assert json.loads(run(create, tmp_path))["name"] == "orders"
        record = """echo '{"customer": "ada", "total": 12.5}' | chronik produce orders"""
        folder = command_folder(tmp_path / "bin")
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        run(record, tmp_path, CHRONIK_BOOTSTRAP=node.bootstrap, PATH=path)
        hits: list[dict[str, Any]] = []

        def is_found() -> bool:
            hits[:] = json.loads(run(search, tmp_path))["hits"]["hits"]
            return bool(hits)

        until(is_found, 60)
        assert [hit["_source"] for hit in hits] == [{"customer": "ada", "total": 12.5}]
        assert "12.5" in run(sql, tmp_path)
        node.stop()


@pytest.mark.parametrize("page", NOT_RUN)
def test_the_other_pages_have_no_blocks_that_nobody_runs(page: str) -> None:
    assert {language for language, _ in blocks(page)} == NOT_RUN[page]
