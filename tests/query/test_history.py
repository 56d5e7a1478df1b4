"""Searches of records that only a published index still has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import tantivy

from chronik.published.documents import CURRENT, FORMAT, FORMAT_FILE, Documents, Manifest, index_schema
from chronik.published.paths import Paths
from tests.query.conftest import QueryNode
from tests.query.load import delete_before, orders, spread

ALL = {"match_all": {}}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[QueryNode]:
    with QueryNode(tmp_path / "node", published_index_dir=tmp_path / "indexes") as server:
        assert isinstance(server, QueryNode)
        server.create("notes", 2, searchable=True)
        yield server


def publish(node: QueryNode, count: int, version: int = 0) -> Path:
    """What the index job makes of the first records of `notes`."""
    root = Path(str(node.settings["published_index_dir"])) / "notes"
    path = root / f"{version:06d}"
    path.mkdir(parents=True)
    writer = tantivy.Index(index_schema(), path=str(path)).writer(16 << 20, 1)
    paths = Paths()
    documents = Documents(writer, paths)
    for n, value in enumerate(orders(count)):
        documents.add(b"k", json.dumps(value).encode(), n % 2, n // 2, 0)
    paths.save(path)
    writer.commit()
    writer.wait_merging_threads()
    (path / FORMAT_FILE).write_text(FORMAT)
    manifest = Manifest(
        format=FORMAT,
        topic="notes",
        topic_id=node.http("GET", "/admin/topics/notes")["topic_id"],
        version=version,
        path=path.name,
        offsets={"0": count // 2, "1": count // 2},
        documents=count,
    )
    (root / CURRENT).write_bytes(msgspec.json.encode(manifest))
    return path


def test_every_record_is_found_once(node: QueryNode) -> None:
    spread(node.bootstrap, "notes", 1000, 0)
    assert node.total("notes", ALL) == 1000
    publish(node, 600)
    assert node.total("notes", ALL) == 1000, "what both indexes hold is found once"
    delete_before(node.bootstrap, "notes", 200, 2)
    spread(node.bootstrap, "notes", 200, 1000)
    assert node.total("notes", ALL) == 1200, "the log and the node's index no longer have all of them"
    publish(node, 1000, version=1)
    delete_before(node.bootstrap, "notes", 450, 2)
    spread(node.bootstrap, "notes", 100, 1200)
    assert node.total("notes", ALL) == 1300, "a newer index is used as soon as it is there"
    ada = sum(value["customer"] == "ada" for value in orders(1300))
    assert node.total("notes", {"term": {"customer": "ada"}}) == ada
    found = node.search("notes", {"terms": {"id": [1299, 650, 1, 0]}}, sort=[{"id": "asc"}])["hits"]["hits"]
    assert [hit["_source"]["id"] for hit in found] == [0, 1, 650, 1299]
    node.stop()
    node.start()
    assert node.total("notes", ALL) == 1300


def test_it_is_all_there_is_without_real_time_indexing(node: QueryNode) -> None:
    spread(node.bootstrap, "notes", 1000, 0)
    path = publish(node, 600)
    node.stop()
    node.settings["disable_realtime_index"] = True
    node.start()
    answer = node.search("notes", ALL)
    assert (answer["hits"]["total"]["value"], answer["lag"]) == (600, 400)
    for file in path.glob("*.store"):
        file.write_bytes(file.read_bytes()[:-20] + bytes(20))
    node.stop()
    node.start()
    answer = node.search("notes", ALL)
    assert answer["_shards"]["failed"] == 2
    assert answer["hits"]["total"] == {"value": 0, "relation": "gte"}
    assert "published index is damaged" in answer["_shards"]["failures"][0]["reason"]


def test_an_index_of_a_deleted_topic_is_not_used(node: QueryNode) -> None:
    spread(node.bootstrap, "notes", 100, 0)
    publish(node, 100)
    node.http("DELETE", "/admin/topics/notes")
    node.create("notes", 2, searchable=True)
    spread(node.bootstrap, "notes", 10, 0)
    delete_before(node.bootstrap, "notes", 2, 2)
    spread(node.bootstrap, "notes", 10, 10)
    assert node.total("notes", ALL) == 16
