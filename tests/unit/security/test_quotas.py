"""Quotas: whose limit counts, and how long somebody waits."""

from __future__ import annotations

import pytest

from chronik.security.quotas import CONNECTION_RATE, PRODUCER_RATE, REQUEST_SHARE, Quotas, check_quota

RATE = PRODUCER_RATE


def entity(**parts: str | None) -> tuple[tuple[str, str | None], ...]:
    return tuple(sorted((kind.replace("_", "-"), name) for kind, name in parts.items()))


ORDER = [
    entity(user="alice", client_id="app"),
    entity(user="alice", client_id=None),
    entity(user="alice"),
    entity(user=None, client_id="app"),
    entity(user=None, client_id=None),
    entity(user=None),
    entity(client_id="app"),
    entity(client_id=None),
]


def test_the_most_specific_limit_counts() -> None:
    for place, expected in enumerate(ORDER):
        table = {one: {RATE: float(100 + rank)} for rank, one in enumerate(ORDER) if rank >= place}
        assert Quotas(table).limit(RATE, "alice", "app") == 100 + place, expected
    table = {ORDER[0]: {"consumer_byte_rate": 1.0}, ORDER[2]: {RATE: 5.0}}
    assert Quotas(table).limit(RATE, "alice", "app") == 5.0, "an entity without this quota does not count"


def test_what_is_owed_is_waited_for() -> None:
    quotas = Quotas({entity(user="alice"): {RATE: 100.0}})
    assert quotas.take(RATE, "alice", "app", 1000, 0.0) == 0.0
    assert quotas.take(RATE, "alice", "app", 200, 0.0) == pytest.approx(2.0)
    assert quotas.take(RATE, "alice", "app", 0, 2.5) == 0.0
    assert quotas.take(RATE, "bob", "app", 10**9, 0.0) == 0.0


def test_steady_use_of_twice_the_rate_is_halved() -> None:
    quotas, now, sent = Quotas({entity(client_id=None): {RATE: 1000.0}}), 0.0, 0
    while now < 100:
        now += 0.5 + quotas.take(RATE, "u", "c", 1000, now)
        sent += 1000
    assert sent == pytest.approx(110_000, rel=0.03), "100 s at the rate and the burst of 10 s"


def test_who_shares_a_limit() -> None:
    shared = Quotas({entity(user="alice"): {RATE: 1.0}})
    shared.take(RATE, "alice", "one", 10, 0.0)
    assert shared.take(RATE, "alice", "two", 5, 0.0) == pytest.approx(5.0)
    each = Quotas({entity(user=None): {RATE: 1.0}})
    each.take(RATE, "alice", "one", 10, 0.0)
    assert each.take(RATE, "bob", "one", 5, 0.0) == 0.0


def test_connections_of_an_address() -> None:
    quotas = Quotas(
        {(("ip", "10.0.0.1"),): {CONNECTION_RATE: 1.0}, (("ip", None),): {CONNECTION_RATE: 100.0}}
    )
    waits = [quotas.take_connection("10.0.0.1", 0.0) for _ in range(12)]
    assert waits[9] == 0.0 < waits[10] < waits[11]
    assert quotas.take_connection("10.0.0.2", 0.0) == 0.0


def test_quotas_that_cannot_be_set() -> None:
    check_quota(entity(user="a", client_id=None), RATE, 1.0)
    check_quota((("ip", "1.2.3.4"),), CONNECTION_RATE, None)
    check_quota((("ip", "::1"),), CONNECTION_RATE, 1.0)
    check_quota(entity(user="a"), REQUEST_SHARE, 0.5)
    for parts, key, value in (
        ((), RATE, 1.0),
        (entity(ip="1.2.3.4", user="a"), CONNECTION_RATE, 1.0),
        (entity(ip="1.2.3.4"), RATE, 1.0),
        (entity(user="a"), "color", 1.0),
        (entity(user="a"), RATE, 0.0),
        ((("planet", "earth"),), RATE, 1.0),
        (entity(user="a"), RATE, 0.5),
        (entity(ip="1.2.3.4"), CONNECTION_RATE, 1.5),
        (entity(ip="nowhere.invalid"), CONNECTION_RATE, 1.0),
    ):
        with pytest.raises(ValueError, match=r"."):
            check_quota(parts, key, value)


def test_strangers_cannot_make_the_table_grow() -> None:
    quotas = Quotas({entity(client_id=None): {RATE: 1.0}})
    for number in range(30_000):
        quotas.take(RATE, "u", f"client-{number}", 1, 0.0)
    assert len(quotas._buckets) <= 10_000
    assert len(quotas._limits) <= 10_001


def test_a_debt_is_never_forgiven() -> None:
    quotas = Quotas({entity(user="alice"): {RATE: 1.0}})
    assert quotas.take(RATE, "alice", "app", 1_010, 0.0) == 30.0, "the longest that a client is told"
    assert quotas.take(RATE, "alice", "app", 0, 990.0) == pytest.approx(10.0)
    assert quotas.take_if_free_of_debt(RATE, "alice", "app", 5, 995.0) == pytest.approx(5.0)
    assert quotas.take_if_free_of_debt(RATE, "alice", "app", 5, 1_000.0) == 0.0
    assert quotas.take_if_free_of_debt(RATE, "alice", "app", 5, 1_000.0) == pytest.approx(5.0)
