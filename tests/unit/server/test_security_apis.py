"""ACLs, users, quotas and delegation tokens, as clients make and see them."""

from __future__ import annotations

import base64
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from chronik.client.apis import METADATA, Api
from chronik.client.connection import Connection
from chronik.client.login import Login
from chronik.model import ErrorCode, RequestError
from chronik.security.scram import MECHANISMS, salted_password
from chronik.wire.api import ApiKey
from tests.unit.server.harness import Harness
from tests.unit.server.test_gate import ACL, ACL_FILTER
from tests.unit.server.test_login import address, closed, login, opened

CREATE_ACLS = Api(ApiKey.CREATE_ACLS, 1, 3)
DESCRIBE_ACLS = Api(ApiKey.DESCRIBE_ACLS, 1, 3)
DELETE_ACLS = Api(ApiKey.DELETE_ACLS, 1, 3)
ALTER_USERS = Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0)
DESCRIBE_USERS = Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0)
CREATE_TOKEN = Api(ApiKey.CREATE_DELEGATION_TOKEN, 1, 3)
RENEW_TOKEN = Api(ApiKey.RENEW_DELEGATION_TOKEN, 1, 2)
EXPIRE_TOKEN = Api(ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2)
DESCRIBE_TOKENS = Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3)


async def admin(node: Any) -> Connection:
    return await opened(address(node), login=login("admin"))


async def test_acls_come_are_shown_count_and_go(tmp_path: Path) -> None:
    async with closed(tmp_path, authorizer=True, super_users="User:admin") as node:
        await node.topic("orders")
        connection, alice = await admin(node), await opened(address(node), login=login("alice"))
        made = {**ACL, "principal": "User:alice", "operation": 8}
        wrong = {**made, "operation": 9}
        answer = await connection.request(CREATE_ACLS, {"creations": [made, wrong]})
        codes = [result.error_code for result in answer.results]
        assert codes == [ErrorCode.none, ErrorCode.invalid_request]
        seen = await alice.request(METADATA, {"topics": None})
        assert [topic.name for topic in seen.topics] == ["orders"]
        shown = await connection.request(DESCRIBE_ACLS, ACL_FILTER)
        assert [(one.resource_name, one.acls[0].principal) for one in shown.resources] == [
            ("orders", "User:alice")
        ]
        gone = await connection.request(DELETE_ACLS, {"filters": [ACL_FILTER]})
        assert [one.resource_name for one in gone.filter_results[0].matching_acls] == ["orders"]
        assert not (await alice.request(METADATA, {"topics": None})).topics
        refused = await alice.request(CREATE_ACLS, {"creations": [made]})
        assert refused.results[0].error_code == ErrorCode.cluster_authorization_failed
        for one in (connection, alice):
            one.close()


def test_without_an_authorizer_there_are_no_acls() -> None:
    harness = Harness()
    assert harness.call(ApiKey.DESCRIBE_ACLS, 3, **ACL_FILTER).error_code == ErrorCode.security_disabled
    created = harness.call(ApiKey.CREATE_ACLS, 3, creations=[ACL])
    assert created.results[0].error_code == ErrorCode.security_disabled


def upsertion(name: str, password: str, iterations: int = 4096, number: int = 1) -> dict[str, Any]:
    mechanism = MECHANISMS["SCRAM-SHA-256" if number == 1 else "SCRAM-SHA-512"]
    salted = salted_password(mechanism, password, b"pepper", iterations)
    return {
        "name": name,
        "mechanism": number,
        "iterations": iterations,
        "salt": b"pepper",
        "salted_password": salted,
    }


