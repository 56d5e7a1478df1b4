"""A member of a consumer group whose heartbeats end."""

from __future__ import annotations

import asyncio

import pytest

from chronik.client import Cluster
from chronik.client.group_consumer import GroupConsumer
from chronik.client.options import BrokerAddress


async def test_who_polls_hears_of_a_bug_in_the_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = GroupConsumer(Cluster([BrokerAddress("127.0.0.1", 1)]), "group", ["t"])

    async def fails() -> float:
        raise KeyError("a bug")

    monkeypatch.setattr(consumer, "_tell_and_learn", fails)
    with pytest.raises(KeyError, match="a bug"):
        await asyncio.wait_for(consumer.poll(), 10)
    await consumer.close()
