"""How the metadata log stands."""

from __future__ import annotations

from chronik.admin.endpoint import HttpCall, endpoint
from chronik.cluster.status import RaftStatus
from chronik.security.acls import Operation
from chronik.server.gate import on_cluster


@endpoint(
    "GET",
    "/admin/raft-status",
    needs=on_cluster(Operation.DESCRIBE),
    summary="The metadata log on this node",
    answer=RaftStatus,
    always=True,
)
async def raft_status(call: HttpCall) -> RaftStatus:
    """Term, leader, committed and applied index; on the leader also how far each follower is."""
    return call.context.raft_status()
