"""DescribeClientQuotas: the quotas of entities that match (KIP-546)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chronik.model import ErrorCode, RequestError
from chronik.security.acls import Operation
from chronik.security.quotas import Entity
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import on_cluster
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.describe_client_quotas.v1.request import ComponentData, DescribeClientQuotasRequest

_EXACT: Final = 0
_DEFAULT: Final = 1
_SPECIFIED: Final = 2
_TYPES: Final = ("user", "client-id", "ip")


@handles(ApiKey.DESCRIBE_CLIENT_QUOTAS, versions=(0, 1), needs=on_cluster(Operation.DESCRIBE_CONFIGS))
async def describe_client_quotas(request: DescribeClientQuotasRequest, ctx: RequestContext) -> Reply:
    _check(request.components)
    entries = []
    for entity, values in sorted(ctx.services.state.security.quotas.items(), key=repr):
        if not _matches(entity, request.components, request.strict):
            continue
        entries.append(
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
                "values": [{"key": key, "value": value} for key, value in sorted(values.items())],
            }
        )
    return reply(error_code=ErrorCode.none, error_message=None, entries=entries)


def _check(components: tuple[ComponentData, ...]) -> None:
    """Refuse a filter that cannot match any entity, with the same errors as Apache Kafka."""
    kinds: set[str] = set()
    for component in components:
        kind, how, match = component.entity_type, component.match_type, component.match
        if not kind:
            raise RequestError(ErrorCode.invalid_request, "Invalid empty entity type.")
        if kind in kinds:
            raise RequestError(ErrorCode.invalid_request, f"Duplicate filter component entity type: {kind}")
        if kind not in _TYPES:
            raise RequestError(ErrorCode.unsupported_version, f"Custom entity type '{kind}' not supported")
        if how not in (_EXACT, _DEFAULT, _SPECIFIED):
            raise RequestError(ErrorCode.invalid_request, f"Unknown match type {how}")
        if (how == _EXACT) == (match is None):
            raise RequestError(
                ErrorCode.invalid_request, "A name is given to match it exactly, and only then."
            )
        kinds.add(kind)
    if "ip" in kinds and len(kinds) > 1:
        raise RequestError(ErrorCode.invalid_request, "An ip goes with neither a user nor a client-id.")


def _matches(entity: Entity, components: tuple[ComponentData, ...], strict: bool) -> bool:
    parts = dict(entity)
    if strict and len(parts) != len(components):
        return False
    for component in components:
        if component.entity_type not in parts:
            return False
        name = parts[component.entity_type]
        if component.match_type == _EXACT and name != component.match:
            return False
        if component.match_type == _DEFAULT and name is not None:
            return False
    return True
