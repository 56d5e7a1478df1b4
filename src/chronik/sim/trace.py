"""What happened in a run, line by line, for a person to read; or only counted, when nobody reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from zlib import crc32


class Trace:
    """Lines `time who what`. `is_kept` costs time and memory: off for the many runs that find nothing."""

    def __init__(self, now: Callable[[], float], *, is_kept: bool = False) -> None:
        self._now = now
        self.is_kept = is_kept
        self.lines: list[str] = []
        self.fingerprint = 0
        """Changes with every line that was traced, kept or not."""
        self.counts: Counter[str] = Counter()
        """How often each kind of fault was injected."""

    def tell(self, who: str, what: str) -> None:
        """An event of the world or of a client: rare enough to be always in the fingerprint."""
        line = f"{self._now():12.6f} {who:<8} {what}"
        self.fingerprint = crc32(line.encode(), self.fingerprint)
        if self.is_kept:
            self.lines.append(line)

    def detail(self, who: str, what: str) -> None:
        """An event that only a reader of the trace wants. Ask `is_kept` before making up `what`."""
        if self.is_kept:
            self.tell(who, what)

    def fault(self, kind: str, who: str, what: str) -> None:
        self.counts[kind] += 1
        self.tell(who, f"!! {what}")

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"
