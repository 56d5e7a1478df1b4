"""What every node keeps for good is bounded in bytes: by name, by request and altogether (R05)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chronik.metadata.commands import CLIENT_METRICS_RESOURCE, GROUP_RESOURCE, AddAcls
from chronik.model import NAME_BYTES_MAX, ErrorCode
from chronik.security.acls import AclBinding, Operation, ResourceType
from chronik.security.scram import SALT_BYTES_MAX
from chronik.server.handlers import alter_user_scram_credentials, create_delegation_token, delete_acls
from chronik.wire.api import ApiKey
from tests.unit.server.harness import Harness
from tests.unit.server.live import Live, live
from tests.unit.server.test_config_handlers import SET, change
from tests.unit.server.test_gate import ACL, ACL_FILTER
from tests.unit.server.test_login import address, closed, login, opened
from tests.unit.server.test_security_apis import (
    CREATE_ACLS,
    CREATE_TOKEN,
    DELETE_ACLS,
    admin,
    upsertion,
)

MIB = 1024 * 1024
LONG = "n" * (NAME_BYTES_MAX + 1)
WIDE = "ü" * (NAME_BYTES_MAX // 2 + 1)
"""Few characters, many bytes."""


async def alter_users(node: Live, *upserted: dict[str, Any], deletions: Any = ()) -> list[ErrorCode]:
    answer = await node.call(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=list(deletions), upsertions=list(upserted)
    )
    return [one.error_code for one in answer.results]


def put(name: str, salt: bytes = b"pepper") -> dict[str, Any]:
    return {**upsertion("x", "x"), "name": name, "salt": salt}


async def test_a_users_name_and_salt_have_a_longest_length(tmp_path: Path) -> None:
    """Both go into every node and every snapshot; one request could bring 100 MiB of them."""
    async with live(tmp_path) as node:
        for wrong in (put(LONG), put(WIDE), put("eve", b"s" * (SALT_BYTES_MAX + 1))):
            assert await alter_users(node, wrong) == [ErrorCode.unacceptable_credential]
        good = put("n" * NAME_BYTES_MAX, b"s" * SALT_BYTES_MAX)
        assert await alter_users(node, good) == [ErrorCode.none]
        assert len(node.node.parts.metadata.state.security.users) == 1


async def test_many_changes_of_users_are_several_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alter_user_scram_credentials, "COMMANDS_AT_ONCE", 3)
    async with live(tmp_path) as node:
        before = node.node.parts.metadata.state.applied_index
        codes = await alter_users(
            node, *(put(f"user-{n}") for n in range(7)), deletions=[{"name": "eve", "mechanism": 1}]
        )
        assert sorted(codes) == [ErrorCode.none] * 7 + [ErrorCode.resource_not_found]
        assert node.node.parts.metadata.state.applied_index >= before + 3


async def test_full_metadata_refuses_what_adds_names_the_setting_and_deletes(tmp_path: Path) -> None:
    async with live(tmp_path, metadata_bytes_max=MIB) as node:
        taken = 0
        while (await alter_users(node, put(f"{taken:04}".ljust(NAME_BYTES_MAX, "n"))))[0] == ErrorCode.none:
            taken += 1
            assert taken < 2_000, "there is no limit"
        assert 500 < taken < 1_000
        topic = {
            "name": "orders",
            "num_partitions": 10,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        answer = await node.call(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout=10_000, validate_only=False)
        assert answer.topics[0].error_code == ErrorCode.policy_violation
        assert "metadata_bytes_max" in answer.topics[0].error_message
        gone = [{"name": f"{number:04}".ljust(NAME_BYTES_MAX, "n"), "mechanism": 1} for number in range(9)]
        assert set(await alter_users(node, deletions=gone)) == {ErrorCode.none}
        answer = await node.call(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout=10_000, validate_only=False)
        assert answer.topics[0].error_code == ErrorCode.none


@pytest.mark.parametrize("field", ["resource_name", "principal", "host"])
async def test_the_names_of_an_acl_have_a_longest_length(tmp_path: Path, field: str) -> None:
    async with closed(tmp_path, authorizer=True, super_users="User:admin") as node:
        connection = await admin(node)
        answer = await connection.request(CREATE_ACLS, {"creations": [{**ACL, field: f"User:{WIDE}"}]})
        assert answer.results[0].error_code == ErrorCode.invalid_request
        assert str(NAME_BYTES_MAX) in answer.results[0].error_message
        connection.close()


async def test_many_acls_are_deleted_in_several_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delete_acls, "ACLS_AT_ONCE", 3)
    async with closed(tmp_path, authorizer=True, super_users="User:admin") as node:
        metadata = node.node.parts.metadata
        bindings = tuple(
            AclBinding(
                resource_type=ResourceType.TOPIC,
                resource_name=f"topic-{number}",
                principal="User:alice",
                operation=Operation.READ,
            )
            for number in range(7)
        )
        await metadata.submit(AddAcls(bindings=bindings))
        before = metadata.state.applied_index
        connection = await admin(node)
        every = {**ACL_FILTER, "resource_name_filter": None}
        answer = await connection.request(DELETE_ACLS, {"filters": [every]})
        assert len(answer.filter_results[0].matching_acls) == 7
        assert not metadata.state.security.acls
        assert metadata.state.applied_index >= before + 3
        connection.close()


@pytest.mark.parametrize("name", [LONG, WIDE])
def test_the_name_of_a_quota_has_a_longest_length(name: str) -> None:
    entry = {
        "entity": [{"entity_type": "user", "entity_name": name}],
        "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}],
    }
    answer = Harness().call(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=[entry], validate_only=False)
    assert answer.entries[0].error_code == ErrorCode.invalid_request


@pytest.mark.parametrize(
    ("resource_type", "config"),
    [
        (GROUP_RESOURCE, ("consumer.session.timeout.ms", SET, "45000")),
        (CLIENT_METRICS_RESOURCE, ("interval.ms", SET, "1000")),
    ],
)
def test_the_name_of_a_resource_with_configs_has_a_longest_length(
    resource_type: int, config: tuple[str, int, str]
) -> None:
    answer = change(Harness(), resource_type, WIDE, config)
    assert answer.error_code == ErrorCode.invalid_request


async def test_the_renewers_of_a_token_are_few_and_their_names_short(tmp_path: Path) -> None:
    async with closed(tmp_path, delegation_token_secret_key="secret of the cluster") as node:
        connection = await opened(address(node), login=login("alice"))

        async def ask(*names: str) -> ErrorCode:
            renewers = [{"principal_type": "User", "principal_name": name} for name in names]
            answer = await connection.request(CREATE_TOKEN, {"renewers": renewers, "max_lifetime": -1})
            code: ErrorCode = answer.error_code
            return code

        assert await ask(LONG) == ErrorCode.policy_violation
        many = [f"user-{number}" for number in range(create_delegation_token.RENEWERS_MAX + 1)]
        assert await ask(*many) == ErrorCode.policy_violation
        assert await ask(*many[1:]) == ErrorCode.none
        connection.close()
