"""What tests do to segment files, and how they look at them."""

from __future__ import annotations

import os
from pathlib import Path

from chronik.storage.soundness import SegmentFault, find_fault


def flip_bit(path: Path, position: int) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        (byte,) = os.pread(fd, 1, position)
        os.pwrite(fd, bytes((byte ^ 0x10,)), position)
    finally:
        os.close(fd)


def segment_faults(folder: Path) -> list[tuple[Path, SegmentFault]]:
    """The first fault of each damaged segment of a stopped node's partition."""
    paths = sorted(folder.glob("*.log"))
    ends = [int(path.stem) for path in paths[1:]] + [1 << 62]
    found: list[tuple[Path, SegmentFault]] = []
    for path, end in zip(paths, ends, strict=True):
        data = path.read_bytes()

        def read_at(position: int, size: int, data: bytes = data) -> bytes:
            return data[position : position + size]

        fault = find_fault(read_at, len(data), int(path.stem), end)
        if fault is not None:
            found.append((path, fault))
    return found
