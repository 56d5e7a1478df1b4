"""Counts of latencies, as exact at the 99.99th percentile as at the median. Pure.

As in HdrHistogram, buckets are log-linear: 1,024 of equal width for each doubling, so a value is known to
a thousandth of itself whatever its size, and memory does not grow with the number of values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

__all__ = ["Latencies"]

_BITS: Final = 10


class Latencies:
    """Whole microseconds."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._total_us = 0
        self.count = 0
        self.max_us = 0

    def observe(self, value_us: int) -> None:
        value_us = max(0, value_us)
        shift = max(0, value_us.bit_length() - _BITS - 1)
        self._counts[(shift << (_BITS + 1)) | (value_us >> shift)] += 1
        self._total_us += value_us
        self.count += 1
        self.max_us = max(self.max_us, value_us)

    def quantile_us(self, share: float) -> int:
        """The largest value of the bucket in which this share of values ends; 0 without values."""
        wanted, seen = share * self.count, 0
        for upper_us, count in self.buckets():
            seen += count
            if seen >= wanted:
                return min(upper_us, self.max_us)
        return self.max_us

    def buckets(self) -> Iterator[tuple[int, int]]:
        """Largest value and count of each bucket that is not empty, in order."""
        for index, count in sorted(self._counts.items()):
            shift, mantissa = index >> (_BITS + 1), index & ((2 << _BITS) - 1)
            yield ((mantissa + 1) << shift) - 1, count

    def summary_ms(self) -> dict[str, float]:
        shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}
        found = {name: self.quantile_us(share) / 1000 for name, share in shares.items()}
        mean = self._total_us / self.count / 1000 if self.count else 0.0
        return {"mean": round(mean, 3), **found, "max": self.max_us / 1000}
