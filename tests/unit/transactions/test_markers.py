"""Markers that cannot be written yet: they are tried again, and the log says so now and then."""

from __future__ import annotations

import asyncio
import re

import pytest

from chronik.metadata import commands as c
from chronik.model import NO_LEADER, TopicPartition
from chronik.sim.world import World
from chronik.transactions import markers
from chronik.transactions.markers import Marker, MarkerWriter
from tests.sim.quiet import hear
from tests.unit.server.harness import Harness

TP = TopicPartition("orders", 0)
HOUR_S = 3_600


def test_markers_that_wait_for_an_hour_are_a_line_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    harness = Harness(brokers=1)
    harness.topic(TP.topic, (1,))
    harness.submit(c.FenceBroker(broker_id=1, broker_epoch=harness.services.state.brokers[1].epoch))
    assignment = harness.services.state.partition(TP)
    assert assignment is not None
    assert assignment.leader == NO_LEADER
    writer = MarkerWriter(
        node_id=1,
        metadata=harness.store,
        replicas=harness.replicas,  # type: ignore[arg-type]  # nobody leads, so none is asked for
        peers=None,  # type: ignore[arg-type]
        now_ms=lambda: 0,
        on_marker=lambda tp, marker: None,
    )
    marker = Marker(producer_id=7, producer_epoch=0, coordinator_epoch=0, is_commit=False)
    world = World(1)
    monkeypatch.setattr(markers._markers_wait, "_now", world.loop.time)

    async def main() -> None:
        hear(caplog)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(HOUR_S):
                await writer.write_all(marker, [TP])

    world.run(main(), seconds_max=2 * HOUR_S, steps_max=1_000_000)
    first, *others = [message for message in caplog.messages if "markers of producer 7" in message]
    assert first == "markers of producer 7 wait for orders-0"
    assert len(others) in (HOUR_S // 60 - 2, HOUR_S // 60 - 1)
    assert all(re.fullmatch(rf"{first} \((59|60|61) times in 60 s\)", one) for one in others)
