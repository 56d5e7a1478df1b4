"""Text of others on this terminal: names of groups, clients and hosts, errors, records.

Who names a group may choose any characters, and a terminal obeys some of them: it changes its title, hides
what was printed before, or types. So these are shown as escapes, as Python writes them.
"""

from __future__ import annotations

import sys

__all__ = ["complain", "printable", "say"]


def printable(text: str) -> str:
    """The text with every character escaped that is not shown as itself; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode() for one in text
    )


def say(text: str) -> None:
    print(printable(text))


def complain(text: str) -> None:
    print(printable(text), file=sys.stderr)
