"""Whom the controller takes for gone, and how soon."""

from __future__ import annotations

import pytest

from chronik.cluster.controller import (
    ANSWER_SECONDS_MAX,
    CUT_OFF_SECONDS_MAX,
    DEAD_SECONDS_MAX,
    SILENCE_SECONDS_MAX,
    is_gone,
)
from chronik.cluster.lease import LEASE_SECONDS

NOW = 100.0


@pytest.mark.parametrize(
    ("heard_ago", "gone_ago", "is_dead", "expected"),
    [
        (0.1, None, False, False),
        (SILENCE_SECONDS_MAX - 0.01, None, False, False),
        (SILENCE_SECONDS_MAX + 0.01, None, False, True),
        (0.3, DEAD_SECONDS_MAX + 0.01, True, True),
        (0.3, DEAD_SECONDS_MAX - 0.01, True, False),
        (0.3, DEAD_SECONDS_MAX + 0.01, False, False),
        (LEASE_SECONDS, 1.0, False, False),
        (CUT_OFF_SECONDS_MAX + 0.01, 1.0, False, True),
    ],
)
def test_who_is_gone(heard_ago: float, gone_ago: float | None, is_dead: bool, expected: bool) -> None:
    disconnected_since = None if gone_ago is None else NOW - gone_ago
    assert (
        is_gone(
            now=NOW,
            heard=NOW - heard_ago,
            asked=0.0,
            disconnected_since=disconnected_since,
            is_dead=is_dead,
        )
        is expected
    )


@pytest.mark.parametrize("gone_ago", [None, 5.0])
def test_a_new_controller_waits_for_answers_before_it_takes_anybody_for_gone(gone_ago: float | None) -> None:
    """It may never have heard of a node that says nothing to those that do not lead."""
    disconnected_since = None if gone_ago is None else NOW - gone_ago
    for asked_ago, expected in ((ANSWER_SECONDS_MAX - 0.01, False), (ANSWER_SECONDS_MAX + 0.01, True)):
        found = is_gone(
            now=NOW,
            heard=0.0,
            asked=NOW - asked_ago,
            disconnected_since=disconnected_since,
            is_dead=False,
        )
        assert found is expected


def test_nobody_is_fenced_while_it_may_hold_a_lease() -> None:
    """Unless its process is known to be no more."""
    for disconnected_since in (None, 0.0):
        assert not is_gone(
            now=LEASE_SECONDS, heard=0.0, asked=-9.0, disconnected_since=disconnected_since, is_dead=False
        )
