"""Versions, errors, deadlines: what dispatch promises whatever the handlers do."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from typing import Any

import pytest

from chronik.model import (
    ErrorCode,
    InvariantViolated,
    PeerError,
    RequestError,
    StorageError,
    Unavailable,
)
from chronik.server.dispatch import Call, Reply, RequestContext, handles, handles_hot, reply
from chronik.server.gate import NOTHING
from chronik.server.handlers import all_handlers
from chronik.wire.api import ApiKey, parse_request_header
from chronik.wire.schema import decode_response, encode_request, schema_versions
from tests.unit.server.harness import CONNECTION, Answers, Harness
from tests.unit.wire.test_schema import Generator, load_request_schema, mutated

FETCH = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1, "isolation_level": 0, "topics": []}


def heartbeat_that(raises: BaseException) -> Any:
    @handles(
        ApiKey.HEARTBEAT, versions=(0, 4), needs=NOTHING, unavailable=ErrorCode.coordinator_not_available
    )
    async def heartbeat(request: Any, ctx: RequestContext) -> Reply:
        raise raises

    return heartbeat


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (RequestError(ErrorCode.illegal_generation), ErrorCode.illegal_generation),
        (Unavailable("starting"), ErrorCode.coordinator_not_available),
        (StorageError("disk"), ErrorCode.kafka_storage_error),
        (TimeoutError(), ErrorCode.request_timed_out),
        (KeyError("bug"), ErrorCode.unknown_server_error),
    ],
)
def test_every_exception_has_a_code(raised: Exception, code: ErrorCode) -> None:
    harness = Harness(handlers=[heartbeat_that(raised)])
    for version in range(5):
        assert harness.call(ApiKey.HEARTBEAT, version, group_id="g").error_code == code


def test_a_bug_is_logged_with_its_traceback_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness(handlers=[heartbeat_that(KeyError("secret"))])
    harness.call(ApiKey.HEARTBEAT, 4, group_id="g")
    assert "KeyError" in caplog.text
    assert "HEARTBEAT v4 failed" in caplog.text


def test_a_violated_invariant_is_not_swallowed() -> None:
    with pytest.raises(InvariantViolated):
        Harness(handlers=[heartbeat_that(InvariantViolated("broken"))]).call(ApiKey.HEARTBEAT, 4)


def test_a_deadline_ends_the_handler() -> None:
    @handles(ApiKey.HEARTBEAT, versions=(0, 4), needs=NOTHING, deadline_s=0.01)
    async def stuck(request: Any, ctx: RequestContext) -> Reply:
        await asyncio.Event().wait()
        return reply()

    assert Harness(handlers=[stuck]).call(ApiKey.HEARTBEAT, 0).error_code == ErrorCode.request_timed_out


def test_a_misspelt_reply_field_is_found_in_tests() -> None:
    @handles(ApiKey.HEARTBEAT, versions=(0, 4), needs=NOTHING)
    async def misspelt(request: Any, ctx: RequestContext) -> Reply:
        return reply(eror_code=0)

    assert Harness(handlers=[misspelt]).call(ApiKey.HEARTBEAT, 0).error_code == ErrorCode.unknown_server_error


def test_a_hot_handler_sees_what_it_read_and_answers_by_itself() -> None:
    seen = []

    def reads(frame: memoryview, offset: int, context: RequestContext) -> bytes:
        return bytes(frame[offset:])

    @handles_hot(ApiKey.FETCH, versions=(4, 13), needs=NOTHING, reads=reads)
    def fetch(call: Call[bytes]) -> None:
        seen.append((call.request, call.context.client_id))
        if len(seen) > 1:
            raise KeyError("bug")
        call.responder.respond(None)

    harness = Harness(handlers=[fetch])
    frame = memoryview(encode_request(ApiKey.FETCH, 4, 1, "c", FETCH))[4:]
    header, offset = parse_request_header(frame)
    answers = Answers()
    dispatcher = harness.dispatcher
    call = dispatcher.read(header, frame, offset, CONNECTION, answers)
    call.start(dispatcher)
    assert seen == [(bytes(frame[offset:]), "c")]
    assert answers.frames == [None]
    assert harness.dispatcher.api_ranges == {ApiKey.FETCH: (4, 13)}
    with pytest.raises(PeerError):
        dispatcher.read(header._replace(api_version=3), frame, offset, CONNECTION, answers)
    assert not answers.closed
    call.start(dispatcher)
    assert answers.closed


def test_an_unknown_version_closes_the_connection_except_for_api_versions() -> None:
    harness = Harness()
    with pytest.raises(PeerError):
        harness.frame(encode_request(ApiKey.METADATA, 12, 1, None, {})[:6] + b"\x00\x63" + bytes(20))
    with pytest.raises(PeerError):
        harness.frame(encode_request(ApiKey.VOTE, 0, 1, None, {}))
    frame = encode_request(ApiKey.API_VERSIONS, 4, 5, "x", {"client_software_name": "a"})
    response = harness.frame(frame[:6] + b"\x00\x09" + frame[8:])
    assert response is not None
    correlation_id, body = decode_response(ApiKey.API_VERSIONS, 0, response, 4)
    assert correlation_id == 5
    assert body.error_code == ErrorCode.unsupported_version
    ranges = {key.api_key: (key.min_version, key.max_version) for key in body.api_keys}
    assert ranges[ApiKey.API_VERSIONS] == (0, 4)


def test_two_handlers_for_one_api_are_a_bug() -> None:
    with pytest.raises(InvariantViolated):
        Harness(handlers=[heartbeat_that(KeyError()), heartbeat_that(KeyError())])


def test_versions_without_schema_are_a_bug() -> None:
    @handles(ApiKey.HEARTBEAT, versions=(0, 5), needs=NOTHING)
    async def too_new(request: Any, ctx: RequestContext) -> Reply:
        return reply()

    with pytest.raises(InvariantViolated):
        Harness(handlers=[too_new])


@pytest.mark.parametrize("handler", all_handlers(), ids=lambda handler: handler.api_key.name)
def test_ranges_are_as_wide_as_the_schemas(handler: Any) -> None:
    if handler.hot is None:
        assert handler.versions == schema_versions(handler.api_key)


@pytest.mark.parametrize("handler", all_handlers(), ids=lambda handler: handler.api_key.name)
def test_hostile_requests_are_answered_or_close_the_connection(
    handler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Valid fields of nonsense meaning, and damaged bytes: an answer or a PeerError, never a bug."""
    harness = Harness()
    harness.topic("a")
    harness.replicas.add("a")
    pick = random.Random(7)
    for version in range(handler.versions[0], handler.versions[1] + 1):
        if handler.hot:
            continue
        for round_number in range(12):
            fields = Generator((handler.api_key, version, round_number)).fields(
                load_request_schema(handler.api_key, version)
            )
            frame = encode_request(handler.api_key, version, 42, "test", fields)
            assert harness.frame(frame) is not None
            damaged = mutated(pick, frame)
            try:
                harness.frame(damaged[:4] + frame[4:8] + damaged[8:])
            except PeerError:
                pass
    assert "failed" not in caplog.text


@pytest.mark.parametrize("handler", all_handlers(), ids=lambda handler: handler.api_key.name)
def test_every_failure_can_be_told_in_every_version(handler: Any) -> None:
    """Each handler either has an error code at the top of its response or builds a reply of its own."""
    if handler.hot:
        return

    async def broken(request: Any, ctx: RequestContext) -> Reply:
        raise KeyError("bug")

    harness = Harness(handlers=[dataclasses.replace(handler, function=broken)])
    for version in range(handler.versions[0], handler.versions[1] + 1):
        fields = Generator((handler.api_key, version, 1)).fields(
            load_request_schema(handler.api_key, version)
        )
        response = harness.frame(encode_request(handler.api_key, version, 42, "test", fields))
        assert response is not None
        decode_response(handler.api_key, version, response, 4)
