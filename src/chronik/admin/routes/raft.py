"""How the metadata log stands."""

from __future__ import annotations

from chronik.admin.endpoint import Call, endpoint
from chronik.cluster.status import RaftStatus


@endpoint(
    "GET", "/admin/raft-status", summary="The metadata log on this node", answer=RaftStatus, always=True
)
async def raft_status(call: Call) -> RaftStatus:
    """Term, leader, committed and applied index; on the leader also how far each follower is."""
    return call.context.raft_status()