async def test_users_come_change_and_go(tmp_path: Path) -> None:
    async with closed(tmp_path, authorizer=True, super_users="User:admin") as node:
        connection = await admin(node)

        async def alter(*upsertions: dict[str, Any], deletions: Any = ()) -> list[ErrorCode]:
            fields = {"deletions": list(deletions), "upsertions": list(upsertions)}
            return [one.error_code for one in (await connection.request(ALTER_USERS, fields)).results]

        assert await alter(upsertion("bob", "one")) == [ErrorCode.none]
        await opened(address(node), login=login("bob", password="one"))
        assert await alter(upsertion("bob", "two")) == [ErrorCode.none]
        with pytest.raises(RequestError):
            await opened(address(node), login=login("bob", password="one"))
        await opened(address(node), login=login("bob", password="two"))
        shown = await connection.request(DESCRIBE_USERS, {"users": [{"name": "bob"}, {"name": "eve"}]})
        assert [(one.user, one.error_code) for one in shown.results] == [
            ("bob", ErrorCode.none),
            ("eve", ErrorCode.resource_not_found),
        ]
        assert shown.results[0].credential_infos[0].iterations == 4096
        too_few, too_many = upsertion("eve", "x", 4095), upsertion("eve", "x", 16385)
        for wrong in (too_few, too_many, upsertion("", "x")):
            assert await alter(wrong) == [ErrorCode.unacceptable_credential]
        assert await alter(upsertion("eve", "x"), upsertion("eve", "y")) == [ErrorCode.duplicate_resource]
        assert await alter({**upsertion("eve", "x"), "mechanism": 7}) == [
            ErrorCode.unsupported_sasl_mechanism
        ]
        assert await alter(deletions=[{"name": "", "mechanism": 1}]) == [ErrorCode.unacceptable_credential]
        gone = [{"name": "bob", "mechanism": 1}]
        assert await alter(deletions=gone) == [ErrorCode.none]
        assert await alter(deletions=gone) == [ErrorCode.resource_not_found]
        with pytest.raises(RequestError):
            await opened(address(node), login=login("bob", password="two"))
        connection.close()


def test_what_is_wrong_with_a_credential_itself_is_told_before_that_it_comes_twice() -> None:
    harness = Harness()

    def alter(name: str, number: int, iterations: int = 4096) -> list[ErrorCode]:
        upserted = {**upsertion(name, "x"), "mechanism": number, "iterations": iterations}
        deleted = {"name": name, "mechanism": number}
        answer = harness.call(
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=[deleted], upsertions=[upserted]
        )
        return [one.error_code for one in answer.results]

    assert alter("", 0) == [ErrorCode.unacceptable_credential]
    assert alter("eve", 3) == [ErrorCode.unsupported_sasl_mechanism]
    assert alter("eve", 1) == [ErrorCode.duplicate_resource]
    assert alter("eve", 1, 4095) == [ErrorCode.duplicate_resource], "a user's first error stands"


def test_an_authentication_where_nobody_logs_in_is_refused_with_a_reason() -> None:
    answer = Harness().call(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=b"")
    assert answer.error_code == ErrorCode.illegal_sasl_state
    assert answer.error_message


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", 0, "alice")], ErrorCode.invalid_request),
        ([("user", 0, "alice"), ("user", 1, None)], ErrorCode.invalid_request),
        ([("color", 0, "red")], ErrorCode.unsupported_version),
        ([("user", 0, None)], ErrorCode.invalid_request),
        ([("user", 1, "alice")], ErrorCode.invalid_request),
        ([("user", 2, "alice")], ErrorCode.invalid_request),
        ([("user", 3, None)], ErrorCode.invalid_request),
        ([("ip", 0, "127.0.0.1"), ("user", 0, "alice")], ErrorCode.invalid_request),
        ([("ip", 0, "127.0.0.1")], ErrorCode.none),
        ([("user", 0, "alice"), ("client-id", 1, None)], ErrorCode.none),
    ],
)
def test_a_filter_of_quotas_that_makes_no_sense_is_refused(
    components: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    given = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components]
    answer = Harness().call(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, components=given, strict=False)
    assert answer.error_code == code


def test_quotas_are_set_and_shown() -> None:
    harness = Harness()

    def alter(entity: list[tuple[str, str | None]], key: str, value: float | None) -> ErrorCode:
        entry = {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            "ops": [{"key": key, "value": value or 0.0, "remove": value is None}],
        }
        answer = harness.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=[entry], validate_only=False)
        code: ErrorCode = answer.entries[0].error_code
        return code

    def shown(*components: tuple[str, int, str | None], strict: bool = False) -> list[dict[str, Any]]:
        given = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components]
        answer = harness.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, components=given, strict=strict)
        return [
            {part.entity_type: part.entity_name for part in entry.entity} for entry in answer.entries or ()
        ]

    assert alter([("user", "alice")], "producer_byte_rate", 100.0) == ErrorCode.none
    assert alter([("user", None)], "producer_byte_rate", 10.0) == ErrorCode.none
    assert alter([("user", "alice"), ("client-id", "app")], "request_percentage", 5.0) == ErrorCode.none
    assert alter([("user", "alice")], "color", 1.0) == ErrorCode.invalid_request
    assert shown(("user", 0, "alice"), strict=True) == [{"user": "alice"}]
    assert shown(("user", 1, None)) == [{"user": None}]
    assert len(shown(("user", 2, None))) == 3
    assert shown(("client-id", 0, "app")) == [{"client-id": "app", "user": "alice"}]
    assert alter([("user", "alice")], "producer_byte_rate", None) == ErrorCode.none
    assert not shown(("user", 0, "alice"), strict=True)


