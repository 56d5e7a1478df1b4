"""The manual pages: one for each command, with all its flags and all commands below it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer

from chronik.cli import build
from tools.man_pages import man_pages


def plain(page: str) -> str:
    """A page as a reader sees it, nearly."""
    return re.sub(r"\\f[BIR]|\\&", "", page).replace(r"\-", "-").replace(r"\e", "\\")


PAGES = {name: plain(page) for name, page in man_pages().items()}


def commands(command: Any, *path: str) -> list[tuple[tuple[str, ...], Any]]:
    below: dict[str, Any] = getattr(command, "commands", {})
    return [(path, command)] + [one for key in below for one in commands(below[key], *path, key)]


COMMANDS = dict(commands(typer.main.get_command(build()), "chronik"))


def test_there_is_a_page_for_each_command_and_no_other() -> None:
    assert PAGES.keys() == {f"{'-'.join(path)}.1" for path in COMMANDS}
    assert {"chronik.1", "chronik-explain.1", "chronik-topic-create.1"} <= PAGES.keys()


@pytest.mark.parametrize("path", COMMANDS, ids="-".join)
def test_a_page_names_every_flag_argument_and_command(path: tuple[str, ...]) -> None:
    command, name = COMMANDS[path], "-".join(path)
    page = PAGES[f"{name}.1"]
    flags = {flag for one in command.params for flag in (*one.opts, *one.secondary_opts) if flag[:1] == "-"}
    listed = re.findall(r"^\.TP\n(-.*)$", page, re.M)
    assert flags | {"-h", "--help"} == {
        word for line in listed for word in re.findall(r"(?<!\S)--?[\w-]+", line)
    }
    synopsis = page.split(".SH SYNOPSIS\n")[1].split("\n.SH")[0].splitlines()
    assert synopsis[0] == f".B {' '.join(path)}"
    for one in command.params:
        if one.param_type_name == "argument":
            assert (one.metavar or one.name.upper()) in synopsis[1]
    for child in getattr(command, "commands", {}):
        assert f"\n{name}-{child}(1)\n" in page
    assert page.startswith(f'.TH "{name.upper()}" "1" ')
    assert f".SH NAME\n{name} - " in page


def test_pages_hold_no_terminal_markup_and_no_line_that_roff_would_take_for_a_request() -> None:
    for name, page in man_pages().items():
        assert not re.search(r"\[/?(dim|bold|italic)\]", page), name
        requests = set(re.findall(r"^[.'](\S*)", page, re.M))
        assert requests <= {"TH", "SH", "B", "I", "PP", "TP", "nf", "fi"}, name
