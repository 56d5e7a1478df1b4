"""Compile the kernels, or load what was compiled before, ahead of the first records.

For a process that must not write where compiled code is kept once it is at work.
"""

from __future__ import annotations

import numpy as np

from chronik.columns import kernels

__all__ = ["warm"]


def warm() -> None:
    """Call each kernel with nothing to do, and with the types that the scanner calls it with."""
    body = np.frombuffer(b"\x00", dtype=np.uint8)  # read-only, as everything that was fetched
    none, ends, data = np.zeros(0, np.int64), np.zeros(1, np.int32), np.zeros(0, np.uint8)
    batches = np.zeros((0, kernels.BATCH_FIELDS), np.int64)
    kernels.index_batches(body, batches)
    columns = (ends, data, data, ends, data, data)
    numbers = np.zeros((2, 0), np.int64)
    kernels.scan_records(body, batches, np.zeros(4, np.int64), numbers, ends, *columns, none)
    kernels.measure_headers(body, none, np.zeros(3, np.int64))
    kernels.scan_headers(body, none, ends, ends, data, ends, data, data)
