"""Every API under every right: what is refused and shown, as a table that two brokers can be held to.

`tests/security/rights.tsv` holds what Apache Kafka 4.1 does. A state of the rights is `everything`,
`nothing`, `without X` (everything but one operation on one kind of resource, which is denied) or `only X`.
The outcome of a request is the set of authorization errors in its answer, the authorized operations that it
tells, and whether it shows the topic, group or transaction that is there.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from chronik.client.apis import Api
from chronik.client.connection import Connection
from chronik.client.login import Login
from chronik.client.options import BrokerAddress, ClientOptions
from chronik.model import ErrorCode
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.security.acls import CLUSTER_NAME, OPERATIONS, Operation, ResourceType
from chronik.wire.api import ApiKey
from tests.process import HOST
from tests.unit.server.test_gate import (
    ACL,
    ACL_FILTER,
    BY_SECRET_APIS,
    COMMIT,
    OPEN,
    REFUSALS,
    REQUESTS,
    codes,
)

TABLE: Final = Path(__file__).parent / "rights.tsv"
USER: Final = "User:mallory"
LOGIN: Final = Login(mechanism="PLAIN", user="mallory", password="mallory's password")
SHARE: Final = {ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE}
"""Not offered here; they are refused alike whatever the rights."""

_BATCH: Final = bytes(build_batch([Record(key=None, value=b"x", timestamp_ms=1_000)]))
_IN_TRANSACTION: Final = bytes(
    build_batch(
        [Record(key=None, value=b"x", timestamp_ms=1_000)],
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
)
_DATA: Final = [{"name": "orders", "partition_data": [{"index": 0, "records": _BATCH}]}]
_WANTED: Final = [{"topic": "orders", "partitions": [{"partition": 0, "partition_max_bytes": 1000}]}]
_OWN_FILTER: Final = {**ACL_FILTER, "principal_filter": "User:nobody"}
_OWN_QUOTA: Final = {
    "entity": [{"entity_type": "user", "entity_name": "nobody"}],
    "ops": [{"key": "producer_byte_rate", "value": 0.0, "remove": True}],
}


class Case(NamedTuple):
    name: str
    api_key: ApiKey
    version: int
    fields: dict[str, Any]


def _changed() -> dict[ApiKey, dict[str, Any]]:
    """Requests that must do no harm where they are allowed."""
    return {
        ApiKey.CREATE_ACLS: {"creations": [{**ACL, "principal": "User:nobody"}]},
        ApiKey.DELETE_ACLS: {"filters": [_OWN_FILTER]},
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: {"deletions": [{"name": "nobody", "mechanism": 1}]},
        # Apache Kafka leaves a refused question about all users without an answer.
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: {"users": [{"name": "nobody"}]},
        ApiKey.ALTER_CLIENT_QUOTAS: {"entries": [_OWN_QUOTA], "validate_only": True},
        ApiKey.CREATE_TOPICS: {"validate_only": True},
        ApiKey.DELETE_TOPICS: {"topics": [{"name": "missing"}]},
        ApiKey.CREATE_PARTITIONS: {"validate_only": True},
        ApiKey.UNREGISTER_BROKER: {"broker_id": 99},
        ApiKey.DELETE_GROUPS: {"groups_names": ["other"]},
        ApiKey.ALTER_CONFIGS: {"validate_only": True},
        ApiKey.INCREMENTAL_ALTER_CONFIGS: {"validate_only": True},
        ApiKey.OFFSET_DELETE: {"group_id": "other"},
        ApiKey.SYNC_GROUP: {"protocol_type": "consumer", "protocol_name": "range"},
        ApiKey.JOIN_GROUP: {"group_id": "other"},
        ApiKey.CONSUMER_GROUP_HEARTBEAT: {"group_id": "new"},
    }


def cases() -> list[Case]:
    changed = _changed()
    found = [
        Case(api_key.name, api_key, version, {**fields, **changed.get(api_key, {})})
        for api_key, (version, fields, _) in REQUESTS.items()
        if api_key not in OPEN | BY_SECRET_APIS | SHARE
    ]
    operations = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    produce = {"acks": 1, "timeout": 1000, "topic_data": _DATA}
    partition = {"index": 0, "records": _IN_TRANSACTION}
    data = [{"name": "orders", "partition_data": [partition]}]
    transactional = {**produce, "transactional_id": "t", "topic_data": data}
    fetch = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1000, "topics": _WANTED}
    offsets = [{"group_id": "g", "topics": [{"name": "orders", "partition_indexes": [0]}]}]
    return [
        *found,
        Case("PRODUCE", ApiKey.PRODUCE, 9, produce),
        Case("PRODUCE in a transaction", ApiKey.PRODUCE, 9, transactional),
        Case("FETCH", ApiKey.FETCH, 12, fetch),
        Case("METADATA of all topics", ApiKey.METADATA, 12, {"topics": None}),
        Case("METADATA with operations", ApiKey.METADATA, 10, {"topics": None, **operations}),
        Case("METADATA creates", ApiKey.METADATA, 12, {"topics": [{"name": "not-there"}]}),
        Case("DESCRIBE_TOPIC_PARTITIONS of all", ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": []}),
        Case("DESCRIBE_GROUPS with operations", ApiKey.DESCRIBE_GROUPS, 5,
             {"groups": ["g"], "include_authorized_operations": True}),
        Case("DESCRIBE_CLUSTER with operations", ApiKey.DESCRIBE_CLUSTER, 1,
             {"include_cluster_authorized_operations": True}),
        Case("OFFSET_FETCH of a topic", ApiKey.OFFSET_FETCH, 8, {"groups": offsets}),
        Case("FIND_COORDINATOR of a transaction", ApiKey.FIND_COORDINATOR, 4,
             {"key_type": 1, "coordinator_keys": ["t"]}),
        Case("INIT_PRODUCER_ID without a transaction", ApiKey.INIT_PRODUCER_ID, 4,
             {"transactional_id": None, "transaction_timeout": 1000}),
        Case("CREATE_DELEGATION_TOKEN for another", ApiKey.CREATE_DELEGATION_TOKEN, 3,
             {"owner_principal_type": "User", "owner_principal_name": "nobody", "renewers": [],
              "max_lifetime": -1}),
    ]  # fmt: skip


RIGHTS: Final = [
    (operation, kind) for kind, operations in OPERATIONS.items() for operation in sorted(operations)
]


def states() -> Iterator[tuple[str, list[tuple[Operation, ResourceType, bool]]]]:
    """Name, and what is allowed (True) or denied (False)."""
    everything = [(Operation.ALL, kind, True) for kind in OPERATIONS]
    yield "nothing", []
    yield "everything", everything
    for operation, kind in RIGHTS:
        right = f"{operation.name} {kind.name}"
        yield f"without {right}", [*everything, (operation, kind, False)]
        yield f"only {right}", [(operation, kind, True)]


def outcome(answer: Any) -> str:
    parts = sorted({ErrorCode(code).name for code in codes(answer)} & {code.name for code in REFUSALS})
    parts += [f"{name}={value}" for name, value in _operations(answer) if value >= 0]
    text = repr(answer)
    parts += [f"shows {name}" for name in ("orders", "'g'", "'t'") if name in text]
    return ", ".join(parts) or "-"


def _operations(answer: Any) -> Iterator[tuple[str, int]]:
    if dataclasses.is_dataclass(answer):
        if getattr(answer, "name", "orders") != "orders":
            return
        for field in dataclasses.fields(answer):
            value = getattr(answer, field.name)
            if field.name.endswith("authorized_operations"):
                yield field.name.removesuffix("_authorized_operations"), value
            else:
                yield from _operations(value)
    elif isinstance(answer, tuple | list):
        for item in answer:
            yield from _operations(item)


class Walk:
    """Sends every case under every state, and collects the outcomes."""

    def __init__(self, admin_port: int, port: int) -> None:
        self.admin_port = admin_port
        self._port = port

    async def outcomes(self) -> dict[tuple[str, str], str]:
        found = {}
        admin, client = await self.connections()
        await self._prepare(admin)
        for state, rights in states():
            await self._set(admin, rights)
            for case in cases():
                try:
                    answer = await ask(client, case.api_key, case.version, **case.fields)
                except Exception as error:
                    raise AssertionError(f"{case.name} {state}") from error
                found[state, case.name] = outcome(answer)
        admin.close()
        client.close()
        return found

    async def connections(self) -> tuple[Connection, Connection]:
        """A super user's and that of the user whose rights are walked through."""
        admin = await Connection.open(BrokerAddress(HOST, self.admin_port), ClientOptions(client_id="admin"))
        client = await Connection.open(
            BrokerAddress(HOST, self._port), ClientOptions(login=LOGIN, request_timeout_ms=10_000)
        )
        return admin, client

    async def _prepare(self, admin: Connection) -> None:
        """A topic, a group with an offset and a transaction: what there is to be seen."""
        topic = {"name": "orders", "num_partitions": 1, "replication_factor": 1}
        await ask(admin, ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout=10_000)
        for key_type, key in ((0, "g"), (1, "t")):
            await _until(admin, ApiKey.FIND_COORDINATOR, 4, key_type=key_type, coordinator_keys=[key])
        await _until(admin, ApiKey.OFFSET_COMMIT, 8, group_id="g", topics=COMMIT)
        await _until(admin, ApiKey.INIT_PRODUCER_ID, 4, transactional_id="t", transaction_timeout=1000)
        await _until(admin, ApiKey.PRODUCE, 9, acks=1, timeout=1000, topic_data=_DATA)

    async def _set(self, admin: Connection, rights: list[tuple[Operation, ResourceType, bool]]) -> None:
        wanted = [
            _acl(operation, kind, CLUSTER_NAME if kind is ResourceType.CLUSTER else "*", 3 if allowed else 2)
            for operation, kind, allowed in rights
        ]
        await self._replace(admin, wanted)

    async def allow(self, admin: Connection, rights: list[tuple[Operation, ResourceType, str]]) -> None:
        """The user has these rights, and no others."""
        await self._replace(admin, [_acl(operation, kind, name, 3) for operation, kind, name in rights])

    async def _replace(self, admin: Connection, wanted: list[dict[str, Any]]) -> None:
        whose = {**ACL_FILTER, "principal_filter": USER}
        await ask(admin, ApiKey.DELETE_ACLS, 3, filters=[whose])
        if wanted:
            made = await ask(admin, ApiKey.CREATE_ACLS, 3, creations=wanted)
            assert not any(codes(made)), made
        async with asyncio.timeout(30):  # Apache Kafka answers before its brokers know
            while True:
                told = await ask(admin, ApiKey.DESCRIBE_ACLS, 3, **whose)
                if sum(len(one.acls) for one in told.resources) == len(wanted):
                    return


