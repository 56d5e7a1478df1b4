"""What search, SQL and HTTP cost and take (`make bench-query`), and whether their answers equal a full read.

One node with its query process; three for topics. Figures count on a machine that does nothing else; ratios
come from rounds by turns. `--scale 0.02` runs everything on a fiftieth of the records.

Guards S05.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from bench.bars import end, unmeasured, verdict
from bench.compare import RESULTS, in_turn
from chronik.admin.peers import request_json
from chronik.testing import Cluster
from tests.process import cpu_seconds
from tests.query.conftest import QueryNode, Refused
from tests.query.load import delete_before, orders

Figures = dict[str, float]

AIMS = {
    "produce with indexing on / off": ">= 0.9",
    "all records searchable after the last produce, s": "< 2",
    "the last of them found by its number after the last produce, s": "< 2",
    "totals that differ from a scan while the index is behind": "0",
    "a lone record searchable after its produce, ms": "< 2000",
    "search, p50 ms": "< 20",
    "search totals that differ from a scan": "0",
    "SQL figures that differ from a full read": "0",
    "produce p99 beside a runaway query / alone": "<= 1.5",
    "topic seen on all nodes, p50 ms": "< 100",
    "100 topics at once seen on all nodes, s": "< 1",
}
"""The first is S05."""
ALL: dict[str, Any] = {"match_all": {}}
PAIRS = 5
ROUNDS = 3
SEARCHES = 100
PINGS = 1000
RATES = (300_000, 250_000, 200_000, 150_000, 125_000, 100_000, 75_000, 50_000)
SOON_S = 2.0
WAIT_S = 600


def lines(count: int, start: int = 0) -> list[bytes]:
    return [json.dumps(value).encode() for value in orders(count, start)]


def send(node: QueryNode, topic: str, values: list[bytes], rate: float = 0.0) -> float:
    """Seconds until everything is acknowledged; as fast as it goes, or `rate` records a second."""
    config = {"bootstrap.servers": node.bootstrap, "acks": "all", "linger.ms": 5, "compression.type": "none"}
    producer = Producer({**config, "queue.buffering.max.messages": 200_000})
    failed: list[Any] = []

    def done(error: Any, _message: Any) -> None:
        if error is not None:
            failed.append(error)

    began = time.perf_counter()
    for number, value in enumerate(values):
        while True:
            try:
                producer.produce(topic, value, on_delivery=done)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
        if rate and number % 1000 == 999:
            time.sleep(max(0.0, began + (number + 1) / rate - time.perf_counter()))
    left = producer.flush(WAIT_S)
    seconds = time.perf_counter() - began
    if left or failed:
        raise SystemExit(f"{left + len(failed)} records were not acknowledged")
    return seconds


def until(what: str, condition: Callable[[], bool], look_s: float = 0.1) -> float:
    """Seconds until then. Looks cost the process that is looked at, so there are few."""
    began = time.perf_counter()
    while not condition():
        if time.perf_counter() - began > WAIT_S:
            raise SystemExit(f"{what} did not happen within {WAIT_S} s")
        time.sleep(look_s)
    return time.perf_counter() - began


def found(node: QueryNode, topic: str, query: Any = ALL) -> int:
    answer = node.http("POST", f"/{topic}/_search", {"query": query, "size": 0})
    return int(answer["hits"]["total"]["value"]) if not answer["_shards"]["failed"] else -1


def index_lag(node: QueryNode) -> int:
    return int(node.metric("chronik_index_lag_records"))


def _has(node: QueryNode, topic: str, total: int, query: Any = ALL) -> bool:
    return found(node, topic, query) == total


def indexing(node: QueryNode, scale: float) -> Iterator[tuple[str, float]]:
    """Produce to a searchable topic and to another, in pairs, each begun with an index that is at rest."""
    values = lines(int(600_000 * scale))
    rates: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(PAIRS):
        for is_on in in_turn((True, False), pair):
            topic = f"pair-{pair}-{is_on}".lower()
            node.create(topic, 1, searchable=is_on)
            if is_on:
                until("the index", partial(_has, node, topic, 0))
            until("the rest of the query process", partial(_is_at_rest, node), look_s=0.3)
            rates[is_on].append(len(values) / send(node, topic, values))
            until("the index", lambda: index_lag(node) == 0)
    ratios = [on / off for on, off in zip(rates[True], rates[False], strict=True)]
    yield "produce with indexing on, records/s", statistics.median(rates[True])
    yield "produce with indexing off, records/s", statistics.median(rates[False])
    yield "produce with indexing on / off", statistics.median(ratios)
    yield "produce with indexing on / off, lowest pair", min(ratios)


def _is_at_rest(node: QueryNode) -> bool:
    """Segments are merged after a commit, by threads of the index's own."""
    pid = node.child_pid()
    if pid is None:
        return True
    before = cpu_seconds(pid)
    time.sleep(0.3)
    return cpu_seconds(pid) - before < 0.05


