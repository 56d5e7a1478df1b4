"""What the jobs publish, seen through a node: SQL over archive and log as one table, searches of history."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chronik.spark.jobs.archive import ArchiveOptions, archive
from chronik.spark.jobs.compact import CompactOptions, compact
from chronik.spark.jobs.index import IndexOptions, index
from chronik.spark.options import Connect
from tests.query.conftest import QueryNode
from tests.query.load import delete_before, orders, produce, spread

ALL = {"match_all": {}}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("published")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, published: Path) -> Iterator[QueryNode]:
    folders = {"archive_dir": published / "tables", "published_index_dir": published / "indexes"}
    with QueryNode(tmp_path_factory.mktemp("server"), wal_profile="ultra", **folders) as running:
        assert isinstance(running, QueryNode)
        yield running


def test_archive_and_log_are_one_table(server: QueryNode, spark: SparkSession, published: Path) -> None:
    import datetime

    node, topic = server, "orders"
    options = ArchiveOptions(
        connect=Connect(bootstrap=node.bootstrap), folder=str(published / "tables"), include_headers=True
    )
    query = f"SELECT count(*), count(DISTINCT id), sum(id), sum(total), max(id) FROM {topic}"

    def expected(count: int) -> list[list[float]]:
        values = list(orders(count))
        return [[count, count, sum(range(count)), sum(value["total"] for value in values), count - 1]]

    node.create(topic, 2)
    spread(node.bootstrap, topic, 2000, 0)
    assert node.sql(query) == expected(2000)
    archive(spark, topic, options)
    spread(node.bootstrap, topic, 1000, 2000)
    produce(node.bootstrap, topic, [b"no JSON", b'{"id": {"of": "another type"}}'], partition=0)
    # Offsets that both have, offsets that only one has: every record once.
    assert node.sql(f"SELECT count(*) FROM {topic}") == [[3002]]
    plan = node.http("POST", "/_sql/explain", {"query": f"SELECT id FROM {topic}"})["plan"]
    assert "1002 rows in memory" in plan
    archive(spark, topic, options)
    spread(node.bootstrap, topic, 500, 3000)
    delete_before(node.bootstrap, topic, 1500, 2)  # the archive ends right there, but for two bad records
    assert node.sql(f'SELECT count(*), count(DISTINCT (partition, "offset")) FROM {topic}') == [[3502, 3502]]
    good = query + " WHERE customer IS NOT NULL AND TRY_CAST(id AS BIGINT) IS NOT NULL"
    good = good.replace("(id)", "(id::BIGINT)").replace("DISTINCT id", "DISTINCT id::BIGINT")
    assert node.sql(good) == expected(3500)
    bad = f'SELECT value FROM {topic} WHERE customer IS NULL AND "offset" >= 1500 ORDER BY "offset"'
    assert node.sql(bad) == [["no JSON"], ['{"id": {"of": "another type"}}']]
    compact(spark, topic, CompactOptions(folder=str(published / "tables")), datetime.date.today())
    assert node.sql(good) == expected(3500)
    seam = f'SELECT "offset", id::BIGINT FROM {topic} WHERE partition = 1 AND "offset" >= 1498 ORDER BY 1'
    assert node.sql(seam, limit=4) == [[1498, 2997], [1499, 2999], [1500, 3001], [1501, 3003]]
    (table,) = [one for one in node.http("GET", "/_sql/tables")["tables"] if one["name"] == topic]
    assert table["rows"] == 3502
    text = node.sql(f'SELECT value, key FROM {topic} WHERE partition = 0 AND "offset" = 1')
    assert text == [['{"customer":"linus","id":2,"note":"call before delivery","total":0.5}', "k"]]


def test_searches_find_what_only_a_published_index_has(
    server: QueryNode, spark: SparkSession, published: Path
) -> None:
    node, topic = server, "notes"
    options = IndexOptions(connect=Connect(bootstrap=node.bootstrap), folder=str(published / "indexes"))
    node.create(topic, 2, searchable=True)
    spread(node.bootstrap, topic, 1000, 0)
    assert node.total(topic, ALL) == 1000
    index(spark, topic, options)
    spread(node.bootstrap, topic, 200, 1000)
    assert node.total(topic, ALL) == 1200, "what both indexes hold is found once"
    delete_before(node.bootstrap, topic, 300, 2)
    spread(node.bootstrap, topic, 100, 1200)
    assert node.total(topic, ALL) == 1300, "the log and the node's index no longer have all of them"
    ada = sum(value["customer"] == "ada" for value in orders(1300))
    assert node.total(topic, {"term": {"customer": "ada"}}) == ada
    hits = node.search(topic, {"terms": {"id": [0, 1, 650, 1299]}}, sort=[{"id": "asc"}])["hits"]["hits"]
    assert [hit["_source"]["id"] for hit in hits] == [0, 1, 650, 1299]
