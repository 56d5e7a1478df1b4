"""Who wrote what: a bounded list of changes, and nothing per record (O03)."""

from __future__ import annotations

from chronik.replication.writers import CLIENT_ID_KEPT_MAX, WRITERS_KEPT_MAX, Writer, Writers

ADA = Writer.named("ada", "10.0.0.1", 4001)
BOB = Writer.named("bob", "10.0.0.2", 4002)


def written(*changes: tuple[int, Writer | None]) -> Writers:
    writers = Writers()
    for base_offset, writer in changes:
        writers.note(base_offset, writer)
    return writers


def test_a_writer_wrote_until_the_next_one_did() -> None:
    writers = written((5, ADA), (9, BOB), (12, None))
    assert [writers.of(offset) for offset in (4, 5, 8, 9, 11, 12, 99)] == [
        None, ADA, ADA, BOB, BOB, None, None
    ]  # fmt: skip
    assert writers.last is None


def test_a_retry_that_was_answered_from_memory_changes_nothing() -> None:
    writers = written((0, ADA), (10, BOB), (5, ADA))
    assert [writers.of(offset) for offset in (5, 12)] == [ADA, BOB]
    assert writers.last is BOB


def test_the_oldest_changes_go_first() -> None:
    writers = written(*((n, ADA if n % 2 else BOB) for n in range(WRITERS_KEPT_MAX + 3)))
    assert [writers.of(offset) for offset in (2, 3, 4)] == [None, ADA, BOB]


def test_nothing_is_known_after_offsets_may_be_given_out_again() -> None:
    writers = written((0, ADA))
    writers.forget()
    assert (writers.of(0), writers.last, written().of(0)) == (None, None, None)


def test_a_long_client_id_is_cut_and_still_the_same() -> None:
    long = "x" * (CLIENT_ID_KEPT_MAX + 1)
    writer = Writer.named(long, "10.0.0.1", 1)
    assert (len(writer.client_id or ""), writer.is_named(long), writer.is_named("x")) == (
        CLIENT_ID_KEPT_MAX,
        True,
        False,
    )
