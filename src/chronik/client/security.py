"""Users, ACLs and quotas of a cluster, asked and changed."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from chronik.client.apis import Api
from chronik.client.cluster import Cluster
from chronik.model import ErrorCode, RequestError
from chronik.security.acl_fields import acl_fields, filter_fields, read_binding
from chronik.security.acls import AclBinding, AclFilter
from chronik.security.quotas import Entity
from chronik.security.scram import ITERATIONS_DEFAULT, MECHANISMS, SALT_BYTES, salted_password
from chronik.wire.api import ApiKey

__all__ = [
    "create_acls",
    "delete_acls",
    "delete_user",
    "describe_acls",
    "list_quotas",
    "list_users",
    "put_user",
    "set_quota",
]

_DESCRIBE_ACLS: Final = Api(ApiKey.DESCRIBE_ACLS, 1, 3)
_CREATE_ACLS: Final = Api(ApiKey.CREATE_ACLS, 1, 3)
_DELETE_ACLS: Final = Api(ApiKey.DELETE_ACLS, 1, 3)
_DESCRIBE_USERS: Final = Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0)
_ALTER_USERS: Final = Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0)
_DESCRIBE_QUOTAS: Final = Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1)
_ALTER_QUOTAS: Final = Api(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1)
_BY_NUMBER: Final = {mechanism.number: mechanism for mechanism in MECHANISMS.values()}


def _check(answer: Any) -> None:
    if answer.error_code != ErrorCode.none:
        raise RequestError(answer.error_code, answer.error_message)


async def describe_acls(cluster: Cluster, wanted: AclFilter | None = None) -> list[AclBinding]:
    answer = await cluster.on_any(_DESCRIBE_ACLS, filter_fields(wanted or AclFilter()))
    _check(answer)
    return sorted(
        read_binding(resource, resource.pattern_type, acl)
        for resource in answer.resources
        for acl in resource.acls
    )


async def create_acls(cluster: Cluster, bindings: Sequence[AclBinding]) -> None:
    creations = [
        {
            "resource_type": one.resource_type,
            "resource_name": one.resource_name,
            "resource_pattern_type": one.pattern_type,
            **acl_fields(one),
        }
        for one in bindings
    ]
    for result in (await cluster.on_any(_CREATE_ACLS, {"creations": creations})).results:
        _check(result)


async def delete_acls(cluster: Cluster, wanted: AclFilter) -> list[AclBinding]:
    answer = await cluster.on_any(_DELETE_ACLS, {"filters": [filter_fields(wanted)]})
    _check(answer.filter_results[0])
    return sorted(read_binding(one, one.pattern_type, one) for one in answer.filter_results[0].matching_acls)


async def list_users(cluster: Cluster) -> dict[str, dict[str, int]]:
    """Iterations by mechanism, of every user that can log in with a password."""
    answer = await cluster.on_any(_DESCRIBE_USERS, {"users": None})
    _check(answer)
    return {
        result.user: {_BY_NUMBER[one.mechanism].name: one.iterations for one in result.credential_infos}
        for result in answer.results
    }


async def put_user(
    cluster: Cluster,
    user: str,
    password: str,
    *,
    mechanisms: Iterable[str] = tuple(MECHANISMS),
    iterations: int = ITERATIONS_DEFAULT,
) -> None:
    """The password itself does not leave this process."""
    upsertions = []
    for name in mechanisms:
        mechanism, salt = MECHANISMS[name], secrets.token_bytes(SALT_BYTES)
        salted = await asyncio.to_thread(salted_password, mechanism, password, salt, iterations)
        upsertions.append(
            {
                "name": user,
                "mechanism": mechanism.number,
                "iterations": iterations,
                "salt": salt,
                "salted_password": salted,
            }
        )
    await _alter_user(cluster, "upsertions", upsertions)


async def delete_user(cluster: Cluster, user: str) -> None:
    held = (await list_users(cluster)).get(user)
    if held is None:
        raise RequestError(ErrorCode.resource_not_found, f"there is no user {user}")
    deletions = [{"name": user, "mechanism": MECHANISMS[name].number} for name in held]
    await _alter_user(cluster, "deletions", deletions)


async def _alter_user(cluster: Cluster, field: str, changes: list[dict[str, Any]]) -> None:
    """All credentials of one user at once. Apache Kafka takes the second for a duplicate of the first,
    whatever its mechanism, and gets them one by one."""

    async def ask(some: list[dict[str, Any]]) -> Any:
        fields = {"deletions": [], "upsertions": [], field: some}
        (result,) = (await cluster.on_any(_ALTER_USERS, fields)).results
        return result

    result = await ask(changes)
    if result.error_code != ErrorCode.duplicate_resource:
        _check(result)
        return
    for change in changes:
        _check(await ask([change]))


async def list_quotas(cluster: Cluster) -> dict[Entity, dict[str, float]]:
    answer = await cluster.on_any(_DESCRIBE_QUOTAS, {"components": [], "strict": False})
    _check(answer)
    return {
        tuple(sorted((part.entity_type, part.entity_name) for part in entry.entity)): {
            one.key: one.value for one in entry.values
        }
        for entry in answer.entries or ()
    }


async def set_quota(cluster: Cluster, entity: Entity, values: Mapping[str, float | None]) -> None:
    entry = {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
        "ops": [
            {"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items()
        ],
    }
    answer = await cluster.on_any(_ALTER_QUOTAS, {"entries": [entry], "validate_only": False})
    _check(answer.entries[0])
