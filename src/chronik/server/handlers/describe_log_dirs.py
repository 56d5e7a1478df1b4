"""DescribeLogDirs: how many bytes each partition takes on this node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chronik.model import ErrorCode, TopicPartition
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import on_cluster
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.describe_log_dirs.v5.request import DescribeLogDirsRequest


def _on_error(request: DescribeLogDirsRequest, code: ErrorCode, message: str | None) -> Reply:
    return reply(error_code=code, results=[{"error_code": code, "log_dir": ""}])


@handles(ApiKey.DESCRIBE_LOG_DIRS, versions=(1, 5), needs=on_cluster(Operation.DESCRIBE), on_error=_on_error)
async def describe_log_dirs(request: DescribeLogDirsRequest, ctx: RequestContext) -> Reply:
    wanted: set[TopicPartition] | None = None
    if request.topics is not None:
        wanted = {
            TopicPartition(topic.topic, number) for topic in request.topics for number in topic.partitions
        }
    topics: dict[str, list[dict[str, Any]]] = {}
    for partition in ctx.services.replicas.all():
        if wanted is None or partition.tp in wanted:
            topics.setdefault(partition.tp.topic, []).append(
                {"partition_index": partition.tp.partition, "partition_size": partition.size_bytes}
            )
    total_bytes, usable_bytes = ctx.services.disk_usage()
    directory = {
        "error_code": ErrorCode.none,
        "log_dir": str(ctx.services.settings.data_dir.absolute()),
        "topics": [{"name": name, "partitions": partitions} for name, partitions in sorted(topics.items())],
        "total_bytes": total_bytes,
        "usable_bytes": usable_bytes,
    }
    return reply(error_code=ErrorCode.none, results=[directory])
