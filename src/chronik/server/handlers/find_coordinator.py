"""FindCoordinator: which broker keeps a group's or a transactional id's state."""

from __future__ import annotations

from typing import Any, Final

from chronik.model import ErrorCode, RequestError
from chronik.server.coordinators import Coordinator, find_coordinator
from chronik.server.dispatch import Reply, RequestContext, error_of, handles, reply
from chronik.wire.api import ApiKey

GROUP: Final = 0
TRANSACTION: Final = 1
_NOBODY: Final = Coordinator(-1, "", -1)


def _keys(request: Any) -> list[str]:
    keys = getattr(request, "coordinator_keys", None)
    return [request.key] if keys is None else list(keys)


def _on_error(request: Any, code: ErrorCode, message: str | None) -> Reply:
    return _reply(request, [(key, _NOBODY, code, message) for key in _keys(request)])


def _reply(request: Any, found: list[tuple[str, Coordinator, ErrorCode, str | None]]) -> Reply:
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
    on_error=_on_error,
    unavailable=ErrorCode.coordinator_not_available,
)
async def find_coordinators(request: Any, ctx: RequestContext) -> Reply:
    found: list[tuple[str, Coordinator, ErrorCode, str | None]] = []
    for key in _keys(request):
        try:
            coordinator = await _find(ctx, getattr(request, "key_type", GROUP), key)
            found.append((key, coordinator, ErrorCode.none, None))
        except Exception as error:
            code, message = error_of(error, ErrorCode.coordinator_not_available)
            found.append((key, _NOBODY, code, message))
    return _reply(request, found)


async def _find(ctx: RequestContext, key_type: int, key: str) -> Coordinator:
    services = ctx.services
    if key_type == GROUP:
        groups = services.groups
        # The topic may appear with another number of partitions than configured: find, then look.
        await find_coordinator(services, groups.partition_for(key), groups.config.topic_partitions)
        return await find_coordinator(services, groups.partition_for(key), groups.config.topic_partitions)
    if key_type == TRANSACTION:
        transactions = services.transactions
        if not key:
            raise RequestError(ErrorCode.invalid_request, "The transactional id is empty.")
        return await find_coordinator(
            services, transactions.partition_for(key), transactions.config.topic_partitions
        )
    raise RequestError(ErrorCode.invalid_request, f"There are no coordinators of type {key_type}.")
