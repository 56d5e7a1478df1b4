"""The tokens of a .proto file."""

from __future__ import annotations

import re
from typing import Final

from chronik.registry.errors import InvalidSchema
from chronik.registry.limits import StepBudget

__all__ = ["Tokens", "quoted"]

_TOKEN: Final = re.compile(
    r"""(?P<space>[\s\ufeff]+|//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)
    |(?P<float>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
    |(?P<int>0[xX][0-9a-fA-F]+|[0-9]+)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<sign>[{}()\[\]<>=;:,.+/-])""",
    re.VERBOSE,
)
_ESCAPE: Final = re.compile(
    rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_LETTERS: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


class Tokens:
    """What is left of a file. `kind` and `text` are of the next token; at the end both are empty."""

    def __init__(self, source: str, budget: StepBudget) -> None:
        self._source = source
        self._budget = budget
        self._place = 0
        self.kind = ""
        self.text = ""
        self.next()

    def next(self) -> str:
        """The token that was next; the one behind it is next now."""
        taken = self.text
        self._budget.step()
        while True:
            if self._place >= len(self._source):
                self.kind = self.text = ""
                return taken
            found = _TOKEN.match(self._source, self._place)
            if found is None:
                raise self.error(f"there is no token at {self._source[self._place : self._place + 20]!r}")
            self._place = found.end()
            if found.lastgroup != "space":
                self.kind, self.text = found.lastgroup or "", found.group()
                return taken

    def take(self, text: str) -> bool:
        """Whether this token is next; then it is taken."""
        if self.text == text and self.kind != "text":
            self.next()
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.take(text):
            raise self.error(f"expected {text!r} and found {self.text[:40]!r}")

    def name(self) -> str:
        if self.kind != "name":
            raise self.error(f"expected a name and found {self.text[:40]!r}")
        return self.next()

    def full_name(self) -> str:
        """A name with dots, perhaps with one in front."""
        parts = ["." if self.take(".") else "", self.name()]
        while self.take("."):
            parts += [".", self.name()]
        return "".join(parts)

    def number(self) -> int:
        negative = self.take("-")
        if self.kind != "int":
            raise self.error(f"expected a number and found {self.text[:40]!r}")
        text = self.next()
        if len(text) > 25:
            raise self.error("a number is too large")
        try:
            value = int(text, 16 if text[:2] in ("0x", "0X") else 8 if text[0] == "0" else 10)
        except ValueError:
            raise self.error(f"{text} is no number") from None
        return -value if negative else value

    def string(self) -> bytes:
        """Texts that stand side by side are one."""
        if self.kind != "text":
            raise self.error(f"expected a text and found {self.text[:40]!r}")
        parts = []
        while self.kind == "text":
            parts.append(_unquoted(self.next()))
        return b"".join(parts)

    def text_string(self) -> str:
        try:
            return self.string().decode()
        except UnicodeDecodeError:
            raise self.error("a text is not UTF-8") from None

    def error(self, why: str) -> InvalidSchema:
        line = self._source.count("\n", 0, self._place) + 1
        return InvalidSchema(f"The schema cannot be parsed at line {line}: {why}.")


def _unquoted(text: str) -> bytes:
    def escaped(found: re.Match[bytes]) -> bytes:
        octal, hexadecimal, short, long, letter = found.groups()
        if octal is not None:
            return bytes([int(octal, 8) & 255])
        if hexadecimal is not None:
            return bytes([int(hexadecimal, 16)])
        if letter is not None:
            return _LETTERS.get(letter, letter)
        code = int(short or long, 16)
        return chr(code).encode(errors="replace") if code < 0x110000 else b"?"

    return _ESCAPE.sub(escaped, text[1:-1].encode(errors="replace"))


def quoted(data: bytes) -> str:
    """A text as a .proto file has it."""
    parts = []
    for one in data:
        char = chr(one)
        if char in '"\\':
            parts.append(f"\\{char}")
        elif 32 <= one < 127:
            parts.append(char)
        else:
            parts.append(f"\\{one:03o}")
    return f'"{"".join(parts)}"'
