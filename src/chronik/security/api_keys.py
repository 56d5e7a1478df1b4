"""Named API keys of HTTP. Pure.

A key is 256 random bits, so a plain digest is enough to keep it by: there is nothing to guess. The key itself
is shown once, when it is made.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec
import re2

__all__ = ["KEY_BYTES", "NamedKey", "check_name", "digest_of", "key_text"]

KEY_BYTES: Final = 32
_PREFIX: Final = "chronik-"
"""Marks a key that lies around somewhere as one of chronik's."""
_NAME: Final = re2.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class NamedKey(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    digest: bytes
    """Digest of the key's text: the key itself is not kept."""
    read_only: bool = False
    created_ms: int


def key_text(random: bytes) -> str:
    return _PREFIX + random.hex()


def digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def check_name(name: str) -> None:
    """ValueError if no key may be called so."""
    if _NAME.fullmatch(name) is None:
        raise ValueError("A key's name is up to 100 letters, digits, dots, dashes and underscores.")
