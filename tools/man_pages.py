"""Manual pages (section 1) from the command line itself: one for `chronik` and one for each command below it.

`make dist` puts them into the sdist and the wheel; an installed wheel has them in share/man/man1, where
`man chronik-topic-create` finds them. `man_pages.py DIR` writes them into a directory.
"""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import typer

from chronik import __version__
from chronik.cli import build

__all__ = ["man_pages", "walk", "without_markup"]


def man_pages() -> dict[str, str]:
    """File names and contents. The same on each machine and each day: nothing but the version is in them."""
    root = typer.main.get_command(build())
    return {f"{'-'.join(path)}.1": _page(path, command) for path, command in walk(root, ("chronik",))}


def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and every group of commands, with the words that call it."""
    yield path, command
    for name, child in sorted(getattr(command, "commands", {}).items()):
        yield from walk(child, (*path, name))


def without_markup(text: str) -> str:
    """Help on one line, without its terminal markup."""
    text = re.sub(r"(?<!\\)\[/?[a-z ]+\]", "", text).replace(r"\[", "[")
    return " ".join(text.split())


def _page(path: tuple[str, ...], command: Any) -> str:
    paragraphs, examples = _described(command.help or "")
    summary = paragraphs[0] if paragraphs else ""
    children: dict[str, Any] = dict(sorted(getattr(command, "commands", {}).items()))
    name = "-".join(path)
    lines = [
        f'.TH "{_text(name.upper())}" "1" "" "chronik {__version__}" "chronik"',
        ".SH NAME",
        f"{_text(name)} \\- {_text(summary.rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {_text(' '.join(path))}",
        _text(" ".join(_usage(command, bool(children)))),
        ".SH DESCRIPTION",
    ]
    for paragraph in paragraphs:
        lines += [".PP", _text(paragraph)]
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    if any(getattr(one, "help", None) for one in arguments):
        lines.append(".SH ARGUMENTS")
        for one in arguments:
            lines += [".TP", f".I {_text(one.metavar or one.name.upper())}", _text(_help(one))]
    lines.append(".SH OPTIONS")
    for option in (one for one in command.params if one.param_type_name == "option"):
        lines += [".TP", _flags(option), _text(_help(option))]
    lines += [".TP", "\\fB\\-h\\fR, \\fB\\-\\-help\\fR", "Show what the command does and leave."]
    if children:
        lines.append(".SH COMMANDS")
    for child, one in children.items():
        below = _described(one.help or "")[0]
        lines += [".TP", f"\\fB{_text('-'.join((*path, child)))}\\fR(1)", _text(below[0] if below else "")]
    if examples:
        lines += [".SH EXAMPLES", ".nf", *map(_text, examples), ".fi"]
    above = ["-".join(path[:length]) for length in range(1, len(path))]
    if above:
        lines += [".SH SEE ALSO", ", ".join(f"\\fB{_text(one)}\\fR(1)" for one in above)]
    return "\n".join(lines) + "\n"


def _described(text: str) -> tuple[list[str], list[str]]:
    """The paragraphs of a command's help, and the commands that it gives as examples."""
    told, _, examples = re.sub(r"\n\s*Examples?:", "\n\0", "\n" + text).partition("\0")
    paragraphs = [without_markup(part) for part in told.split("\n\n")]
    return [part for part in paragraphs if part], [
        without_markup(line) for line in examples.splitlines() if line.strip()
    ]


def _usage(command: Any, has_children: bool) -> Iterator[str]:
    yield "[OPTIONS]"
    for one in command.params:
        if one.param_type_name == "argument":
            name = one.metavar or one.name.upper()
            yield name if one.required else f"[{name}]"
    if has_children:
        yield "COMMAND [ARGUMENTS]"


def _flags(option: Any) -> str:
    names = [f"\\fB{_text(name)}\\fR" for name in (*option.opts, *option.secondary_opts)]
    takes = "" if option.is_flag or option.count else f" \\fI{_text(_value(option))}\\fR"
    return ", ".join(names) + takes


def _value(option: Any) -> str:
    choices = get_args(getattr(getattr(option, "type_descriptor", None), "annotation", None))
    return option.metavar or "|".join(map(str, choices)) or "VALUE"


def _help(parameter: Any) -> str:
    told = without_markup(getattr(parameter, "help", None) or "")
    default = parameter.default
    is_telling = default not in (None, False, "") and not callable(default) and "default" not in told
    if parameter.show_default and is_telling and isinstance(default, (str, int, float, enum.Enum)):
        shown = parameter.opts[0] if default is True else _plain(default)
        told = f"{told} (default: {shown})".strip()
    return told


def _plain(value: object) -> str:
    return str(value.value) if isinstance(value, enum.Enum) else str(value)


def _text(text: str) -> str:
    """For roff: dashes that can be searched for and pasted, and no line that is taken for a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: man_pages.py DIR", file=sys.stderr)
        return 2
    write(Path(sys.argv[1]))
    return 0


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in man_pages().items():
        (folder / name).write_text(page)


if __name__ == "__main__":
    sys.exit(main())
