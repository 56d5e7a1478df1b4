"""Every block of code in the pages is run by a test, or read here as the program it is for reads it (O05)."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from chronik.cli import build
from chronik.client import ClientOptions
from chronik.client.properties import login_of, read_properties
from chronik.config import table
from chronik.config_sources import load_settings
from chronik.model import ChronikError
from tests.documented import ROOT, Block, blocks, pages
from tools.check_docs import unknown_commands

RUN = {
    ("README.md", None): "tests/compat/test_readme.py",
    ("docs/DATA_ENGINEERS.md", None): "tests/compat/test_pages.py",
    ("docs/DEVELOPERS.md", None): "tests/compat/test_pages.py",
    ("docs/HTTP.md", None): "tests/compat/test_pages.py",
    ("docs/OPERATORS.md", None): "tests/compat/test_pages.py",
    ("docs/PERFORMANCE.md", None): "tests/compat/test_pages.py",
    ("docs/OPERATIONS.md", "What to look at when…"): "tests/cluster/test_operations.py",
    ("docs/TESTING.md", "Cluster tests"): "tests/cluster/test_documented.py",
    ("docs/TESTING_WITH_CHRONIK.md", None): "tests/compat/test_readme.py",
}
"""Page and section (None: the whole page) whose blocks run, and the test that runs them. All other blocks are
read here: what they need (two clusters, names of hosts, a password that is typed) is not in one test."""
WRONG = (typer.BadParameter.__mro__[1], ChronikError, AssertionError)
"""What a line that no program takes ends with; the first is the command line's `UsageError`."""
READ = {"sh", "python", "toml", "properties"}
NOT_CODE = {"mermaid", "text"}
OTHER_PROGRAMS = {"cat", "curl", "echo", "export", "openssl", "python3", "spark-submit"}

ALL = [block for page in pages() for block in blocks(page)]


def claim(block: Block) -> str | None:
    return RUN.get((block.page, None)) or RUN.get((block.page, block.section))


LEFT = [block for block in ALL if claim(block) is None and block.language in READ]


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each simple command, without assignments before it and without what a heredoc gives it."""
    code = re.sub(r"(<<'(\w+)'.*\n)(?:.*\n)*?\2\n", r"\1", block.code)
    for line in code.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|;&"):
                if words:
                    yield words
                words = []
            elif words or not re.fullmatch(r"\w+=.*", word):
                words.append(word)


def parsed(words: list[str]) -> tuple[str, dict[str, Any]]:
    """The command that these words of the command line call, with what it is given; raises if it is none."""
    command: Any = typer.main.get_command(build())
    context = command.make_context("chronik", words[1:])
    while hasattr(command, "commands"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)
    return context.command_path, context.params


def test_every_block_says_its_language() -> None:
    strange = [f"{one.page}:{one.line}" for one in ALL if one.language not in READ | NOT_CODE]
    assert strange == []


def test_what_is_said_to_run_blocks_names_their_page() -> None:
    for (page, section), test in RUN.items():
        assert any(one.page == page and section in (None, one.section) for one in ALL), (page, section)
        text = (ROOT / test).read_text()
        assert Path(page).stem in text, f"{test} does not run {page}"


@pytest.mark.parametrize("block", LEFT, ids=lambda block: f"{block.page}:{block.line}")
def test_a_block_that_is_not_run_is_what_its_program_takes(block: Block, tmp_path: Path) -> None:
    {"sh": read_shell, "python": read_python, "toml": read_toml, "properties": read_client_config}[
        block.language
    ](block, tmp_path)


def read_shell(block: Block, _folder: Path) -> None:
    found = list(commands(block))
    assert found
    for words in found:
        if words[0] != "chronik":
            assert words[0] in OTHER_PROGRAMS, words
            continue
        path, given = parsed(words)
        if path == "chronik start":
            flags = {name: value for name, value in given.items() if name in table()}
            assert load_settings(flags, {}, None).warnings == ()


def read_python(block: Block, _folder: Path) -> None:
    for node in ast.walk(ast.parse(block.code)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            module = importlib.import_module(node.module)
            assert [one.name for one in node.names if not hasattr(module, one.name)] == []


def read_toml(block: Block, folder: Path) -> None:
    (folder / "chronik.toml").write_text(block.code)
    resolved = load_settings({}, {}, folder / "chronik.toml")
    assert any("chronik.toml" in origin for origin in resolved.origins.values())


def read_client_config(block: Block, folder: Path) -> None:
    (folder / "client.properties").write_text(block.code)
    login = login_of(read_properties(folder / "client.properties"))
    assert login != ClientOptions().login_now()


@pytest.mark.parametrize(
    "line",
    [
        "chronik topic crate orders",
        "chronik topic create orders --partition-count 3",
        "chronik topic create",
        "chronik start --kafka-port many",
        "kronik start",
    ],
)
def test_a_line_that_is_wrong_is_found(line: str, tmp_path: Path) -> None:
    block = Block(page="x.md", line=1, section="", language="sh", code=line + "\n")
    with pytest.raises(WRONG):
        read_shell(block, tmp_path)


def test_a_command_that_does_not_exist_is_found_in_text_and_in_blocks() -> None:
    page = """\
Say `chronik topic list`, `chronik`, or `chronik topic lists`, `x | chronik produces orders`; chronik is it.

```sh
chronik group describe billing
.venv/bin/chronik group forget billing
```
"""
    assert list(unknown_commands(page)) == [
        (1, "chronik topic lists"),
        (1, "chronik produces"),
        (5, "chronik group forget"),
    ]
