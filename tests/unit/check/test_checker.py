"""Every anomaly in the smallest history that shows it, and the closest history that does not."""

from __future__ import annotations

import pytest

from chronik.check import Commit, Event, Poll, Send, Trim, Txn, check, read_history, write_history
from chronik.check.history import HistoryError
from chronik.model import TopicPartition


def send(value: str, offset: int = -1, *, at: float = 0.0, outcome: str = "ok", **how: object) -> Send:
    return Send(
        process=value.partition(".")[0],
        start=at,
        end=at + 0.5,
        topic="t",
        partition=0,
        value=value,
        outcome=outcome,
        offset=offset,
        **how,
    )


def poll(position: int, *values: str, process: str = "c", **how: object) -> Poll:
    records = [(position + place, value) for place, value in enumerate(values)]
    how.setdefault("next_position", position + len(values))
    return Poll(
        process=process, start=9.0, end=9.0, topic="t", partition=0, position=position, records=records, **how
    )


def final(position: int, *values: str, **how: object) -> Poll:
    process = f"final {how.get('read_committed', False)}"
    return poll(position, *values, process=process, final=True, log_start=position, **how)


def kinds(*events: Event, **how: object) -> set[str]:
    return set(check(events, **how).counts)


def test_what_was_acknowledged_must_be_there() -> None:
    assert kinds(send("p.1", 0), final(0, "p.1")) == set()
    assert kinds(send("p.1", 0), final(0)) == {"lost write"}


def test_unknown_and_failed_sends_need_not_be_there() -> None:
    assert kinds(send("p.1", outcome="info"), send("p.2", outcome="fail"), final(0)) == set()
    assert kinds(send("p.1", outcome="info"), final(0, "p.1")) == set()


def test_without_a_last_look_nothing_can_be_said_lost() -> None:
    assert kinds(send("p.1", 0), poll(0)) == set()


def test_only_acks_that_promise_durability_are_held_to_it() -> None:
    assert kinds(send("p.1", 0, acks=1), final(0)) == set()
    assert kinds(send("p.1", 0, acks=1), final(0), durable_acks=(-1, 1)) == {"lost write"}


def test_what_was_trimmed_is_not_lost() -> None:
    trim = Trim(process="a", topic="t", partition=0, offset=1)
    assert kinds(send("p.1", 0), send("p.2", 1, at=1), trim, final(1, "p.2")) == set()
    assert kinds(send("p.1", 0), send("p.2", 1, at=1), final(1, "p.2")) == {"lost head"}


def test_what_was_read_once_must_stay() -> None:
    assert kinds(send("p.1", outcome="info"), poll(0, "p.1"), final(0)) == {"lost read"}


def test_a_failed_send_must_not_be_seen() -> None:
    assert kinds(send("p.1", outcome="fail"), final(0, "p.1")) == {"G1a"}


def test_what_nobody_sent_must_not_be_seen() -> None:
    assert kinds(final(0, "x.1")) == {"invented"}


def test_an_offset_has_one_record() -> None:
    sends = (send("p.1", 0), send("p.2", outcome="info"))
    assert kinds(*sends, poll(0, "p.2"), final(0, "p.1")) >= {"diverged", "wrong offset", "lost read"}


def test_an_idempotent_record_is_there_once() -> None:
    assert kinds(send("p.1", 0, idempotent=True), final(0, "p.1", "p.1")) == {"duplicate"}
    assert kinds(send("p.1", 0), final(0, "p.1", "p.1")) == set()


def test_later_sends_get_later_offsets() -> None:
    assert kinds(send("p.1", 1), send("q.1", 0, at=2.0), final(0, "q.1", "p.1")) == {"reorder"}
    assert kinds(send("p.1", 1), send("q.1", 0, at=0.2), final(0, "q.1", "p.1")) == set()


def test_a_consumer_gets_every_record() -> None:
    sends = (send("p.1", 0), send("p.2", 1, at=1))
    seen = final(0, "p.1", "p.2")
    assert kinds(*sends, poll(0, "p.1"), poll(1, "p.2"), seen) == set()
    assert kinds(*sends, poll(0, "p.1", next_position=2), seen) == {"skip"}
    assert kinds(*sends, poll(0, "p.1"), poll(2), seen) == {"skip"}
    assert kinds(*sends, poll(0, "p.1"), poll(2, sought=True), seen) == set()


def test_a_consumer_goes_forward() -> None:
    sends = (send("p.1", 0), send("p.2", 1, at=1))
    seen = final(0, "p.1", "p.2")
    assert kinds(*sends, poll(0, "p.1", "p.2"), poll(1, "p.2"), seen) == {"nonmonotonic poll"}
    assert kinds(*sends, poll(0, "p.1", "p.2"), poll(1, "p.2", sought=True), seen) == set()
    twice = Poll(
        process="c", topic="t", partition=0, position=0, next_position=2, records=[(1, "p.2"), (0, "p.1")]
    )
    assert kinds(*sends, twice, seen) == {"nonmonotonic poll"}


