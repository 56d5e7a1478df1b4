"""The cluster test of docs/TESTING.md runs as it stands there (O05)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.documented import blocks


@pytest.mark.timeout(240)
def test_the_test_of_the_page_on_testing_runs() -> None:
    (block,) = (one for one in blocks("docs/TESTING.md") if one.section == "Cluster tests")
    names: dict[str, Any] = {}
    exec(block.code, names)
    names["test_orders_survive_a_death"]()
