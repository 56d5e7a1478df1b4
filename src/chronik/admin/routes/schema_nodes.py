"""What nodes ask the one that is the schema registry."""

from __future__ import annotations

from msgspec.structs import replace

from chronik.admin.endpoint import HttpAccess, HttpCall, endpoint
from chronik.admin.errors import HttpError
from chronik.admin.needs import BY_NODE_ALONE
from chronik.admin.schema_calls import NODE_ASK, NODE_CHANGE, SECONDS
from chronik.registry.messages import RegistryAnswer, RegistryCall
from chronik.registry.operations import CHANGES, QUESTIONS
from chronik.server.throttling import metered


@endpoint(
    "POST",
    NODE_ASK,
    summary="A question to the schema registry; nodes ask each other",
    needs=BY_NODE_ALONE,
    body=RegistryCall,
    access=HttpAccess.STATUS,
    deadline_s=SECONDS,
)
async def registry_ask_node(call: HttpCall) -> RegistryAnswer:
    """The client's rights were checked by the node that it asked."""
    if call.body.operation not in QUESTIONS:
        raise HttpError(400, "invalid_body", "There is no such question.")
    return await _run(call)


@endpoint(
    "POST",
    NODE_CHANGE,
    summary="A change of the schema registry; nodes ask each other",
    needs=BY_NODE_ALONE,
    body=RegistryCall,
    access=HttpAccess.CHANGE,
    deadline_s=SECONDS,
)
async def registry_change_node(call: HttpCall) -> RegistryAnswer:
    """The client's rights were checked by the node that it asked."""
    if call.body.operation not in CHANGES:
        raise HttpError(400, "invalid_body", "There is no such change.")
    return await _run(call)


async def _run(call: HttpCall) -> RegistryAnswer:
    """The answer, with what it took: the node that the client asked charges it to the client."""
    steps: list[float] = []
    answer = await metered(call.context.services.schemas.run(call.body), steps.append)
    return replace(answer, work_s=answer.work_s + sum(steps))
