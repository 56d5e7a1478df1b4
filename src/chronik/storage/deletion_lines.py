"""The log line about records that are deleted: how many, how old, by which rule."""

from __future__ import annotations

import logging

from chronik.storage.log import PartitionLog

log = logging.getLogger(__name__)


def log_deletion(log_: PartitionLog, start_offset: int, *, age: str, rule: str) -> None:
    """Tell that everything before `start_offset` goes: how much, how old, by which rule."""
    first = log_.log_start_offset
    log.info(
        "%s: deleting %d offsets, %d to %d, %s, by %s",
        log_.tp,
        start_offset - first,
        first,
        start_offset - 1,
        age,
        rule,
    )


def age_text(youngest_ms: int, now_ms: int, *, is_dated: bool) -> str:
    """How old the youngest of what goes is, in the two largest units."""
    seconds = max(now_ms - youngest_ms, 0) // 1000
    days, hours, minutes = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60
    age = f"{minutes} min {seconds % 60} s"
    if days:
        age = f"{days} d {hours} h"
    elif hours:
        age = f"{hours} h {minutes} min"
    return f"the youngest {age} old" if is_dated else f"without timestamps, last written {age} ago"
