"""The benchmark itself works; its figures are for people, on a machine that does nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("options", "figures"),
    [
        (
            ("--state", "synced"),
            (
                "produce 256 B",
                "one record per request",
                "consume 1 KB",
                "memory",
                "Apache Kafka syncs each write too",
            ),
        ),
        (
            ("--state", "started", "--load", "1 KB"),
            ("start to first produce", "produce 1 KB", "brokers that have just started"),
        ),
    ],
)
def test_the_comparison_runs_and_prints_every_figure(
    options: tuple[str, ...], figures: tuple[str, ...]
) -> None:
    """The warm state is measured like the synced one, which stands for both here."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.compare", "--rounds", "1", "--scale", "0.01", *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}/src", "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    # So short a run may miss a bar, and then says so; what it must not do is fail otherwise.
    assert done.returncode == int("missed: " in done.stdout), done.stderr[-2000:]
    for figure in figures:
        assert figure in done.stdout
