"""Whatever a disk does to a store, what was promised is there (L01, L02). `store_model` says how."""

from __future__ import annotations

import pytest

from tests.unit.storage.store_model import StoreModel

FOUND = (47, 56, 209, 258, 369, 532, 540, 768, 845, 2611, 2957)
"""Seeds that found one of the planted defects that docs/TESTING.md names."""


@pytest.mark.parametrize("seed", [*range(40), *FOUND])
def test_what_was_promised_is_there(seed: int) -> None:
    StoreModel(seed).run()
