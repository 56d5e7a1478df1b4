"""The audit log's memory: bounded, and no flood of refusals hides a change or another caller (X06)."""

from __future__ import annotations

import pytest

from chronik.server import audit as audit_module
from chronik.server.audit import (
    CALLER_DENIALS_MAX,
    CALLERS_MAX,
    DENIALS_MAX,
    ENTRIES_MAX,
    MORE,
    WINDOW_MS,
    AuditTrail,
)


class Clock:
    now_ms = 7

    def __call__(self) -> int:
        return self.now_ms


def trail(clock: Clock | None = None, *, with_changes: bool = True) -> AuditTrail:
    return AuditTrail(node_id=1, now_ms=clock or Clock(), is_on=True, with_changes=with_changes)


def test_what_is_alike_is_counted() -> None:
    audit = trail(with_changes=False)
    for n in (1, 1, 1, 2):
        audit.denied(f"User:{n}", "h", "kafka", "READ", "topic t")
    audit.changed("User:9", "h", "kafka", "create_topics", "t")
    assert [(one.principal, one.count) for one in audit.take(10)] == [("User:1", 3), ("User:2", 1)]
    assert (len(audit), audit.dropped) == (0, 0)


def test_no_flood_of_refusals_hides_a_change() -> None:
    audit = trail()
    for n in range(2 * ENTRIES_MAX):
        audit.denied(f"User:{n // 10}", "h", "kafka", "READ", f"topic {n}")
    audit.changed("User:mallory", "h", "kafka", "create_acls", "t")
    found = audit.take(ENTRIES_MAX)
    assert [one.action for one in found if one.allowed] == ["create_acls"]
    assert len(found) == DENIALS_MAX + 1


def test_one_caller_leaves_room_for_the_refusals_of_others() -> None:
    clock = Clock()
    audit = trail(clock)
    for n in range(10_000):
        audit.denied("User:mallory", "10.0.0.9", "kafka", "DELETE", f"topic made-up-{n}")
    audit.denied("User:eve", "10.0.0.9", "kafka", "READ", "topic t")
    audit.denied("User:mallory", "10.0.0.8", "kafka", "READ", "topic t")
    found = audit.take(ENTRIES_MAX)
    assert len(found) == CALLER_DENIALS_MAX + 2
    assert [one.principal for one in found[-2:]] == ["User:eve", "User:mallory"]
    audit.denied("User:mallory", "10.0.0.9", "kafka", "DELETE", "topic one-more")
    assert audit.take(ENTRIES_MAX) == [], "the sum is told once, when the minute is over"
    assert audit.has_sums
    clock.now_ms += WINDOW_MS
    (total,) = audit.take(ENTRIES_MAX)
    rest = 10_001 - CALLER_DENIALS_MAX
    assert (total.principal, total.host, total.action) == ("User:mallory", "10.0.0.9", MORE)
    assert (total.resource, total.count, audit.dropped) == (f"and {rest} more", rest, rest)
    assert (len(audit), audit.has_sums) == (0, False)
    audit.denied("User:mallory", "10.0.0.9", "kafka", "DELETE", "topic t")
    assert len(audit.take(10)) == 1, "a minute later there is room again"


def test_changes_that_find_no_room_are_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "ENTRIES_MAX", 2)
    audit = trail()
    for n in (1, 2, 3, 4, 1):
        audit.changed("User:ada", "h", "kafka", "create_topics", f"t-{n}")
    found = audit.take(10, with_all_sums=True)
    assert [(one.resource, one.count) for one in found] == [("t-1", 2), ("t-2", 1), ("and 2 more", 2)]
    assert all(one.allowed for one in found)


def test_callers_that_are_too_many_to_tell_apart_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "CALLER_DENIALS_MAX", 1)
    audit = trail()
    for n in range(3 * CALLERS_MAX):
        for resource in ("topic a", "topic b"):
            audit.denied("", f"10.0.{n // 256}.{n % 256}", "kafka", "READ", resource)
    assert len(audit) <= 2 * CALLERS_MAX + 2
    found = audit.take(ENTRIES_MAX, with_all_sums=True)
    assert sum(one.count for one in found) == 6 * CALLERS_MAX, "nothing is left out without a word"
    assert found[-1].host == ""


def test_what_a_refused_caller_names_is_cut() -> None:
    audit = trail()
    audit.denied("User:ada", "h", "kafka", "READ", "topic " + "x" * 30_000)
    (entry,) = audit.take(1)
    assert len(entry.resource) <= 600


async def test_the_event_is_set_by_what_came_before_anybody_waited() -> None:
    audit = trail()
    assert not audit.due.is_set()
    audit.login_failed("10.0.0.1", "wrong")
    await audit.due.wait()
