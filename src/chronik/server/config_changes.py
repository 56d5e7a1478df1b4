"""Changing configs: the part that AlterConfigs and IncrementalAlterConfigs share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from chronik.metadata.broker_config import check_broker_configs, check_broker_conflicts
from chronik.metadata.commands import BROKER_RESOURCE, TOPIC_RESOURCE, SetConfigs
from chronik.metadata.topic_config import check_topic_configs, check_topic_conflicts
from chronik.model import ErrorCode, RequestError
from chronik.server.dispatch import Reply, RequestContext, error_of, reply
from chronik.server.services import Services

__all__ = ["alter_resources", "check_resource", "on_error", "set_configs"]


def on_error(request: Any, code: ErrorCode, message: str | None) -> Reply:
    return reply(responses=[_result(resource, code, message) for resource in request.resources])


async def alter_resources(
    request: Any, ctx: RequestContext, plan: Callable[[Services, Any], SetConfigs]
) -> Reply:
    """Plan and submit the change of each resource by itself: one that fails leaves the others alone."""
    counts = Counter((one.resource_type, one.resource_name) for one in request.resources)
    responses = []
    for resource in request.resources:
        try:
            if counts[resource.resource_type, resource.resource_name] > 1:
                raise RequestError(ErrorCode.invalid_request, "Each resource must appear at most once.")
            check_resource(ctx.services, resource.resource_type, resource.resource_name)
            command = plan(ctx.services, resource)
            if not request.validate_only:
                await ctx.services.metadata.submit(command)
        except Exception as error:
            responses.append(_result(resource, *error_of(error, ErrorCode.not_controller)))
        else:
            responses.append(_result(resource, ErrorCode.none, None))
    return reply(responses=responses)


def set_configs(
    services: Services, resource_type: int, name: str, values: dict[str, str | None], *, replace: bool
) -> SetConfigs:
    """The command, once every value that stays is known to be valid and to fit the others."""
    kept = {key: value for key, value in values.items() if value is not None}
    present = {} if replace else services.state.configs(resource_type, name)
    after = {key: value for key, value in {**present, **values}.items() if value is not None}
    if resource_type == TOPIC_RESOURCE:
        check_topic_configs(kept)
        check_topic_conflicts(after, *services.broker_configs())
    else:
        check_broker_configs(kept)
        own, everybodys, static = services.broker_configs()
        check_broker_conflicts((after, everybodys, static) if name else (own, after, static))
    return SetConfigs(resource_type=resource_type, name=name, values=values, replace=replace)


def check_resource(services: Services, resource_type: int, name: str) -> None:
    if resource_type == TOPIC_RESOURCE:
        if name not in services.state.topics:
            raise RequestError(ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist.")
    elif resource_type == BROKER_RESOURCE:
        if name and not (name.isdecimal() and int(name) in services.state.brokers):
            raise RequestError(ErrorCode.invalid_request, f"There is no broker '{name}'.")
    else:
        raise RequestError(
            ErrorCode.invalid_request, f"Resource type {resource_type} has no configs to change here."
        )


def _result(resource: Any, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": message,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }
