"""What the doctor says about an object store."""

from __future__ import annotations

import asyncio

from chronik.config import Settings
from chronik.doctor.store import look_at_store
from chronik.testing import free_ports
from tests.s3 import BUCKET


def test_an_object_store_that_cannot_be_reached() -> None:
    port = free_ports(1)[0]
    settings = {
        "object_store": f"s3://{BUCKET}/folder",
        "object_store_endpoint": f"http://127.0.0.1:{port}",
        "object_store_access_key_id": "key",
        "object_store_secret_access_key": "not to be told",
    }
    (found,) = asyncio.run(look_at_store(Settings(**settings)))  # type: ignore[arg-type]
    assert (found.check, found.state) == ("object store", "wrong")
    assert "not to be told" not in f"{found}"
    assert asyncio.run(look_at_store(Settings())) == []
