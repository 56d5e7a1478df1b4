"""The topics that the patterns of a group match. Expensive matching runs in a thread, off the event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from chronik.groups.consumer_group import ConsumerGroup
from chronik.groups.patterns import PatternWork, TopicPatterns
from chronik.groups.shard import GroupShard
from chronik.groups.subscriptions import Topics
from chronik.log_lines import RepeatingLine
from chronik.model import RequestError

log = logging.getLogger(__name__)
_no_match: Final = RepeatingLine(log, logging.WARNING, "a pattern of a consumer group matches nothing: %s")


class TopicMatching:
    def __init__(self, view: Callable[[], Topics]) -> None:
        """`view` gives the same object for as long as no topic changes."""
        self._view = view
        self.patterns = TopicPatterns()
        self._one_at_a_time = asyncio.Lock()

    async def topics_for(self, shard: GroupShard, group_id: str, regex: str | None = None) -> Topics:
        """The topics with the matches of all patterns of the group, and of `regex`, which a member just sent.

        RequestError if `regex` is refused.
        """
        matched: dict[str, frozenset[str]] = {}
        topics = self._view()
        while True:
            wanted = {regex} if regex else set()
            group = shard.groups.get(group_id)
            if isinstance(group, ConsumerGroup):
                wanted |= group.patterns()
            missing = wanted - matched.keys()
            if not missing:
                return replace(topics, matched=matched) if matched else topics
            for one in sorted(missing):
                found = self.patterns.find(one, topics.by_name)
                if isinstance(found, PatternWork):
                    found = await self._compute(found, is_new=one == regex)
                matched[one] = found
            # Topics and members may have changed meanwhile.
            if self._view() is not topics:
                topics = self._view()
                matched.clear()

    async def _compute(self, work: PatternWork, *, is_new: bool) -> frozenset[str]:
        try:
            if work.is_cheap:
                found = work.run(lambda: 0.0)
            else:
                async with self._one_at_a_time:  # expensive patterns wait only for each other
                    found = await asyncio.to_thread(_run_timed, work)
        except RequestError as error:
            if is_new:
                raise
            # A member already had this pattern before it became too expensive or invalid (more topics, a new
            # release). It matches nothing from now on, so that the rest of the group can go on.
            _no_match(str(error), error)
            found = frozenset()
        self.patterns.keep(work, found)
        return found

    def topics_now(self, shard: GroupShard) -> Topics:
        """For all groups of a shard, with those matches that are known at this moment."""
        topics = self._view()
        used = {
            regex
            for group in shard.groups.values()
            if isinstance(group, ConsumerGroup)
            for regex in group.patterns()
        }
        known = {regex: self.patterns.find(regex, topics.by_name) for regex in used}
        matched = {regex: found for regex, found in known.items() if not isinstance(found, PatternWork)}
        return replace(topics, matched=matched) if matched else topics


def _run_timed(work: PatternWork) -> frozenset[str]:
    start = time.monotonic()
    return work.run(lambda: time.monotonic() - start)
