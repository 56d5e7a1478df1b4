"""FindCoordinator: which broker keeps a group's or a transactional id's state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from chronik.model import ErrorCode, RequestError
from chronik.security.acls import Operation, ResourceType
from chronik.server.coordinators import CoordinatorAddress, find_coordinator
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.errors import error_of
from chronik.server.gate import asks
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest as FindCoordinatorRequestV3
    from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest as FindCoordinatorRequestV6

    Request: TypeAlias = FindCoordinatorRequestV3 | FindCoordinatorRequestV6

GROUP: Final = 0
TRANSACTION: Final = 1
_NOBODY: Final = CoordinatorAddress(-1, "", -1)


def _keys(request: Request) -> list[str]:
    return [request.key] if hasattr(request, "key") else list(request.coordinator_keys)


def _on_error(request: Request, code: ErrorCode, message: str | None) -> Reply:
    return _reply(request, [(key, _NOBODY, code, message) for key in _keys(request)])


def _reply(request: Request, found: list[tuple[str, CoordinatorAddress, ErrorCode, str | None]]) -> Reply:
    coordinators = [
        {
            "key": key,
            "node_id": coordinator.node_id,
            "host": coordinator.host,
            "port": coordinator.port,
            "error_code": code,
            "error_message": message,
        }
        for key, coordinator, code, message in found
    ]
    first = dict(coordinators[0]) if coordinators else {}
    first.pop("key", None)
    return reply(coordinators=coordinators, **first)


@handles(
    ApiKey.FIND_COORDINATOR,
    versions=(0, 6),
    needs=asks((Operation.DESCRIBE, ResourceType.GROUP), (Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID)),
    decoded_as=(3, 6),
    on_error=_on_error,
    unavailable=ErrorCode.coordinator_not_available,
)
async def find_coordinators(request: Request, ctx: RequestContext) -> Reply:
    found: list[tuple[str, CoordinatorAddress, ErrorCode, str | None]] = []
    for key in _keys(request):
        try:
            coordinator = await _find(ctx, request.key_type, key)
            found.append((key, coordinator, ErrorCode.none, None))
        except Exception as error:
            code, message = error_of(error, ErrorCode.coordinator_not_available)
            found.append((key, _NOBODY, code, message))
    return _reply(request, found)


async def _find(ctx: RequestContext, key_type: int, key: str) -> CoordinatorAddress:
    services, endpoint = ctx.services, ctx.connection.endpoint
    if key_type == GROUP:
        ctx.access.require(Operation.DESCRIBE, ResourceType.GROUP, key)
        groups = services.groups
        # The first call may create the topic, with another partition count than configured. Only then is the
        # partition certain.
        partitions = groups.config.topic_partitions
        await find_coordinator(services, groups.partition_for(key), partitions, endpoint)
        return await find_coordinator(services, groups.partition_for(key), partitions, endpoint)
    if key_type == TRANSACTION:
        transactions = services.transactions
        if not key:
            raise RequestError(ErrorCode.invalid_request, "The transactional id is empty.")
        ctx.access.require(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key)
        return await find_coordinator(
            services, transactions.partition_for(key), transactions.config.topic_partitions, endpoint
        )
    raise RequestError(ErrorCode.invalid_request, f"There are no coordinators of type {key_type}.")
