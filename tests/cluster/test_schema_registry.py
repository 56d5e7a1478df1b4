"""The schema registry on three nodes: one answer everywhere, and no id twice when its leader dies (H06)."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from chronik.testing import Cluster

DEADLINE_S = 60
SUBJECTS = 30


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, can_partition=False) as started:
        yield started


def call(cluster: Cluster, node_id: int, method: str, path: str, body: object = None) -> Any:
    http = cluster.layout.node(node_id).peer.http
    assert http is not None
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{http.host}:{http.port}{path}", data, method=method)
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        return json.loads(answer.read())


def schema(name: str) -> dict[str, str]:
    return {"schema": json.dumps({"type": "record", "name": name, "fields": []})}


def test_every_node_answers_alike(cluster: Cluster) -> None:
    for number in range(6):
        node = 1 + number % 3
        made = call(cluster, node, "POST", f"/subjects/s{number}/versions", schema(f"R{number}"))
        assert made == {"id": number + 1}
    assert call(cluster, 2, "PUT", "/config/s1", {"compatibility": "FULL"}) == {"compatibility": "FULL"}
    assert call(cluster, 3, "DELETE", "/subjects/s5") == [1]
    for path in (
        "/schemas?deleted=true",
        "/subjects",
        "/schemas/ids/3",
        "/config/s1",
        "/subjects/s0/versions/latest",
    ):
        answers = [call(cluster, node, "GET", path) for node in cluster.nodes]
        assert answers[0] == answers[1] == answers[2], path
    refusals = []
    for node in cluster.nodes:
        with pytest.raises(urllib.error.HTTPError) as refused:
            call(cluster, node, "GET", "/subjects/none/versions/latest")
        refusals.append((refused.value.code, refused.value.read()))
    assert len(set(refusals)) == 1
    assert json.loads(refusals[0][1])["error_code"] == 40401
    topic = call(cluster, 1, "GET", "/admin/topics/_schemas")
    assert (topic["replication_factor"], topic["configs"]["min.insync.replicas"]) == (3, "2")


def test_no_id_is_given_twice_when_the_leader_dies(cluster: Cluster) -> None:
    """Writers at the other nodes wait while the leader is killed, and no call fails; what was answered is
    there afterwards."""
    call(cluster, 1, "POST", "/subjects/first/versions", schema("First"))
    victim = cluster.leader_of("_schemas")
    others = [node for node in cluster.nodes if node != victim]
    given: dict[str, int] = {}
    failures: list[str] = []
    some_are_made = threading.Event()

    def register(worker: int) -> None:
        for number in range(SUBJECTS):
            name, node = f"s{worker}x{number}", others[number % 2]
            try:
                given[name] = call(cluster, node, "POST", f"/subjects/{name}/versions", schema(name))["id"]
            except (urllib.error.URLError, OSError) as error:
                failures.append(f"{name}: {error}")
            if number == SUBJECTS // 3:
                some_are_made.set()

    workers = [threading.Thread(target=register, args=(worker,)) for worker in range(2)]
    for worker in workers:
        worker.start()
    assert some_are_made.wait(DEADLINE_S)
    cluster.kill(victim)
    for worker in workers:
        worker.join(3 * DEADLINE_S)
    assert failures == []
    assert cluster.leader_of("_schemas") != victim
    ids = list(given.values())
    assert len(ids) == 2 * SUBJECTS
    assert len(set(ids)) == len(ids), "an id stands for two schemas"
    for name, schema_id in given.items():
        found = call(cluster, others[0], "GET", f"/schemas/ids/{schema_id}")
        assert json.loads(found["schema"])["name"] == name

    cluster.start(victim)
    cluster.wait_in_sync(victim)
    answers = [call(cluster, node, "GET", "/schemas") for node in cluster.nodes]
    assert answers[0] == answers[1] == answers[2]
    assert call(cluster, victim, "POST", "/subjects/last/versions", schema("Last"))["id"] > max(ids)