def searching(node: QueryNode, scale: float) -> Iterator[tuple[str, float]]:
    count = int(1_000_000 * scale)
    node.create("orders", 3, searchable=True)
    until("the index", lambda: found(node, "orders") == 0)
    seconds = send(node, "orders", lines(count))
    yield "JSON records produced, records/s", count / seconds
    behind = until("all records", lambda: found(node, "orders") == count)
    yield "all records searchable after the last produce, s", behind
    began = time.perf_counter()
    until("the last record", partial(_has, node, "orders", 1, {"term": {"id": count - 1}}), 0.01)
    last = behind + time.perf_counter() - began
    yield "the last of them found by its number after the last produce, s", last
    few = [
        {"terms": {"id": [count // 4, count // 2, count - 1]}},
        {"query_string": {"query": f"id:{count // 3}"}},
    ]
    wrong, times, began_behind = 0, [], index_lag(node)
    yield "records not yet indexed then", began_behind
    for query, total in zip([ALL, *few], (count, 3, 1), strict=True):
        at = time.perf_counter()
        wrong += not _has(node, "orders", total, query)
        times.append((time.perf_counter() - at) * 1000)
    yield "totals that differ from a scan while the index is behind", float(wrong)
    yield "search while the index is behind, p50 ms", statistics.median(times)
    until("the index", lambda: index_lag(node) == 0)
    yield "all records indexed after the last produce, s", behind + time.perf_counter() - began
    yield "records indexed, records/s", count / (seconds + behind + time.perf_counter() - began)
    lone = []
    for number in range(5):
        send(node, "orders", lines(1, count + number))
        query = {"term": {"id": count + number}}
        lone.append(until("a record", partial(_has, node, "orders", 1, query), 0.01) * 1000)
    until("the index", lambda: index_lag(node) == 0)
    yield "a lone record searchable after its produce, ms", statistics.median(lone)
    values = list(orders(count + 5))
    questions: list[tuple[Any, int]] = [
        (ALL, len(values)),
        ({"term": {"customer": "ada"}}, sum(one["customer"] == "ada" for one in values)),
        ({"range": {"total": {"gte": 100, "lt": 200}}}, sum(100 <= one["total"] < 200 for one in values)),
        ({"match_phrase": {"note": "express delivery"}}, sum("express" in one["note"] for one in values)),
        (
            {"query_string": {"query": "customer:grace AND total:>200"}},
            sum(one["customer"] == "grace" and one["total"] > 200 for one in values),
        ),
        ({"term": {"id": count // 2}}, 1),
    ]
    yield (
        "search totals that differ from a scan",
        float(sum(found(node, "orders", query) != total for query, total in questions)),
    )
    times = []
    for number in range(SEARCHES):
        body = {"query": questions[number % len(questions)][0], "size": 10}
        began = time.perf_counter()
        node.http("POST", "/orders/_search", body)
        times.append((time.perf_counter() - began) * 1000)
    yield "search, p50 ms", statistics.median(times)
    yield "search, p99 ms", statistics.quantiles(times, n=100)[98]


def steady(node: QueryNode, scale: float) -> Iterator[tuple[str, float]]:
    """The highest of these rates at which a million records can all be found soon after the last of them."""
    values = lines(int(1_000_000 * scale))
    for number, rate in enumerate(RATES):
        topic = f"steady-{number}"
        node.create(topic, 3, searchable=True)
        until("the index", partial(_has, node, topic, 0))
        seconds = send(node, topic, values, rate)
        until("all records", partial(_has, node, topic, len(values)))
        behind = until("the index", lambda: index_lag(node) == 0)
        yield f"all records indexed after the last at {rate:,}/s, s", behind
        if behind < SOON_S:
            yield f"rate at which that takes less than {SOON_S:g} s, records/s", len(values) / seconds
            break


def sql(node: QueryNode, scale: float) -> Iterator[tuple[str, float]]:
    """Half of it archived, a quarter of it only there, the rest in the log."""
    half = int(5_000_000 * scale)
    node.create("ledger", 2)
    for start in range(0, half, 500_000):
        send(node, "ledger", lines(min(500_000, half - start), start))
    folder = str(node.settings["archive_dir"])
    command = [sys.executable, "-c", "from chronik.cli import main; main()", "pipeline", "archive", "ledger"]
    began = time.perf_counter()
    subprocess.run(
        [*command, "--to", folder, "--bootstrap", node.bootstrap],
        check=True,
        env=node.environment(),
        capture_output=True,
    )
    yield "archived, records/s (Spark's start included)", half / (time.perf_counter() - began)
    for start in range(half, 2 * half, 500_000):
        send(node, "ledger", lines(min(500_000, 2 * half - start), start))
    delete_before(node.bootstrap, "ledger", half // 4, 2)
    expected = [2 * half, sum(range(2 * half)), sum(value["total"] for value in orders(2 * half))]
    query = {"query": "SELECT count(*), sum(id), sum(total) FROM ledger", "timeout_ms": 3_600_000}
    for name in ("first", "again"):
        began = time.perf_counter()
        row = node.http("POST", "/_sql", query)["rows"][0]
        yield f"SQL counts and sums over {2 * half:,}, {name}, s", time.perf_counter() - began
    yield (
        "SQL figures that differ from a full read",
        float(sum(abs(a - b) > 1e-6 * abs(b) for a, b in zip(row, expected, strict=True))),
    )


def ping(node: QueryNode, count: int) -> list[float]:
    """Milliseconds of single records with acks=all, one after the other."""
    config = {"bootstrap.servers": node.bootstrap, "acks": "all", "linger.ms": 0}
    producer = Producer(config)
    times = []
    for _ in range(count):
        began = time.perf_counter()
        producer.produce("pings", b"x" * 100)
        producer.flush(WAIT_S)
        times.append((time.perf_counter() - began) * 1000)
    return times


def runaway(node: QueryNode, scale: float) -> Iterator[tuple[str, float]]:
    """Single records with and without a query that would never end, by turns."""
    node.create("pings")
    count = max(100, int(PINGS * scale))
    ping(node, count)
    times: dict[bool, list[float]] = {True: [], False: []}
    stopped = 0
    for number in range(2 * ROUNDS):
        running: threading.Thread | None = None
        done = threading.Event()
        if number % 2:
            running = threading.Thread(target=_run_away, args=(node, done))
            running.start()
        times[number % 2 == 1] += ping(node, count)
        done.set()
        if running is not None:
            running.join()
            stopped += 1
    alone, beside = (statistics.quantiles(times[each], n=100)[98] for each in (False, True))
    yield "produce p99 alone, ms", alone
    yield "produce p99 beside a runaway query, ms", beside
    yield "produce p99 beside a runaway query / alone", beside / alone


def _run_away(node: QueryNode, done: threading.Event) -> None:
    while not done.is_set():
        try:
            node.sql("SELECT count(*) FROM range(10000000000) a, range(1000) b", timeout_ms=2000)
        except Refused as error:
            if error.code != "query_timed_out":
                raise


def topics(_node: QueryNode, scale: float) -> Iterator[tuple[str, float]]:
    with Cluster(3, can_partition=False) as cluster:
        places = [cluster.layout.node(each).peer.http for each in cluster.nodes]

        async def call(number: int, method: str, path: str, body: object = None) -> Any:
            place = places[number % 3]
            assert place is not None
            assert place.port is not None
            data = None if body is None else json.dumps(body).encode()
            status, answer = await request_json(place.host, place.port, method, path, data, {})
            if status != 200:
                raise SystemExit(f"{method} {path}: {status} {answer}")
            return answer

        async def seen(names: set[str]) -> None:
            for number in range(3):
                while not names <= {one["name"] for one in await call(number, "GET", "/admin/topics")}:
                    pass

        async def one(number: int) -> float:
            began = time.perf_counter()
            await call(number, "POST", "/admin/create-topic", {"name": f"one-{number}"})
            await seen({f"one-{number}"})
            return (time.perf_counter() - began) * 1000

        async def many() -> float:
            began = time.perf_counter()
            await asyncio.gather(
                *(call(n, "POST", "/admin/create-topic", {"name": f"many-{n}"}) for n in range(100))
            )
            await seen({f"many-{n}" for n in range(100)})
            return time.perf_counter() - began

        async def main() -> tuple[float, float]:
            singles = [await one(number) for number in range(max(3, int(30 * scale)))]
            return statistics.median(singles), await many()

        single, hundred = asyncio.run(main())
        yield "topic seen on all nodes, p50 ms", single
        yield "100 topics at once seen on all nodes, s", hundred


LOADS: dict[str, Callable[[QueryNode, float], Iterator[tuple[str, float]]]] = {
    "indexing": indexing,
    "searching": searching,
    "steady": steady,
    "runaway": runaway,
    "topics": topics,
    "sql": sql,
}


def is_missed(figure: str, value: float) -> bool:
    return figure in AIMS and verdict(AIMS[figure], value) is False


def table(figures: Figures) -> Table:
    out = Table(title="search, SQL and HTTP")
    out.add_column("figure")
    for heading in ("value", "aim"):
        out.add_column(heading, justify="right")
    for figure, value in figures.items():
        aim = AIMS.get(figure, "")
        reached = verdict(aim, value, None) if aim else None
        style = "" if reached is None else "green" if reached else "red"
        out.add_row(figure, f"{value:,.{0 if value >= 100 else 2}f}", aim, style=style)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full length (1.0)")
    parser.add_argument("--load", default="", help="only the loads whose name contains this")
    options = parser.parse_args()
    console = Console()
    figures: Figures = {}
    for name, load in LOADS.items():
        if options.load not in name:
            continue
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            place = Path(folder)
            node = QueryNode(place, archive_dir=place / "archive", sql_timeout_ms=3_600_000)
            with node:
                for figure, value in load(node, options.scale):
                    figures[figure] = value
                    console.print(f"[dim]{name}: {figure} {value:,.2f}[/dim]")
    console.print(table(figures))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "query.json").write_text(json.dumps(figures, indent=2) + "\n")
    missed = [f"{one} {AIMS[one]}" for one, value in figures.items() if is_missed(one, value)]
    return end(console, missed + ([] if options.load else unmeasured(AIMS, figures)))


if __name__ == "__main__":
    sys.exit(main())
