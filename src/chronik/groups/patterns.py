"""Which topics a member's regular expression matches (KIP-848), by RE2 as in Kafka, bounded.

RE2 never backtracks: a match costs at most the pattern's size times the name's. What remains is bounded
here: the pattern's length, the memory of its program, and the time spent on one pattern. Matches are
remembered, so that a heartbeat costs a look-up; after a topic event only new names are matched.
`PatternWork.run` may run in a thread: it touches nothing shared, and RE2 lets go of the interpreter's lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from chronik.metadata.regular_expressions import compile_expression
from chronik.model import ErrorCode, RequestError

PATTERN_BYTES_MAX: Final = 4_096
MATCHING_SECONDS_MAX: Final = 2.0
"""A pattern that takes longer over all topics is refused. An ordinary one takes a microsecond per topic."""
CHEAP_MAX: Final = 100_000
"""Characters of pattern times topics up to which matching is too quick to be worth a thread."""
CHEAP_PATTERN_MAX: Final = 200
_NAMES_KEPT_MAX: Final = 500_000
"""Topic names in all remembered matches together: about 30 MB of references."""


def compile_pattern(text: str) -> Any:
    """RequestError(invalid_regular_expression) unless RE2 takes it within the limits."""
    size = len(text.encode())
    if size > PATTERN_BYTES_MAX:
        raise RequestError(
            ErrorCode.invalid_regular_expression,
            f"The pattern has {size} bytes; at most {PATTERN_BYTES_MAX} are taken.",
        )
    try:
        return compile_expression(text)
    except ValueError as error:
        raise RequestError(ErrorCode.invalid_regular_expression, f"{text[:80]}: {error}") from None


@dataclass(frozen=True, slots=True)
class PatternWork:
    """One pattern to be matched against the names that it was not matched against before."""

    regex: str
    topics: Mapping[str, object]
    """All of the cluster's topics, by name."""
    fresh: frozenset[str]
    kept: frozenset[str]
    """Matches from before whose topics still exist."""

    @property
    def is_cheap(self) -> bool:
        return len(self.regex) <= CHEAP_PATTERN_MAX and len(self.regex) * len(self.fresh) <= CHEAP_MAX

    def run(self, elapsed_s: Callable[[], float]) -> frozenset[str]:
        """The names that match. RequestError if the pattern is invalid or takes too long."""
        pattern = compile_pattern(self.regex)
        found = []
        for name in self.fresh:
            if pattern.fullmatch(name) is not None:
                found.append(name)
            if elapsed_s() > MATCHING_SECONDS_MAX:
                raise RequestError(
                    ErrorCode.invalid_regular_expression,
                    f"Matching took more than {MATCHING_SECONDS_MAX:g} s: {self.regex[:80]}",
                )
        return self.kept.union(found)


class TopicPatterns:
    """Remembered matches, by pattern; those not used for longest go first."""

    def __init__(self, names_kept_max: int = _NAMES_KEPT_MAX) -> None:
        self._max = names_kept_max
        self._matched: OrderedDict[str, tuple[Mapping[str, object], frozenset[str]]] = OrderedDict()
        self._names = 0
        self.computed = 0
        """How often a pattern was matched against names."""

    def __len__(self) -> int:
        return len(self._matched)

    def find(self, regex: str, topics: Mapping[str, object]) -> frozenset[str] | PatternWork:
        """The names that match, or what must be computed to know them.

        `topics` is the same object for as long as no topic changes.
        """
        known = self._matched.get(regex)
        if known is None:
            return PatternWork(regex, topics, frozenset(topics), frozenset())
        before, matched = known
        if before is topics:
            self._matched.move_to_end(regex)
            return matched
        return PatternWork(regex, topics, frozenset(topics.keys() - before.keys()), matched & topics.keys())

    def keep(self, work: PatternWork, matched: frozenset[str]) -> None:
        self.computed += 1
        self._drop(work.regex)
        self._matched[work.regex] = (work.topics, matched)
        self._names += len(matched) + 1
        while self._names > self._max and len(self._matched) > 1:
            self._drop(next(iter(self._matched)))

    def _drop(self, regex: str) -> None:
        known = self._matched.pop(regex, None)
        if known is not None:
            self._names -= len(known[1]) + 1
