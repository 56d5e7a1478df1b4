"""Making topics: names, defaults, placement. Shared by CreateTopics, CreatePartitions and auto-creation."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from chronik.cluster.placement import Slot, place
from chronik.metadata.commands import AddPartitions, CreateTopic, DeleteTopic
from chronik.metadata.topic_config import check_topic_configs, check_topic_conflicts
from chronik.metadata.values import Topic
from chronik.model import METADATA_TOPIC, ErrorCode, NodeId, RequestError
from chronik.registry.topic import is_foreign
from chronik.server.config_changes import check_remote_storage
from chronik.server.internal_topics import refuse_internal
from chronik.server.services import Services

__all__ = [
    "check_first_use",
    "check_partition_count",
    "check_topic_name",
    "ensure_topic",
    "plan_deletion",
    "plan_partitions",
    "plan_topic",
    "submit_topic",
]

_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
_DEFAULT: Final = -1


def check_topic_name(name: str, length_max: int) -> None:
    if not name:
        raise _invalid_name("the empty string is not allowed")
    if name in (".", "..") or name == METADATA_TOPIC:
        raise _invalid_name(f"'{name}' is not allowed")
    if len(name) > length_max:
        raise _invalid_name(
            f"the length of '{name[:20]}...' is longer than the max allowed length {length_max}"
        )
    if _LEGAL_NAME.fullmatch(name) is None:
        raise _invalid_name(
            f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
        )


def _invalid_name(why: str) -> RequestError:
    return RequestError(ErrorCode.invalid_topic_exception, f"Topic name is invalid: {why}")


def plan_topic(
    services: Services,
    name: str,
    *,
    partitions: int = _DEFAULT,
    replication_factor: int = _DEFAULT,
    assignments: Mapping[int, Sequence[NodeId]] | None = None,
    configs: Mapping[str, str | None] | None = None,
    is_internal: bool = False,
) -> CreateTopic:
    """The command that makes this topic; RequestError with the reason if there cannot be one.

    Coordinators alone say `is_internal`, for topics of their own.
    """
    check_topic_name(name, services.limits.topic_name_length_max)
    if name in services.state.topics:
        raise RequestError(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
    if not is_internal:
        refuse_internal(name, ErrorCode.invalid_topic_exception, "create")
    configs = configs or {}
    check_topic_configs(configs)
    given = {key: value for key, value in configs.items() if value is not None}
    check_topic_conflicts(given, *services.broker_configs())
    check_remote_storage(services, {}, given)
    if assignments:
        if partitions != _DEFAULT:
            raise RequestError(
                ErrorCode.invalid_request,
                "A manual partition assignment was specified, but numPartitions was not set to -1.",
            )
        if replication_factor != _DEFAULT:
            raise RequestError(
                ErrorCode.invalid_request,
                "A manual partition assignment was specified, but replicationFactor was not set to -1.",
            )
        placed = _given(services, assignments)
    else:
        placed = _placed(services, name, partitions, replication_factor)
    return CreateTopic(
        name=name,
        topic_id=services.new_uuid(),
        assignments=placed,
        configs={key: value for key, value in configs.items() if value is not None},
    )


def plan_partitions(
    services: Services, topic: Topic, count: int, assignments: Sequence[Sequence[NodeId]] | None
) -> AddPartitions:
    """The command that takes a topic to `count` partitions."""
    refuse_internal(topic.name, ErrorCode.invalid_request, "add partitions to")
    current = len(topic.partitions)
    if count == current:
        raise RequestError(ErrorCode.invalid_partitions, f"Topic already has {current} partition(s).")
    if count < current:
        raise RequestError(
            ErrorCode.invalid_partitions,
            f"The topic {topic.name} currently has {current} partition(s); {count} would not be an increase.",
        )
    added = count - current
    check_partition_count(services, added)
    if assignments is not None:
        if len(assignments) != added:
            raise RequestError(
                ErrorCode.invalid_replica_assignment,
                f"{added} partition(s) are to be added, but {len(assignments)} assignment(s) were given.",
            )
        given = _given(services, dict(enumerate(assignments)))
        return AddPartitions(topic_id=topic.topic_id, first_partition=current, assignments=given)
    factor = len(topic.partitions[0].replicas)
    start = topic.topic_id.int % 1009
    placed = place(_slots(services), added, factor, start=start, first_partition=current)
    return AddPartitions(topic_id=topic.topic_id, first_partition=current, assignments=placed)


def plan_deletion(topic: Topic) -> DeleteTopic:
    """The command that deletes this topic."""
    if not is_foreign(topic):
        refuse_internal(topic.name, ErrorCode.invalid_request, "delete")
    return DeleteTopic(topic_id=topic.topic_id)


async def submit_topic(services: Services, plan: CreateTopic) -> Topic | None:
    """Create the topic, unless another node was quicker. None if it has been deleted again by now."""
    try:
        await services.metadata.submit(plan)
    except RequestError as error:
        if error.code != ErrorCode.topic_already_exists:
            raise
    return services.state.topics.get(plan.name)


async def ensure_topic(services: Services, name: str) -> Topic:
    """The topic, created with defaults if it is not there (auto-creation)."""
    topic = services.state.topics.get(name)
    if topic is None:
        topic = await submit_topic(services, plan_topic(services, name))
        if topic is None:
            raise RequestError(ErrorCode.unknown_topic_or_partition)
    return topic


def check_first_use(services: Services, names: Collection[str]) -> None:
    """Before topics are created because one request mentions them: it may make no more than CreateTopics."""
    if names:
        check_partition_count(services, len(names) * services.settings.default_partitions)


def _slots(services: Services) -> list[Slot]:
    return [
        Slot(broker.broker_id, broker.rack) for broker in services.state.live_brokers() if not broker.draining
    ]


def _placed(
    services: Services, name: str, partitions: int, replication_factor: int
) -> tuple[tuple[NodeId, ...], ...]:
    settings = services.settings
    if partitions == _DEFAULT:
        partitions = settings.default_partitions
    if replication_factor == _DEFAULT:
        replication_factor = settings.default_replication_factor
    if partitions <= 0:
        raise RequestError(
            ErrorCode.invalid_partitions, "Number of partitions was set to an invalid non-positive value."
        )
    if replication_factor <= 0:
        raise RequestError(
            ErrorCode.invalid_replication_factor,
            "Replication factor was set to an invalid non-positive value.",
        )
    check_partition_count(services, partitions)
    # Topics of one partition would all be led by the first broker if each began there.
    start = sum(name.encode()) + len(services.state.topics)
    return place(_slots(services), partitions, replication_factor, start=start)


def check_partition_count(services: Services, count: int) -> None:
    """Refuses a request that creates too many partitions before anything is placed or written."""
    limits = services.limits
    if count > limits.partitions_per_request_max:
        raise RequestError(ErrorCode.policy_violation, "Excessively large number of partitions per request.")
    present = sum(len(topic.partitions) for topic in services.state.topics.values())
    if present + count > limits.cluster_partitions_max:
        raise RequestError(
            ErrorCode.policy_violation,
            f"The cluster has {present} partitions and takes at most {limits.cluster_partitions_max}.",
        )


def _given(services: Services, assignments: Mapping[int, Sequence[NodeId]]) -> tuple[tuple[NodeId, ...], ...]:
    if sorted(assignments) != list(range(len(assignments))):
        raise RequestError(
            ErrorCode.invalid_replica_assignment,
            "Partitions should be a consecutive 0-based integer sequence.",
        )
    check_partition_count(services, len(assignments))
    placed = tuple(tuple(assignments[number]) for number in range(len(assignments)))
    if len({len(replicas) for replicas in placed}) > 1:
        raise RequestError(
            ErrorCode.invalid_replica_assignment, "All partitions must have the same number of replicas."
        )
    for replicas in placed:
        if not replicas or len(set(replicas)) != len(replicas):
            raise RequestError(
                ErrorCode.invalid_replica_assignment, f"{list(replicas)} is no list of distinct brokers."
            )
        unknown = [replica for replica in replicas if replica not in services.state.brokers]
        if unknown:
            raise RequestError(ErrorCode.invalid_replica_assignment, f"Brokers {unknown} are not registered.")
    return placed
