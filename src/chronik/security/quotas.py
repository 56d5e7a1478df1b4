"""Quotas: how much a client may take per second, and how long it waits after taking more. Pure.

An entity is a user, a client id, both, or an address, each by name or as the default. The most specific one
that sets a limit counts, in Kafka's order; those who share an entity by name share its limit, while a
default is a limit for each of them by itself.

A bucket holds `BURST_SECONDS` of its rate, as Kafka's ten windows of a second do: what was not used within
that time may be used at once. Taking more than it holds is allowed once; the debt is the time to wait. A debt
is never forgiven: a client that still owes after `THROTTLE_SECONDS_MAX` waits again.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from chronik.model import check_name_bytes

__all__ = [
    "CONNECTION_RATE",
    "CONSUMER_RATE",
    "DEFAULT",
    "IP_KEYS",
    "MUTATION_RATE",
    "PRODUCER_RATE",
    "REQUEST_SHARE",
    "USER_KEYS",
    "Entity",
    "QuotaTable",
    "Quotas",
    "check_entity",
    "check_quota",
]

Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Pairs of type (`client-id`, `ip`, `user`) and name, sorted by type; None is the default."""
QuotaTable: TypeAlias = Mapping[Entity, Mapping[str, float]]

PRODUCER_RATE: Final = "producer_byte_rate"
CONSUMER_RATE: Final = "consumer_byte_rate"
REQUEST_SHARE: Final = "request_percentage"
MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_RATE: Final = "connection_creation_rate"
USER_KEYS: Final = (PRODUCER_RATE, CONSUMER_RATE, REQUEST_SHARE, MUTATION_RATE)
IP_KEYS: Final = (CONNECTION_RATE,)
WHOLE_KEYS: Final = (PRODUCER_RATE, CONSUMER_RATE, CONNECTION_RATE)
"""Whole numbers in Kafka; the others may be fractions."""
WHOLE_WITHIN: Final = 1e-6
DEFAULT: Final = None

BURST_SECONDS: Final = 10.0
THROTTLE_SECONDS_MAX: Final = 30.0
"""Longest wait in an answer; below its request time-out. What is still owed then is waited for later."""
REQUEST_THROTTLE_SECONDS_MAX: Final = 1.0
"""The same for `request_percentage`: a window's length, as in Kafka. Slow requests are no reason to lock a
client out."""
BUCKETS_MAX: Final = 10_000

_NO_PART: Final = "\0"
"""Stands for a part that an entity does not have; no client can be called so."""


def check_entity(entity: Entity) -> None:
    """ValueError if nobody can have this as the entity of a quota."""
    kinds = {kind for kind, _ in entity}
    if not kinds or len(kinds) != len(entity) or not kinds <= {"user", "client-id", "ip"}:
        raise ValueError("a quota is for a user, a client id, both, or an ip")
    if "ip" in kinds and len(kinds) > 1:
        raise ValueError("an ip has a quota of its own, not together with a user or client id")
    if any(kind == "ip" and name is not None and not _is_address(name) for kind, name in entity):
        raise ValueError("an ip is an address such as 10.0.0.1 or ::1")
    for _, name in entity:
        if name == "":
            raise ValueError("an entity's name is not empty")
        check_name_bytes("an entity's name", name or "")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def check_quota(entity: Entity, key: str, value: float | None) -> None:
    """ValueError if no such quota may be set."""
    check_entity(entity)
    kinds = {kind for kind, _ in entity}
    known = IP_KEYS if "ip" in kinds else USER_KEYS
    if key not in known:
        raise ValueError(f"{key} is no quota of this entity: {', '.join(known)}")
    if value is not None and not 0 < value < 2**63:
        raise ValueError(f"the quota {key} must be greater than 0")
    if value is not None and key in WHOLE_KEYS and abs(value - round(value)) > WHOLE_WITHIN:
        raise ValueError(f"the quota {key} must be a whole number")


class _Limit(NamedTuple):
    rate: float
    shared_by: tuple[str, ...]
    """What those who take from one bucket have in common."""


class Quotas:
    """The limits in force on one node, and what has been taken."""

    def __init__(self, table: QuotaTable | None = None) -> None:
        self._table: dict[Entity, Mapping[str, float]] = {}
        self.is_empty = True
        self.measures_work = False
        """Whether the time that requests take on the event loop has to be measured for a quota."""
        self._limits: dict[tuple[str, str, str], _Limit | None] = {}
        self._buckets: dict[tuple[str, ...], tuple[float, float]] = {}
        """Balance and when it was right, by kind of quota and who shares it."""
        self.change(table or {})

    def change(self, table: QuotaTable) -> None:
        """New limits; what was taken before still counts."""
        self._table = dict(table)
        self.is_empty = not self._table
        self.measures_work = any(REQUEST_SHARE in values for values in table.values())
        self._limits.clear()

    def limit(self, key: str, user: str, client_id: str) -> float | None:
        found = self._limit(key, user, client_id)
        return None if found is None else found.rate

    def take(self, key: str, user: str, client_id: str, amount: float, now_s: float) -> float:
        """Count what a client took; how many seconds it must wait for it."""
        if not self._table:
            return 0.0
        limit = self._limit(key, user, client_id)
        if limit is None:
            return 0.0
        return self.spend((key, *limit.shared_by), limit.rate, amount, now_s)

    def burst(self, key: str, user: str, client_id: str) -> float | None:
        """The most that may be taken at once without debt; None if there is no limit."""
        rate = self.limit(key, user, client_id)
        return None if rate is None else rate * BURST_SECONDS

    def take_if_free_of_debt(self, key: str, user: str, client_id: str, amount: float, now_s: float) -> float:
        """Like `take`, but nothing is taken while something is owed. Returns how long that will be."""
        owed_s = self.take(key, user, client_id, 0.0, now_s)
        if owed_s <= 0:
            self.take(key, user, client_id, amount, now_s)
        return owed_s

    def take_connection(self, address: str, now_s: float) -> float:
        for name in (address, DEFAULT):
            rate = self._table.get((("ip", name),), {}).get(CONNECTION_RATE)
            if rate is not None:
                return self.spend((CONNECTION_RATE, address), rate, 1.0, now_s)
        return 0.0

    def spend(self, bucket: tuple[str, ...], rate: float, amount: float, now_s: float) -> float:
        """Take from a bucket that fills at this rate; seconds until what is owed is paid."""
        capacity = rate * BURST_SECONDS
        balance, since = self._buckets.pop(bucket, (capacity, now_s))
        balance = min(capacity, balance + max(0.0, now_s - since) * rate) - amount
        self._buckets[bucket] = (balance, now_s)
        if len(self._buckets) > BUCKETS_MAX:
            del self._buckets[next(iter(self._buckets))]
        wait_s_max = REQUEST_THROTTLE_SECONDS_MAX if bucket[0] == REQUEST_SHARE else THROTTLE_SECONDS_MAX
        return 0.0 if balance >= 0 else min(-balance / rate, wait_s_max)

    def _limit(self, key: str, user: str, client_id: str) -> _Limit | None:
        asked = (key, user, client_id)
        if asked not in self._limits:
            if len(self._limits) > BUCKETS_MAX:
                self._limits.clear()
            self._limits[asked] = self._look_up(key, user, client_id)
        return self._limits[asked]

    def _look_up(self, key: str, user: str, client_id: str) -> _Limit | None:
        for of_user, of_client in (
            (user, client_id),
            (user, DEFAULT),
            (user, _NO_PART),
            (DEFAULT, client_id),
            (DEFAULT, DEFAULT),
            (DEFAULT, _NO_PART),
            (_NO_PART, client_id),
            (_NO_PART, DEFAULT),
        ):
            entity = tuple(
                (kind, name)
                for kind, name in (("client-id", of_client), ("user", of_user))
                if name is not _NO_PART
            )
            rate = self._table.get(entity, {}).get(key)
            if rate is not None:
                by_user = "" if of_user is _NO_PART else user
                by_client = "" if of_client is _NO_PART else client_id
                return _Limit(float(rate), (by_user, by_client))
        return None
