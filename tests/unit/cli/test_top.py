"""`chronik top`: rates are differences, and none is made up."""

from __future__ import annotations

from typing import Any

from chronik.cli.top import Sample, rows


def status(**figures: Any) -> dict[str, Any]:
    known = {
        "is_ready": True,
        "up_seconds": 10.0,
        "appended_records": 0,
        "received_bytes": 0,
        "sent_bytes": 0,
        "request_count": 0,
        "connections": 3,
        "resident_bytes": 2_000_000,
    }
    return known | figures


def sample(at_s: float, **nodes: dict[str, Any] | None) -> Sample:
    reports = {int(name[1:]): {"node_id": int(name[1:]), "status": found} for name, found in nodes.items()}
    return Sample(at_s=at_s, cluster={}, nodes=reports)


def test_rates_are_per_second_between_two_looks() -> None:
    before = sample(5.0, n1=status(appended_records=100, received_bytes=1000))
    now = sample(7.0, n1=status(appended_records=300, received_bytes=5000, up_seconds=12.0))
    (row,) = rows(before, now)
    assert (row["records"], row["received"], row["sent"]) == (100.0, 2000.0, 0.0)
    assert (row["state"], row["connections"], row["memory"]) == ("ready", 3, "2.0 MB")


def test_a_node_that_restarted_or_is_gone_has_no_rate() -> None:
    before = sample(0.0, n1=status(request_count=50), n2=status(), n3=None)
    now = sample(1.0, n1=status(request_count=60, up_seconds=0.5), n2=None, n3=status())
    restarted, gone, back = rows(before, now)
    assert restarted["requests"] is None
    assert (gone["state"], gone["requests"], gone["connections"]) == ("no answer", None, None)
    assert (back["state"], back["requests"]) == ("ready", None)


def test_leadership_that_moved_away_is_no_negative_rate() -> None:
    (row,) = rows(sample(0.0, n1=status(appended_records=9)), sample(1.0, n1=status(appended_records=4)))
    assert row["records"] == 0.0
