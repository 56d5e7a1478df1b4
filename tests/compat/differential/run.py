"""Asks both sides the same, one request at a time, and collects where the answers differ."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from chronik.wire.api import ApiKey
from chronik.wire.schema import schema_versions
from tests.compat.differential.cases import Case, cases_of
from tests.compat.differential.compare import Difference, Leaves, compare, leaves
from tests.compat.differential.world import World
from tests.wire import Closed, WireClient

CLOSED = "<connection closed>"
SILENT = "<no answer>"


@dataclass
class Compared:
    """How often one API was asked."""

    versions: tuple[int, int]
    requests: int = 0
    differing: int = 0
    """Requests with at least one difference."""


@dataclass
class Result:
    compared: dict[str, Compared] = field(default_factory=dict)
    found: list[Difference] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return sum(one.requests for one in self.compared.values())

    @property
    def differing(self) -> int:
        return sum(one.differing for one in self.compared.values())


def differences(kafka_port: int, chronik_port: int) -> Result:
    kafka, chronik = (World(WireClient(port)) for port in (kafka_port, chronik_port))
    for world in (kafka, chronik):
        world.set_up()
    result = Result()
    for api_key in sorted(kafka.versions.keys() & chronik.versions.keys()):
        low = max(kafka.versions[api_key][0], chronik.versions[api_key][0], schema_versions(api_key)[0])
        high = min(kafka.versions[api_key][1], chronik.versions[api_key][1])
        compared = result.compared[api_key.name] = Compared((low, high))
        for version in range(low, high + 1):
            for case in cases_of(api_key, version):
                found = [
                    Difference(api_key.name, version, case.name, *one)
                    for one in compare(
                        _answer(kafka, api_key, version, case), _answer(chronik, api_key, version, case)
                    )
                ]
                compared.requests += 1
                compared.differing += bool(found)
                result.found += found
    return result


def _answer(world: World, api_key: ApiKey, version: int, case: Case) -> Leaves:
    world.begin(api_key, version)
    try:
        answer: Any = world.client.ask(api_key, version, case.make(world))
    except Closed:
        return {"": CLOSED}
    except TimeoutError:
        return {"": SILENT}
    return leaves(answer, world.topic_ids)
