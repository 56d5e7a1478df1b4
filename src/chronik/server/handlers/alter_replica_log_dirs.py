"""AlterReplicaLogDirs: move replicas between the directories of a broker. A node has one directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from chronik.model import ErrorCode, TopicPartition
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import on_cluster
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.alter_replica_log_dirs.v2.request import AlterReplicaLogDirsRequest


def _on_error(request: AlterReplicaLogDirsRequest, code: ErrorCode, message: str | None) -> Reply:
    return _results(
        {
            (topic.name, one): code
            for log_dir in request.dirs
            for topic in log_dir.topics
            for one in topic.partitions
        }
    )


@handles(
    ApiKey.ALTER_REPLICA_LOG_DIRS, versions=(1, 2), needs=on_cluster(Operation.ALTER), on_error=_on_error
)
async def alter_replica_log_dirs(request: AlterReplicaLogDirsRequest, ctx: RequestContext) -> Reply:
    services = ctx.services
    here = services.settings.data_dir.absolute()
    codes: dict[tuple[str, int], ErrorCode] = {}
    for log_dir in request.dirs:
        is_ours = Path(log_dir.path) == here
        for topic in log_dir.topics:
            for number in topic.partitions:
                if not is_ours:
                    code = ErrorCode.log_dir_not_found
                elif services.replicas.get(TopicPartition(topic.name, number)) is None:
                    code = ErrorCode.replica_not_available
                else:
                    code = ErrorCode.none
                codes[topic.name, number] = code
    return _results(codes)


def _results(codes: dict[tuple[str, int], ErrorCode]) -> Reply:
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, number), code in codes.items():
        topics.setdefault(topic, []).append({"partition_index": number, "error_code": code})
    return reply(
        results=[{"topic_name": name, "partitions": partitions} for name, partitions in topics.items()]
    )
