"""From a generator to a table and a plot, in one command: `python examples/orders.py`.

It starts a node of its own, writes orders to a topic, runs the pipeline of orders.toml (a table, a search
index, a topic of large orders), asks the table with SQL and the index for words, and leaves a page with a
plot. Everything it makes lies in one folder.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import tantivy

from chronik.cli.client import print_table
from chronik.cli.pipeline_plot import bar
from chronik.client import Cluster as Client
from chronik.client import Producer
from chronik.spark.jobs.index import read_manifest
from chronik.spark.jobs.plots import Part, bars, lines, table, write_report
from chronik.testing import Cluster

HERE = Path(__file__).parent
COUNTRIES = ("at", "br", "de", "fr", "jp", "us")
ITEMS = ("green tea", "black tea", "coffee beans", "cocoa", "oat milk", "honey")
BEGIN = datetime.datetime(2025, 1, 6, 9, tzinfo=datetime.UTC)


def orders(count: int) -> Iterator[bytes]:
    """Half an hour of orders with amounts in euros, the same every time; one in a thousand is broken."""
    source = random.Random(7)
    for number in range(count):
        at = BEGIN + datetime.timedelta(minutes=30) * (number / count)
        order = {
            "id": number,
            "customer": f"c{source.randrange(500):03d}",
            "country": source.choices(COUNTRIES, (1, 2, 5, 3, 4, 6))[0],
            "item": source.choice(ITEMS),
            "amount": round(source.expovariate(1 / 120), 2),
            "at": at.isoformat(),
        }
        text = json.dumps(order)
        yield (text[:-20] if number % 1000 == 999 else text).encode()


async def generate(bootstrap: str, count: int) -> None:
    async with Client(bootstrap) as client, Producer(client) as producer:
        sent = [await producer.send("orders", value) for value in orders(count)]
        await asyncio.gather(*sent)


def run_pipeline(bootstrap: str, folder: Path) -> None:
    shutil.copy(HERE / "orders.toml", folder)
    command = [sys.executable, "-c", "from chronik.cli import main; main()", "pipeline", "run"]
    subprocess.run([*command, "orders.toml", "--bootstrap", bootstrap], cwd=folder, check=True)


def ask_table(folder: Path) -> list[tuple[Any, ...]]:
    """Orders and amount by country, from the Parquet table."""
    query = """
        select country, count(*) as orders, round(sum(amount), 2) as amount
        from read_parquet(?) group by country order by amount desc
    """
    return duckdb.execute(query, [f"{folder}/orders/*.parquet"]).fetchall()


def ask_index(folder: Path, words: str) -> tuple[int, list[str]]:
    """How many orders have these words, and three of them."""
    root = folder / "index" / "search"
    manifest = read_manifest(root)
    if manifest is None:
        raise SystemExit("the pipeline made no index")
    opened = tantivy.Index.open(str(root / manifest.path))
    searcher = opened.searcher()
    found: Any = searcher.search(opened.parse_query(words, ["_text"]), 3)
    texts = [bytes(searcher.doc(address)["_value"][0]).decode() for _, address in found.hits]
    return int(found.count or 0), texts


def ask_rejected(folder: Path) -> tuple[int, list[tuple[Any, ...]]]:
    """How many rows were rejected, and the first ten."""
    source = f"read_parquet('{folder}/rejected/*.parquet')"
    (count,) = duckdb.execute(f"select count(*) from {source}").fetchall()[0]
    query = f'select partition, "offset", reason, text from {source} order by 1, 2 limit 10'
    return count, duckdb.execute(query).fetchall()


def write_page(
    folder: Path, by_country: list[tuple[Any, ...]], rejected: tuple[int, list[tuple[Any, ...]]]
) -> list[Path]:
    query = """
        select country, epoch(date_trunc('minute', "at")) as minute, count(*) from read_parquet(?)
        group by all order by minute
    """
    series: dict[str, list[tuple[float, float]]] = {}
    for country, minute, count in duckdb.execute(query, [f"{folder}/orders/*.parquet"]).fetchall():
        series.setdefault(country, []).append((minute, count))
    count, shown = rejected
    body: list[Part] = [
        lines("Orders by minute", "orders per minute", dict(sorted(series.items()))),
        bars("Amount by country", "amount (EUR)", [(row[0], row[2], "#2b6cb0") for row in by_country]),
        table(["country", "#orders", "#amount (EUR)"], by_country),
        f"<h2>Rejected orders: {count:,}</h2>",
        f"<p>The first {len(shown)} of them.</p>" if count > len(shown) else "",
        table(["#partition", "#offset", "reason", "text"], shown),
    ]
    return write_report(folder / "orders.html", "Orders", body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--folder", type=Path, default=Path("build/example-orders"))
    given = parser.parse_args()
    folder: Path = given.folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with Cluster(1, can_partition=False) as cluster:
        for topic in ("orders", "large-orders"):
            cluster.create_topic(topic, partitions=3, replication_factor=1)
        print(f"writing {given.records:,} orders to topic orders at {cluster.bootstrap}", flush=True)
        asyncio.run(generate(cluster.bootstrap, given.records))
        run_pipeline(cluster.bootstrap, folder)
    by_country = ask_table(folder)
    most = max(row[2] for row in by_country)
    print_table(
        ["country", "#orders", "#amount", ""],
        [[row[0], f"{row[1]:,}", f"{row[2]:,.2f}", bar(row[2], most)] for row in by_country],
        title="orders by country (SQL on the table)",
    )
    words = 'json.item:"green tea" AND json.country:de'
    count, texts = ask_index(folder, words)
    print(f"{count:,} orders match {words} (search index); three of them:")
    for text in texts:
        print(f"  {text}")
    rejected = ask_rejected(folder)
    print_table(
        ["#partition", "#offset", "reason"],
        [list(row[:3]) for row in rejected[1]],
        title=f"rejected orders: {rejected[0]:,}, the first {len(rejected[1])} of them",
    )
    page, *plots = write_page(folder, by_country, rejected)
    print(f"The report is in {page}, its plots in {', '.join(plot.name for plot in plots)}")


if __name__ == "__main__":
    main()
