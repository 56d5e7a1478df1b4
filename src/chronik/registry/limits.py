"""How large schemas and the registry may become. Strangers register them."""

from __future__ import annotations

from typing import Final

from chronik.registry.errors import InvalidSchema, TooExpensive

__all__ = ["StepBudget", "check_depth"]

SCHEMA_BYTES_MAX: Final = 400 * 1024
"""Text of one schema. Its record, with what JSON escapes, has to fit into the topic's `max.message.bytes`."""
RECORD_BYTES_MAX: Final = 1_000_000
DEPTH_MAX: Final = 64
"""How deep a schema may nest."""
SUBJECT_CHARS_MAX: Final = 512
REFERENCES_MAX: Final = 100
"""References of one schema."""
REFERENCED_MAX: Final = 200
"""Schemas that one refers to, directly or not."""
COMPARED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Text of a schema, of what it refers to and of the versions that it is compared with."""
COMPARED_MAX: Final = 10_000
"""How many texts these may be."""
VERSIONS_MAX: Final = 2_000
"""Versions of one subject."""
SUBJECTS_MAX: Final = 100_000
MESSAGES_MAX: Final = 50
"""Differences that one answer lists."""
OVERHEAD_BYTES: Final = 600
"""What a version takes in memory besides its text and names, about."""

INLINE_BYTES_MAX: Final = 16 * 1024
INLINE_STEPS_MAX: Final = 2_000
"""What is judged on the event loop: a few milliseconds. What is more expensive goes to another process."""
STEPS_MAX: Final = 1_000_000
"""What that process does at most for one question."""


class StepBudget:
    """Steps that are left: every node that is parsed or compared is one."""

    __slots__ = ("left",)

    def __init__(self, steps: int = STEPS_MAX) -> None:
        self.left = steps

    def step(self, count: int = 1) -> None:
        self.left -= count
        if self.left < 0:
            raise TooExpensive("The schema takes too long to parse or to compare.")


def check_depth(value: object, budget: StepBudget) -> None:
    """InvalidSchema if JSON nests too deep. Without recursion, so that what comes after may recurse."""
    level: list[object] = [value]
    for _ in range(3 * DEPTH_MAX):
        inner: list[object] = []
        for one in level:
            if isinstance(one, dict):
                inner.extend(one.values())
            elif isinstance(one, list):
                inner.extend(one)
        budget.step(len(inner))
        if not inner:
            return
        level = inner
    raise InvalidSchema(f"The schema nests deeper than {3 * DEPTH_MAX} levels of JSON.")
