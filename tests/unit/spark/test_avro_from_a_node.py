"""Avro values decoded with schemas of a node's own registry, without Spark (H06)."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql.types import IntegerType, StringType, StructType

from chronik.model import ChronikError
from chronik.node import Node
from chronik.spark.jobs.avro import Referring, decoder, fetch_latest, fetch_schema, record_type
from tests.unit.admin.support import Http, with_node

USER = {"type": "record", "name": "User", "namespace": "a", "fields": [{"name": "id", "type": "int"}]}
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "user", "type": "a.User"}, {"name": "note", "type": "string"}],
}
KEY = "swordfish"


def framed(schema_id: int, schema: Any, datum: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, datum)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


def test_a_schema_and_what_it_refers_to(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        proof = {"authorization": f"Bearer {KEY}"}
        reference = {"name": "a.User", "subject": "a/user", "version": 1}
        order = {"schema": json.dumps(ORDER), "references": [reference]}
        for subject, body in (("a%2Fuser", {"schema": json.dumps(USER)}), ("orders-value", order)):
            made = await http.post(f"/subjects/{subject}/versions", body, **proof)
            assert made.status == 200
        address = f"http://:{KEY}@127.0.0.1:{http.port}/"
        fetched = await asyncio.to_thread(fetch_schema, address, 2)
        assert isinstance(fetched, Referring)
        assert await asyncio.to_thread(fetch_latest, address, "orders") == fetched
        assert await asyncio.to_thread(fetch_schema, address, 9) is None
        assert not isinstance(await asyncio.to_thread(fetch_schema, address, 1), Referring)

        columns = record_type(fetched)
        assert isinstance(columns, StructType)
        user = columns["user"].dataType
        assert isinstance(user, StructType)
        assert (user["id"].dataType, columns["note"].dataType) == (IntegerType(), StringType())
        named: dict[str, Any] = {}
        fastavro.parse_schema(USER, named_schemas=named)
        datum = {"user": {"id": 7}, "note": "gift"}
        value = framed(2, fastavro.parse_schema(ORDER, named_schemas=named), datum)
        text, reason = decoder({2: fetched})(value)
        assert reason is None
        assert json.loads(text or "") == datum

        with pytest.raises(ChronikError, match="answered 401") as refused:
            await asyncio.to_thread(fetch_schema, f"http://:wrong@127.0.0.1:{http.port}", 1)
        assert "wrong" not in str(refused.value)

    with_node(tmp_path, work, admin_api_key=KEY)
