"""HTTP is no way around quotas: who wrote, read or created too much has to come back later."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from chronik.admin.endpoint import HttpAccess
from chronik.admin.errors import HttpError
from chronik.admin.http_quotas import UNDER_WAY_MAX, HttpQuotas
from chronik.admin.routes import ENDPOINTS
from chronik.metadata.commands import PutCredential, SetQuota
from chronik.node import Node
from chronik.security.quotas import CONSUMER_RATE, MUTATION_RATE, PRODUCER_RATE, REQUEST_SHARE, Quotas
from chronik.security.scram import MECHANISMS, make_credential
from tests.unit.admin.support import Answer, Http, with_node

KEY = {"x-api-key": "the key"}
LARGE = {"value": "x" * 10_000}
CLOSED: dict[str, Any] = {
    "authorizer": True,
    "super_users": "User:ada;User:eve",
    "admin_api_key": "the key",
}
MESSAGES = "/admin/topics/orders/messages"
SQL = {"query": "SELECT * FROM orders", "format": "json"}
RATES = {PRODUCER_RATE: 100.0, CONSUMER_RATE: 100.0, MUTATION_RATE: 0.1}


def basic(user: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{user}:a password".encode()).decode()}


async def limited(node: Node, http: Http, values: dict[str, float]) -> None:
    submit = node.parts.metadata.submit
    for user in ("ada", "eve"):
        credential = make_credential(MECHANISMS["SCRAM-SHA-256"], "a password", b"0" * 16, 4096)
        await submit(PutCredential(user=user, credential=credential))
    await http.post("/admin/create-topic", {"name": "orders", "config": {"searchable": True}}, **KEY)
    await http.post(MESSAGES, LARGE, **KEY)
    await submit(SetQuota(entity=(("user", "ada"),), values=values))


async def ask(http: Http, quota: str, number: int, headers: dict[str, str]) -> Answer:
    if quota == PRODUCER_RATE:
        return await http.post(MESSAGES, LARGE, **headers)
    if quota == CONSUMER_RATE:
        return await http.get(MESSAGES, **headers)
    return await http.post("/admin/create-topic", {"name": f"new-{number}", "partitions": 3}, **headers)


@pytest.mark.parametrize("quota", RATES)
def test_who_owes_is_refused_and_told_when_to_come_back(tmp_path: Path, quota: str) -> None:
    async def work(node: Node, http: Http) -> None:
        await limited(node, http, {quota: RATES[quota]})
        assert (await ask(http, quota, 1, basic("ada"))).status == 200
        refused = await ask(http, quota, 2, basic("ada"))
        assert (refused.status, refused.json["code"]) == (429, "throttling_quota_exceeded")
        assert 0 < int(refused.headers["retry-after"]) <= 30
        assert "new-2" not in node.parts.metadata.state.topics
        for number, others in enumerate((basic("eve"), KEY), 3):
            assert (await ask(http, quota, number, others)).status == 200
        for other in RATES.keys() - {quota}:
            assert (await ask(http, other, 5, basic("ada"))).status == 200, "each quota for itself"

    with_node(tmp_path, work, **CLOSED)


def test_the_registry_charges_what_its_process_took(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await limited(node, http, {REQUEST_SHARE: 1.0})
        for _ in range(3):
            assert (await http.get("/subjects", **basic("ada"))).status == 200
        schema = json.dumps({"type": "string", "description": "x" * 20_000})
        body = {"schemaType": "JSON", "schema": schema}
        register = "/subjects/orders-value/versions"
        assert (await http.post(register, body, **basic("ada"))).status == 200
        assert node.parts.services.schemas.judging.processes == 1
        refused = await http.get("/subjects", **basic("ada"))
        assert (refused.status, refused.json["error_code"]) == (429, 429)
        assert int(refused.headers["retry-after"]) >= 1
        assert (await http.get("/subjects", **basic("eve"))).status == 200

    with_node(tmp_path, work, **CLOSED)


async def test_calls_at_once_do_not_all_find_nothing_owed() -> None:
    quotas = HttpQuotas(Quotas({(("user", "ada"),): {CONSUMER_RATE: 1.0}}))
    with contextlib.ExitStack() as held:
        for _ in range(UNDER_WAY_MAX):
            held.enter_context(quotas.one_call("User:ada", CONSUMER_RATE))
        with pytest.raises(HttpError) as refused, quotas.one_call("User:ada", CONSUMER_RATE):
            pass
        assert (refused.value.status, refused.value.headers["retry-after"]) == (429, "1")
        for principal, key in (("User:eve", CONSUMER_RATE), ("User:ada", PRODUCER_RATE), ("User:ada", None)):
            for _ in range(2 * UNDER_WAY_MAX):
                held.enter_context(quotas.one_call(principal, key))
    with quotas.one_call("User:ada", CONSUMER_RATE):
        pass


def test_a_flood_of_reads_gets_few_answers(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await limited(node, http, {CONSUMER_RATE: 100.0})
        assert (await http.get("/session", **basic("ada"))).status == 200  # so that its password is known
        answers = await asyncio.gather(*(http.get(MESSAGES, **basic("ada")) for _ in range(30)))
        assert 1 <= sum(one.status == 200 for one in answers) <= UNDER_WAY_MAX

    with_node(tmp_path, work, **CLOSED)


def test_search_and_sql_are_reads_and_a_deletion_is_a_mutation(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await limited(node, http, {CONSUMER_RATE: 100.0, MUTATION_RATE: 0.1})
        assert (await http.post("/_sql", SQL, **basic("ada"))).status == 200
        for path, body in (("/_sql", SQL), ("/orders/_search", {"query": {"match_all": {}}})):
            assert (await http.post(path, body, **basic("ada"))).status == 429
        wanted = {"name": "three", "partitions": 3}
        assert (await http.post("/admin/create-topic", wanted, **basic("ada"))).status == 200
        refused = await http.call("DELETE", "/admin/topics/orders", headers=basic("ada"))
        assert refused.status == 429
        assert "orders" in node.parts.metadata.state.topics

    with_node(tmp_path, work, **CLOSED)


def test_every_call_that_shows_records_is_charged() -> None:
    for one in ENDPOINTS:
        if not one.path.startswith("/_node/"):  # nodes, for a caller who is charged by the first of them
            assert (one.quota == CONSUMER_RATE) is (one.access is HttpAccess.DATA), one.path
