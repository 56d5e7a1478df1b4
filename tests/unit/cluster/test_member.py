"""A node on its way into the cluster."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from chronik.cluster import member
from chronik.cluster.member import ClusterMember
from chronik.config import Settings
from chronik.model import ErrorCode, RequestError

OWN = 4


class Joining:
    """As much of a member as registers; `answers` are what the cluster does with each registration."""

    settings = Settings(node_id=OWN)

    def __init__(self, answers: list[str]) -> None:
        self._answers = answers
        self.brokers: dict[int, Any] = {}
        self.metadata = SimpleNamespace(
            submit=self.submit, state=SimpleNamespace(brokers=self.brokers, cluster_id="here")
        )
        self.replicas = SimpleNamespace(activate=lambda: None)
        self._loop = asyncio.get_running_loop()
        self._is_registered = False

    def _new_uuid(self) -> UUID:
        return UUID(int=1)

    def _forget_deleted_topics(self) -> None: ...

    async def _stay_unfenced(self) -> None: ...

    async def submit(self, command: object, timeout_s: float) -> None:
        match self._answers.pop(0):
            case "registered":
                self.brokers[OWN] = SimpleNamespace(epoch=7)
            case "refused":
                raise RequestError(ErrorCode.invalid_registration, "Node 4 was removed from this cluster.")
            case "removed at once":
                pass


def test_a_node_that_is_removed_in_the_moment_it_registers_goes_on_asking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(member, "RETRY_SECONDS", 0.0)

    async def run() -> None:
        joining = Joining(["removed at once", "refused", "registered"])
        await ClusterMember.register(cast(Any, joining), 9092, 0)
        assert joining._is_registered
        assert vars(joining)["_epoch"] == 7

    asyncio.run(run())
