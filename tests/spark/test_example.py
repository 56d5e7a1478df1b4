"""The example runs as it stands and ends with a table and a plot (P07)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.node import SOURCE

EXAMPLE = SOURCE.parent / "examples" / "orders.py"


def test_orders(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, str(EXAMPLE), "--records", "5000", "--folder", str(tmp_path / "made")],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stdout[-2000:] + said.stderr[-2000:]
    assert "orders by country" in said.stdout
    matching = re.search(r"^([\d,]+) orders match .*\n((?:  \{.*\}\n)+)", said.stdout, re.MULTILINE)
    assert matching is not None, said.stdout[-2000:]
    assert int(matching[1].replace(",", "")) >= 3
    assert [json.loads(line)["item"] for line in matching[2].splitlines()] == ["green tea"] * 3
    page = (tmp_path / "made" / "orders.html").read_text()
    assert page.count("<svg") == 2
    assert "Rejected orders: 5<" in page
    assert "rejected orders: 5, the first 5" in said.stdout
    for name in ("orders-by-minute", "amount-by-country"):
        assert (tmp_path / "made" / f"orders-{name}.png").stat().st_size > 10_000
    assert "<td" in page