def _acl(operation: Operation, kind: ResourceType, name: str, permission: int) -> dict[str, Any]:
    return {
        "resource_type": int(kind),
        "resource_name": name,
        "resource_pattern_type": 3,
        "principal": USER,
        "host": "*",
        "operation": int(operation),
        "permission_type": permission,
    }


async def ask(connection: Connection, api_key: ApiKey, version: int, **fields: Any) -> Any:
    return await connection.request(Api(api_key, version, version), fields)


async def _until(connection: Connection, api_key: ApiKey, version: int, **fields: Any) -> None:
    """A coordinator may have to load first."""
    async with asyncio.timeout(60):
        while set(codes(await ask(connection, api_key, version, **fields))) - {ErrorCode.none}:
            pass


def write_table(outcomes: dict[tuple[str, str], str]) -> None:
    """Only what differs from the same case under everything (for `without`) or nothing (for `only`)."""
    lines = []
    for (state, case), found in outcomes.items():
        if found != expected_by_default(outcomes, state, case):
            lines.append(f"{state}\t{case}\t{found}\n")
    TABLE.write_text("".join(lines))


def expected_by_default(outcomes: dict[tuple[str, str], str], state: str, case: str) -> str | None:
    if state in ("nothing", "everything"):
        return None
    return outcomes["everything" if state.startswith("without") else "nothing", case]


def read_table() -> dict[tuple[str, str], str]:
    rows = [line.split("\t") for line in TABLE.read_text().splitlines()]
    told = {(state, case): found for state, case, found in rows}
    for state, _ in states():
        for case in cases():
            if (state, case.name) not in told:
                default = expected_by_default(told, state, case.name)
                assert default is not None, f"no row for {state}, {case.name}"
                told[state, case.name] = default
    return told
