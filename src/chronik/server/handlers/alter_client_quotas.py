"""AlterClientQuotas: how much users and clients may take (KIP-546)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chronik.metadata.commands import SetQuota
from chronik.model import ErrorCode, RequestError
from chronik.security.acls import Operation
from chronik.security.quotas import check_entity, check_quota
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.errors import error_of
from chronik.server.gate import on_cluster
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.alter_client_quotas.v1.request import AlterClientQuotasRequest, EntryData


def _on_error(request: AlterClientQuotasRequest, code: ErrorCode, message: str | None) -> Reply:
    return reply(entries=[_result(entry, code, message) for entry in request.entries])


@handles(
    ApiKey.ALTER_CLIENT_QUOTAS,
    versions=(0, 1),
    needs=on_cluster(Operation.ALTER_CONFIGS),
    on_error=_on_error,
)
async def alter_client_quotas(request: AlterClientQuotasRequest, ctx: RequestContext) -> Reply:
    results = []
    for entry in request.entries:
        try:
            command = _plan(entry)
            if not request.validate_only:
                await ctx.services.metadata.submit(command)
            results.append(_result(entry, ErrorCode.none, None))
        except RequestError as error:
            results.append(_result(entry, *error_of(error, ErrorCode.not_controller)))
    return reply(entries=results)


def _plan(entry: EntryData) -> SetQuota:
    # One of each type: what makes two of one type an error must not depend on comparing a name with none.
    named = sorted(entry.entity, key=lambda part: (part.entity_type, part.entity_name or ""))
    entity = tuple((part.entity_type, part.entity_name) for part in named)
    values = {one.key: None if one.remove else float(one.value) for one in entry.ops}
    try:
        if len(values) != len(entry.ops):
            raise ValueError("a quota is set twice")
        check_entity(entity)
        for key, value in values.items():
            check_quota(entity, key, value)
    except ValueError as error:
        raise RequestError(ErrorCode.invalid_request, f"{error}.") from None
    return SetQuota(entity=entity, values=values)


def _result(entry: EntryData, code: ErrorCode, message: str | None) -> dict[str, Any]:
    entity = [{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in entry.entity]
    return {"error_code": code, "error_message": message, "entity": entity}
