"""A step of an archive: the offsets it covers and the files they became.

Under `_chronik/<topic>/` of an archive lies one JSON file per step, `<version>.json`; its making is the
moment the step counts. Files are made in staging before and moved to their places after, so a reader looks
in both.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from chronik.model import refuse_newer

__all__ = ["DEAD_LETTERS", "META", "PublishedStep", "step_path"]

META: Final = "_chronik"
DEAD_LETTERS: Final = "_dead_letters"


FORMAT: Final = 1
"""Format of a step's file. Like release 0.1, this one leaves it out while it is 1."""


class PublishedStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    version: int
    """Number of the step."""
    topic: str
    topic_id: str = ""
    kind: str = "append"
    ranges: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Offsets of this step by partition, the end left out."""
    offsets: dict[str, int] = msgspec.field(default_factory=dict)
    """Where the next step begins."""
    lost: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Offsets before `ranges` by partition that were deleted before the job read them."""
    moves: dict[str, str] = msgspec.field(default_factory=dict)
    """Files in staging and where they go."""
    removes: tuple[str, ...] = ()
    """Files that this step replaces."""
    rows: int = 0
    dead: int = 0
    schema: Any = None
    """Schema of the decoded values; the next step's schema contains it."""
    format: int = FORMAT

    def __post_init__(self) -> None:
        refuse_newer(f"step {self.version} of the archive of {self.topic}", self.format, FORMAT)


def step_path(topic: str, version: int) -> str:
    """Relative to the archive."""
    return f"{META}/{topic}/{version:012d}.json"
