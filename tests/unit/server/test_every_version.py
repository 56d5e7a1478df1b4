"""Every version of every API that a node offers, through its real port, in kio's own bytes."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from chronik.server.handlers import all_handlers
from chronik.wire.api import ApiKey, is_flexible
from chronik.wire.reading import Cursor, read_entity
from chronik.wire.schema import encode_request, schema_versions
from tests.unit.server.live import live
from tests.wire import Closed, WireClient, filled, zero_of

RANGES = {
    handler.api_key: (max(handler.versions[0], schema_versions(handler.api_key)[0]), handler.versions[1])
    for handler in all_handlers()
}
"""Produce v0 to v2 have no schema in kio: they are refused with an answer of our own."""
SAID = {
    ApiKey.PRODUCE: {"acks": -1},
    ApiKey.API_VERSIONS: {"client_software_name": "a", "client_software_version": "1"},
}
"""Without these a request gets no answer, or is refused before anything is looked at."""


def by_kio(api_key: ApiKey, version: int) -> bytes:
    """A minimal request, its body written by kio."""
    schema = load_request_schema(api_key, version)
    fields = {**filled(schema, zero_of, elements=0), **SAID.get(api_key, {})}
    frame = encode_request(api_key, version, 7, "kio", fields)
    head = 4 + 8 + 2 + len("kio") + (1 if is_flexible(api_key, version) else 0)
    body = io.BytesIO()
    entity_writer(schema)(body, read_entity(schema, Cursor(frame, head, 10)))
    return frame[:head] + body.getvalue()


def answered(port: int) -> list[str]:
    """What went wrong, one line for each version."""
    wrong = []
    client = WireClient(port)
    for api_key, (low, high) in RANGES.items():
        for version in range(low, high + 1):
            problem = _problem(client, api_key, version)
            if problem is not None:
                wrong.append(f"{api_key.name} v{version}: {problem}")
    client.close()
    return wrong


def _problem(client: WireClient, api_key: ApiKey, version: int) -> str | None:
    try:
        answer = client.exchange(by_kio(api_key, version))
    except (Closed, TimeoutError) as error:
        return f"no answer ({error or 'time-out'})"
    schema: Any = load_response_schema(api_key, version)
    head = 4 + (1 if schema.__header_schema__.__version__ == 1 else 0)
    try:
        _, size = entity_reader(schema)(answer[head:], 0)
    except Exception as error:
        return f"kio cannot read the answer: {error!r}"
    return None if size == len(answer) - head else f"{len(answer) - head - size} bytes too many"


@pytest.mark.asyncio
async def test_every_version_is_answered_in_bytes_that_kio_reads(tmp_path: Path) -> None:
    async with live(tmp_path) as running:
        port = running.node.kafka_port
        wrong = await asyncio.to_thread(answered, port)
    assert not wrong, "\n".join(wrong)
    assert sum(high - low + 1 for low, high in RANGES.values()) > 200
