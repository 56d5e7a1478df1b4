"""A TOML file whose keys know their lines. Pure."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from chronik.model import ChronikError

KeyPath: TypeAlias = tuple[str | int, ...]

_TABLE: Final = re.compile(r"^\s*\[(?P<name>[^\[\]]+)\]\s*(?:#.*)?$")
_ARRAY: Final = re.compile(r"^\s*\[\[(?P<name>[^\[\]]+)\]\]\s*(?:#.*)?$")
_KEY: Final = re.compile(
    r"""^\s*(?P<name>(?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_PART: Final = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")
_TRIPLES: Final = ('"' * 3, "'" * 3)


class PipelineError(ChronikError):
    """Something in the file is wrong; the message has the line and what to write instead."""


class Document:
    def __init__(self, name: str, text: str) -> None:
        self.name = name
        try:
            self.values: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise PipelineError(f"{name}: this is no TOML: {error}") from None
        except ValueError as error:  # a number of thousands of digits
            raise PipelineError(f"{name}: a value cannot be read: {error}") from None
        except RecursionError:
            raise PipelineError(f"{name}: this is nested too deeply") from None
        self.lines = locate(text)

    def line(self, path: KeyPath) -> int:
        """The line of a key, or of the nearest thing around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def error(self, path: KeyPath, what: str, *, further_lines: int = 0) -> PipelineError:
        return PipelineError(f"{self.name}, line {self.line(path) + further_lines}: {what}")

    def check_keys(self, path: KeyPath, given: Mapping[str, Any], known: Iterable[str]) -> None:
        """PipelineError for the first key that nobody reads."""
        names = sorted(known)
        for key in given:
            if key not in names:
                raise self.error((*path, key), f"there is no key {key!r} here; {meant(key, names)}")


def meant(word: str, known: Iterable[str]) -> str:
    """What to write instead of a word that is not known."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, 1, 0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"there are {', '.join(names)}" if names else "there is none"


def locate(text: str) -> dict[KeyPath, int]:
    """The line number of every table and key; keys inside inline tables have the line of the outer one."""
    found: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    prefix: KeyPath = ()
    inside: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if inside is not None:
            inside = None if inside in line else inside
            continue
        if array := _ARRAY.match(line):
            bare = _resolve(_parts(array["name"]), counts)
            counts[bare] = counts.get(bare, -1) + 1
            prefix = (*bare, counts[bare])
            found.setdefault(bare, number)
            found[prefix] = number
        elif table := _TABLE.match(line):
            prefix = _resolve(_parts(table["name"]), counts)
            found[prefix] = number
        elif key := _KEY.match(line):
            path = (*prefix, *_parts(key["name"]))
            found[path] = number
            inside = _opened(line[key.end() :])
    return found


def _parts(name: str) -> KeyPath:
    return tuple(part.strip("\"'") for part in _PART.findall(name))


def _resolve(parts: KeyPath, counts: Mapping[KeyPath, int]) -> KeyPath:
    """`[steps.options]` below `[[steps]]` belongs to the last of the steps."""
    path: KeyPath = ()
    for part in parts[:-1]:
        path = (*path, part)
        if path in counts:
            path = (*path, counts[path])
    return (*path, *parts[-1:])


def _opened(rest: str) -> str | None:
    """The quotes of a text that goes on in the lines below."""
    for quotes in _TRIPLES:
        if rest.count(quotes) == 1:
            return quotes
    return None