async def test_delegation_tokens(tmp_path: Path) -> None:
    now = [1_000_000_000_000]
    settings = {
        "delegation_token_secret_key": "secret of the cluster",
        "delegation_token_expiry_time_ms": 30_000,
        "now_ms": lambda: now[0],
    }
    async with closed(tmp_path, authorizer=True, super_users="User:admin", **settings) as node:
        await node.topic("orders")
        connection = await admin(node)
        token = await connection.request(CREATE_TOKEN, {"renewers": [], "max_lifetime": 60_000})
        assert (token.error_code, token.principal_name) == (ErrorCode.none, "admin")
        by_token = Login(
            mechanism="SCRAM-SHA-512",
            user=token.token_id,
            password=base64.b64encode(token.hmac).decode(),
            by_token=True,
        )
        job = await opened(address(node), login=by_token)
        assert [one.name for one in (await job.request(METADATA, {"topics": None})).topics] == ["orders"]
        again = await job.request(CREATE_TOKEN, {"renewers": [], "max_lifetime": -1})
        assert again.error_code == ErrorCode.delegation_token_request_not_allowed

        alice = await opened(address(node), login=login("alice"))
        for_admin = {"owner_principal_type": "User", "owner_principal_name": "admin"}
        refused = await alice.request(CREATE_TOKEN, {"renewers": [], "max_lifetime": -1, **for_admin})
        assert refused.error_code == ErrorCode.delegation_token_authorization_failed
        stolen = await alice.request(RENEW_TOKEN, {"hmac": token.hmac, "renew_period": 1000})
        assert stolen.error_code == ErrorCode.delegation_token_owner_mismatch
        assert not (await alice.request(DESCRIBE_TOKENS, {"owners": None})).tokens
        assert len((await connection.request(DESCRIBE_TOKENS, {"owners": None})).tokens) == 1

        renewed = await connection.request(RENEW_TOKEN, {"hmac": token.hmac, "renew_period": 10**9})
        assert renewed.expiry_timestamp == token.max_timestamp, "never beyond its end"
        by_default = await connection.request(RENEW_TOKEN, {"hmac": token.hmac, "renew_period": -1})
        from_setting = timedelta(milliseconds=30_000)
        assert by_default.expiry_timestamp - token.issue_timestamp == from_setting
        shorter = await connection.request(EXPIRE_TOKEN, {"hmac": token.hmac, "expiry_time_period": 1_001})
        assert shorter.expiry_timestamp - token.issue_timestamp == timedelta(milliseconds=1_001)
        assert len((await connection.request(DESCRIBE_TOKENS, {"owners": None})).tokens) == 1
        expired = await connection.request(EXPIRE_TOKEN, {"hmac": token.hmac, "expiry_time_period": -1})
        assert expired.error_code == ErrorCode.none
        with pytest.raises(RequestError):
            await opened(address(node), login=by_token)
        for one in (connection, alice, job):
            one.close()


def test_a_quota_for_two_users_one_of_them_the_default_is_refused() -> None:
    entity = [{"entity_type": "user", "entity_name": name} for name in (None, "alice")]
    ops = [{"key": "producer_byte_rate", "value": 1.0, "remove": False}]
    answer = Harness().call(
        ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=[{"entity": entity, "ops": ops}], validate_only=False
    )
    assert [entry.error_code for entry in answer.entries] == [ErrorCode.invalid_request]


@pytest.mark.parametrize("entity", [[], [("planet", "earth")], [("user", "")], [("user", "x" * 40_000)]])
def test_an_entity_that_cannot_be_is_refused_without_any_quota_too(
    entity: list[tuple[str, str | None]],
) -> None:
    entry = {"entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity], "ops": []}
    answer = Harness().call(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=[entry], validate_only=False)
    assert [one.error_code for one in answer.entries] == [ErrorCode.invalid_request]