def in_txn(committed: bool, outcome: str = "ok") -> tuple[Event, ...]:
    return (
        send("p.1", 0, txn="x", idempotent=True),
        send("p.2", 1, at=1, txn="x", idempotent=True),
        Txn(process="p", txn="x", committed=committed, outcome=outcome),
    )


def test_an_aborted_transaction_is_not_read() -> None:
    seen = final(0, "p.1", "p.2")
    assert kinds(*in_txn(False), seen) == set()
    assert kinds(*in_txn(False), seen, poll(0, "p.1", "p.2", read_committed=True)) == {"aborted read"}
    assert kinds(*in_txn(False), seen, poll(0, next_position=2, read_committed=True)) == set()


def test_a_committed_transaction_is_read() -> None:
    seen = final(0, "p.1", "p.2")
    assert kinds(*in_txn(True), seen, poll(0, next_position=2, read_committed=True)) == {"skip"}
    assert kinds(*in_txn(True), final(0)) == {"lost write"}
    assert kinds(*in_txn(False), final(0)) == set()


@pytest.mark.parametrize("values", [("p.1", "p.2"), ()])
def test_a_transaction_of_unknown_end_is_all_or_nothing(values: tuple[str, ...]) -> None:
    seen = final(0, "p.1", "p.2")
    whole = final(0, *values, next_position=2, read_committed=True)
    torn = final(0, "p.1", next_position=2, read_committed=True)
    assert kinds(*in_txn(True, "info"), seen, whole) == set()
    assert kinds(*in_txn(True, "info"), seen, torn) == {"torn transaction"}


def commit(offset: int, at: float, **how: object) -> Commit:
    return Commit(
        process="g", start=at, end=at + 0.5, group="g", topic="t", partition=0, offset=offset, **how
    )


def test_commits_do_not_go_back() -> None:
    assert kinds(commit(1, 0), commit(2, 1), commit(2, 2, is_read=True)) == set()
    assert kinds(commit(1, 0), commit(2, 1), commit(1, 2, is_read=True)) == {"commit went back"}
    assert kinds(commit(1, 0), commit(2, 1), commit(-1, 2, is_read=True)) == {"commit went back"}


def test_a_commit_of_unknown_fate_may_be_read_or_not() -> None:
    unknown = commit(2, 1, outcome="info")
    assert kinds(commit(1, 0), unknown, commit(1, 2, is_read=True)) == set()
    assert kinds(commit(1, 0), unknown, commit(2, 2, is_read=True)) == set()


def test_histories_survive_a_file() -> None:
    events = [
        *in_txn(True),
        poll(0, "p.1"),
        commit(1, 0),
        Trim(process="a", topic="t", partition=0, offset=1),
    ]
    assert list(read_history(write_history(events))) == events


def test_a_file_that_is_no_history_is_refused_by_line() -> None:
    good = b"".join(write_history([send("p.1", 0)]))
    with pytest.raises(HistoryError, match="line 3"):
        list(read_history([good, b"\n", b'{"op": "dance"}\n']))


def test_where_a_disk_said_that_it_lost_records_they_may_be_missing_and_nothing_else() -> None:
    damaged = [TopicPartition("t", 0)]
    assert kinds(send("p.1", 0), poll(0, "p.1"), final(0), damaged=damaged) == set()
    assert kinds(send("p.1", 0), final(0, "p.2"), damaged=damaged) == {"invented", "wrong offset"}
    assert kinds(send("p.1", 0), final(0), damaged=[TopicPartition("t", 1)]) == {"lost write"}
    torn = final(0, "p.1", next_position=2, read_committed=True)
    assert kinds(*in_txn(True), final(0, "p.1"), torn, damaged=damaged) == set()


def test_what_a_power_cut_may_take_from_a_relaxed_topic_is_missing_and_nothing_else() -> None:
    """Records sent in the window before it: they may be gone, though somebody read them, and their offsets
    may be others'. What was sent before, and what is there, has to be right."""
    tp = TopicPartition("t", 0)
    events: tuple[Event, ...] = (
        send("a", 0, at=1.0),
        send("b", 1, at=5.0),
        send("c", 2, at=5.0),
        send("d", 1, at=7.0),
        poll(0, "a", "b", "c"),
        poll(1, "d"),
        final(0, "a", "d"),
    )
    losable = {tp: [(4.0, 6.0)]}
    assert {"lost write", "lost read", "wrong offset", "diverged"} <= kinds(*events)
    assert kinds(*events, losable=losable) == set()
    assert kinds(*events, losable={tp: [(5.6, 6.0)]}) >= {"lost write"}, "sent too early"
    assert kinds(*events[:-1], final(0, "d"), losable=losable) >= {"lost write"}, "a was synced long ago"
    assert kinds(*events[:-1], final(0, "a", "x"), losable=losable) >= {"diverged"}
    assert kinds(*events[:-1], final(0, "a", "d", "a"), losable=losable) == set()
