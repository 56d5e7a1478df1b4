"""The last offset of each key in a stretch of log, in bounded memory.

A key of 16 bytes or more is remembered by its BLAKE2b hash of 128 bits, a shorter one as it is, so the two
cannot be mistaken for each other. Two keys with one hash would make compaction lose a record: at 128 bits
that takes about 2^64 keys by chance, and no less work on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

_HASH_BYTES: Final = 16
BYTES_PER_KEY: Final = 160
"""What an entry costs at most: a slot, the hash and the offset as objects."""


class KeyMap:
    __slots__ = ("_offsets", "keys_max", "latest_offset")

    def __init__(self, bytes_max: int) -> None:
        self.keys_max = max(bytes_max // BYTES_PER_KEY, 1)
        self._offsets: dict[bytes, int] = {}
        self.latest_offset = -1
        """Every record up to here has been seen, unless its transaction was aborted."""

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        return len(self._offsets) >= self.keys_max

    def put(self, base_offset: int, records: Iterable[tuple[int, bytes]]) -> None:
        """Offset deltas and keys of records of one batch, in order."""
        offsets = self._offsets
        for delta, key in records:
            if len(key) >= _HASH_BYTES:
                key = blake2b(key, digest_size=_HASH_BYTES).digest()
            offsets[key] = base_offset + delta

    def last_offset(self, key: bytes) -> int:
        """-1 if the key was not seen."""
        if len(key) >= _HASH_BYTES:
            key = blake2b(key, digest_size=_HASH_BYTES).digest()
        return self._offsets.get(key, -1)
