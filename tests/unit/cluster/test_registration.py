"""A node on its way into the cluster."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from chronik.cluster import registration
from chronik.cluster.lead_permission import LeadPermission
from chronik.cluster.lease import LEASE_SECONDS
from chronik.cluster.registration import Registration
from chronik.config import Settings
from chronik.metadata.commands import Batch, InitCluster
from chronik.metadata.levels import LEVEL_FIRST
from chronik.model import ErrorCode, RequestError
from chronik.raft.entries import NotLeader

OWN = 4


class Joining:
    """A cluster that does with each registration what `answers` say."""

    def __init__(self, answers: list[str], cluster_id: str | None = "here") -> None:
        self._answers = answers
        self.brokers: dict[int, Any] = {}
        self.state = SimpleNamespace(brokers=self.brokers, cluster_id=cluster_id, topics={})

    def registration(self) -> Registration:
        raft = SimpleNamespace(lease=SimpleNamespace(start=0.0), is_only_voter=True, leads_alone=True)
        self.lead_permission = LeadPermission(cast(Any, raft))
        return Registration(
            settings=Settings(node_id=OWN),
            store=cast(Any, SimpleNamespace(forget_missing=lambda _is_known: None)),
            metadata=cast(Any, self),
            raft=cast(Any, raft),
            transport=cast(Any, None),
            common_level=self.common_level,
            replicas=cast(Any, SimpleNamespace(activate=lambda: None)),
            lead_permission=self.lead_permission,
            new_uuid=lambda: UUID(int=1),
        )

    async def common_level(self) -> int:
        if self._answers[0] == "no leader to ask":
            self._answers.pop(0)
            raise NotLeader(None)
        return LEVEL_FIRST

    async def submit(self, command: object, timeout_s: float) -> None:
        match self._answers.pop(0):
            case "no leader":
                raise NotLeader(None)
            case "founded":
                assert isinstance(command, Batch)
                self.state.cluster_id = cast(InitCluster, command.commands[0]).cluster_id
            case "founded by another":
                self.state.cluster_id = "another's"
                raise NotLeader(None)
            case "registered":
                self.brokers[OWN] = SimpleNamespace(epoch=7)
            case "refused":
                raise RequestError(ErrorCode.invalid_registration, "Node 4 was removed from this cluster.")
            case "removed at once":
                pass


async def test_a_node_that_is_removed_in_the_moment_it_registers_goes_on_asking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registration, "RETRY_SECONDS", 0.0)

    joining = Joining(["removed at once", "refused", "registered"])
    joined = joining.registration()
    await joined.register(9092, 0)
    assert joining.lead_permission.may_lead()
    assert joined._epoch == 7
    await joined.stop()


@pytest.mark.parametrize(
    ("last", "founder"), [("founded", UUID(int=1).hex[:22]), ("founded by another", "another's")]
)
async def test_a_leader_that_changes_while_the_cluster_is_founded_does_not_end_the_node(
    last: str, founder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "RETRY_SECONDS", 0.0)
    joining = Joining(["registered", "no leader to ask", "no leader", last], cluster_id=None)
    joined = joining.registration()
    await joined.register(9092, 0)
    assert joining.state.cluster_id == founder
    await joined.stop()


async def test_a_node_leads_while_it_is_registered_and_its_lease_holds() -> None:
    now = asyncio.get_running_loop().time()
    raft = SimpleNamespace(lease=SimpleNamespace(start=now), is_only_voter=False)
    permission = LeadPermission(cast(Any, raft))
    assert not permission.may_lead()
    permission.registered()
    assert permission.may_lead()
    raft.lease.start = now - LEASE_SECONDS
    assert not permission.may_lead(), "the lease has expired"
    raft.is_only_voter = True
    assert permission.may_lead(), "nobody could have deposed it"
    permission.removed()
    assert not permission.may_lead()
    assert permission.is_registered
