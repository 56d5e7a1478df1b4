"""Credentials of users that do not exist: a login goes its whole way with them, and nobody learns who exists.

A decoy has to be the same on every node and after a restart, and to look like a credential of the cluster's
users: a salt of its own for each mechanism, salt and iterations as some user has them. The decoy's name
decides which user's are copied, so that a few users more or fewer change few decoys. Users and mechanisms are
looked at by their names: their order in memory is another one on a node that began with a snapshot.
"""

from __future__ import annotations

import hmac
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from heapq import nsmallest
from pathlib import Path
from typing import Final, NamedTuple

from chronik.config import Settings
from chronik.security.scram import (
    ITERATIONS_DEFAULT,
    MECHANISMS,
    SALT_BYTES,
    Credential,
    Mechanism,
    decoy_credential,
)
from chronik.storage.disk import Disk, read_whole, write_atomically

__all__ = ["KEY_FILE", "Decoys", "decoy_key", "first_credential"]

KEY_FILE: Final = "decoy.key"
_KEY_BYTES: Final = 32
USERS_LOOKED_AT: Final = 1_000
LOOK_SECONDS: Final = 1.0
"""If there are more users than that, shapes are counted again at most this often."""
_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"
"""Apache Kafka's tools make salts of these."""

Users = Mapping[str, Mapping[str, Credential]]


def decoy_key(settings: Settings, disk: Disk) -> bytes:
    """The key that decoys are made with: derived from a secret that the nodes share, else drawn once and
    kept. Blocking."""
    shared = settings.cluster_secret or settings.delegation_token_secret_key
    if shared is not None:
        return hmac.digest(shared.encode(), b"chronik credentials of nobody", "sha256")
    path = Path(settings.data_dir) / KEY_FILE
    key = read_whole(disk, path)
    if key is None or len(key) != _KEY_BYTES:
        key = secrets.token_bytes(_KEY_BYTES)
        disk.make_directory(path.parent)
        write_atomically(disk, path, key)
    return key


class _Shape(NamedTuple):
    """The properties of a credential that a client can see or measure."""

    mechanism: str
    iterations: int
    salt_bytes: int
    is_text: bool

    @classmethod
    def of(cls, credential: Credential) -> _Shape:
        is_text = not credential.salt.translate(None, _DIGITS)
        return cls(credential.mechanism, credential.iterations, len(credential.salt), is_text)


class Decoys:
    def __init__(
        self, key: bytes, users: Callable[[], Users], *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._key = key
        self._users = users
        self._now = now
        self._shapes: dict[str, Counter[_Shape]] | None = None
        """How many users have each shape, by mechanism; for PLAIN under the empty name."""
        self._looked_at = 0.0
        self._is_outdated = False

    def changed(self) -> None:
        """The users are not the same as before."""
        self._is_outdated = True

    def scram(self, mechanism: Mechanism, user: str) -> Credential:
        usual = _Shape(mechanism.name, ITERATIONS_DEFAULT, SALT_BYTES, is_text=False)
        return self._make(self._draw(mechanism.name, user, usual), user)

    def plain(self, user: str) -> Credential:
        usual = _Shape("SCRAM-SHA-256", ITERATIONS_DEFAULT, SALT_BYTES, is_text=False)
        return self._make(self._draw("", user, usual), user)

    def _draw(self, kind: str, user: str, usual: _Shape) -> _Shape:
        """Choose a shape by the user's name, common shapes more often (weighted rendezvous hashing)."""
        if self._shapes is None or self._is_outdated:
            self._shapes = self._look(self._shapes)
        shapes = self._shapes

        def score(shape: _Shape) -> float:
            drawn = hmac.digest(self._key, f"{shape}\0{user}".encode(), "sha256")
            return -weights[shape] / math.log((int.from_bytes(drawn[:6], "big") + 1) / (2**48 + 2))

        weights = shapes.get(kind) or Counter((usual,))
        return max(sorted(weights), key=score)

    def _look(self, known: dict[str, Counter[_Shape]] | None) -> dict[str, Counter[_Shape]]:
        users, now = self._users(), self._now()
        if known is not None and len(users) > USERS_LOOKED_AT and now - self._looked_at < LOOK_SECONDS:
            return known
        self._looked_at, self._is_outdated = now, False
        return _shapes_of(users)

    def _make(self, shape: _Shape, user: str) -> Credential:
        salt, number = b"", 0
        while len(salt) < shape.salt_bytes:
            text = f"salt:{shape.mechanism}:{number}:{user}"
            salt += hmac.digest(self._key, text.encode(), "sha512")
            number += 1
        if shape.is_text:
            salt = bytes(_DIGITS[byte % len(_DIGITS)] for byte in salt)
        salt = salt[: shape.salt_bytes]
        return decoy_credential(MECHANISMS[shape.mechanism], user, self._key, salt, shape.iterations)


def first_credential(credentials: Mapping[str, Credential]) -> Credential:
    """The one of a user's that PLAIN looks at."""
    return credentials[min(credentials)]


def _shapes_of(users: Users) -> dict[str, Counter[_Shape]]:
    found: dict[str, Counter[_Shape]] = {}
    for name in nsmallest(USERS_LOOKED_AT, users):
        credentials = users[name]
        for credential in credentials.values():
            found.setdefault(credential.mechanism, Counter())[_Shape.of(credential)] += 1
        if credentials:
            found.setdefault("", Counter())[_Shape.of(first_credential(credentials))] += 1
    return found
