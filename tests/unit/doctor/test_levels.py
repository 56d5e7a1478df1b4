"""What the doctor says about nodes of different releases."""

from __future__ import annotations

import pytest

from chronik.doctor.levels import NodeLevels, Upgrade, releases


@pytest.mark.parametrize(
    ("level", "highs", "state", "words"),
    [
        (2, (2, 2), "ok", "all nodes work at level 2 (release 0.2)"),
        (1, (1, 2), "warning", "these nodes still run an older release: 1 (0.1)"),
        (1, (2, 2), "warning", "the cluster is still at level 1"),
    ],
)
def test_an_upgrade_that_is_not_finished(level: int, highs: tuple[int, ...], state: str, words: str) -> None:
    nodes = [NodeLevels(number, 1, high) for number, high in enumerate(highs, 1)]
    found = releases(Upgrade(level=level, nodes=nodes))
    assert (found.check, found.state) == ("releases", state)
    assert words in found.message
    assert releases(Upgrade(level=1, nodes=nodes, is_told=False)).state == "unknown"
