"""Changing configs: the part that AlterConfigs and IncrementalAlterConfigs share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from chronik.metadata.broker_config import check_broker_configs, check_broker_conflicts
from chronik.metadata.client_metrics import check_client_metrics
from chronik.metadata.commands import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    SetConfigs,
)
from chronik.metadata.group_config import check_group_configs
from chronik.metadata.levels import COMMAND_LEVELS
from chronik.metadata.topic_config import TopicConfig, check_topic_configs, check_topic_conflicts
from chronik.model import ErrorCode, RequestError, check_name_bytes
from chronik.server.access import Access
from chronik.server.dispatch import Reply, RequestContext, reply
from chronik.server.errors import error_of
from chronik.server.internal_topics import check_internal_configs
from chronik.server.services import Services

__all__ = ["alter_resources", "check_remote_storage", "check_resource", "refuse_resources", "set_configs"]

RESOURCES_MAX: Final = 10_000
"""Groups with configs of their own, and client metrics subscriptions: every node remembers them all."""


class Resource(Protocol):
    """What the resources of both requests have; they differ in their configs."""

    @property
    def resource_type(self) -> int: ...

    @property
    def resource_name(self) -> str: ...


ResourceT = TypeVar("ResourceT", bound=Resource)
ResourceT_co = TypeVar("ResourceT_co", bound=Resource, covariant=True)


class AlterRequest(Protocol[ResourceT_co]):
    """AlterConfigsRequest or IncrementalAlterConfigsRequest."""

    @property
    def resources(self) -> Sequence[ResourceT_co]: ...

    @property
    def validate_only(self) -> bool: ...


def refuse_resources(request: AlterRequest[Resource], code: ErrorCode, message: str | None) -> Reply:
    return reply(responses=[_result(resource, code, message) for resource in request.resources])


async def alter_resources(
    request: AlterRequest[ResourceT],
    ctx: RequestContext,
    plan: Callable[[RequestContext, ResourceT], SetConfigs | None],
) -> Reply:
    """Plan and submit the change of each resource by itself: one that fails leaves the others alone.

    `plan` gives None for what concerns this node alone and is done already.
    """
    counts = Counter((one.resource_type, one.resource_name) for one in request.resources)
    responses = []
    for resource in request.resources:
        try:
            if counts[resource.resource_type, resource.resource_name] > 1:
                raise RequestError(ErrorCode.invalid_request, "Each resource must appear at most once.")
            command = plan(ctx, resource)
            if command is not None and not request.validate_only:
                await ctx.services.metadata.submit(command)
        except Exception as error:
            responses.append(_result(resource, *error_of(error, ErrorCode.not_controller)))
        else:
            responses.append(_result(resource, ErrorCode.none, None))
    return reply(responses=responses)


def set_configs(
    services: Services,
    access: Access,
    resource_type: int,
    name: str,
    values: dict[str, str | None],
    *,
    replace: bool,
) -> SetConfigs:
    """The command that sets the configs. RequestError if a resulting value is invalid or contradicts
    another, or is for super users to set. Other rights were asked for before."""
    kept = {key: value for key, value in values.items() if value is not None}
    present = {} if replace else services.state.configs(resource_type, name)
    after = {key: value for key, value in {**present, **values}.items() if value is not None}
    if resource_type == TOPIC_RESOURCE:
        check_topic_configs(kept)
        check_internal_configs(services.state.topics[name], after, services.broker_configs(), access)
        check_topic_conflicts(after, *services.broker_configs())
        check_remote_storage(services, services.state.configs(resource_type, name), after)
    elif resource_type == GROUP_RESOURCE:
        check_group_configs(kept, services.broker_configs())
    elif resource_type == CLIENT_METRICS_RESOURCE:
        check_client_metrics(kept)
    else:
        check_broker_configs(kept)
        own, everybodys, static = services.broker_configs()
        check_broker_conflicts((after, everybodys, static) if name else (own, after, static))
    return SetConfigs(resource_type=resource_type, name=name, values=values, replace=replace)


def check_remote_storage(services: Services, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """What Kafka asks before tiered storage is switched on or off for a topic (KIP-950)."""
    configs = services.broker_configs()
    was, now = TopicConfig.resolve(before, *configs), TopicConfig.resolve(after, *configs)
    if now.remote_storage_enable and services.settings.object_store is None:
        raise RequestError(
            ErrorCode.invalid_config,
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote "
            "log storage: set object_store on every node.",
        )
    if now.remote_storage_enable and services.state.level < COMMAND_LEVELS["set_remote_log"]:
        raise RequestError(
            ErrorCode.invalid_config,
            "Nodes of the release before do not know tiered storage. Finish the upgrade first: "
            "chronik upgrade finalize",
        )
    if was.remote_storage_enable and not now.remote_storage_enable and not now.remote_log_delete_on_disable:
        raise RequestError(
            ErrorCode.invalid_config,
            "It is invalid to disable remote storage without deleting remote data. If you want to keep the "
            "remote data and turn to read only, please set `remote.storage.enable=true,"
            "remote.log.copy.disable=true`. If you want to disable remote storage and delete all remote "
            "data, please set `remote.storage.enable=false,remote.log.delete.on.disable=true`.",
        )


def check_resource(services: Services, resource_type: int, name: str) -> None:
    if resource_type == TOPIC_RESOURCE:
        if name not in services.state.topics:
            raise RequestError(ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist.")
    elif resource_type == BROKER_RESOURCE:
        if name and not (name.isdecimal() and int(name) in services.state.brokers):
            raise RequestError(ErrorCode.invalid_request, f"There is no broker '{name}'.")
    elif resource_type in (GROUP_RESOURCE, CLIENT_METRICS_RESOURCE):
        table = services.state.config_table(resource_type)
        what = "group" if resource_type == GROUP_RESOURCE else "client metrics subscription"
        if not name:
            raise RequestError(ErrorCode.invalid_request, f"The name of a {what} must not be empty.")
        try:
            check_name_bytes(f"the name of a {what}", name)
        except ValueError as error:
            raise RequestError(ErrorCode.invalid_request, f"{error}.") from None
        if name not in table and len(table) >= RESOURCES_MAX:
            raise RequestError(
                ErrorCode.policy_violation, f"There are {RESOURCES_MAX} {what}s with configs: delete some."
            )
    else:
        raise RequestError(
            ErrorCode.invalid_request, f"Resource type {resource_type} has no configs to change here."
        )


def _result(resource: Resource, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": message,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }
