"""Every API and version: our codec against kio's, and hostile bytes against our codec."""

from __future__ import annotations

import dataclasses
import datetime
import io
import random
import uuid
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer

from chronik.model import ErrorCode, PeerError
from chronik.wire.api import ApiKey, is_flexible, parse_request_header
from chronik.wire.schema import (
    check_fields,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    in_ms,
    schema_versions,
)
from chronik.wire.shape import FieldShape, shape_of

API_VERSIONS = [(key, version) for key in ApiKey for version in sorted(schema_name_map[api_key_map[key]])]
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Generator:
    """Random but valid field values for a message class."""

    def __init__(self, seed: object, time_ms: int | None = None) -> None:
        """`time_ms`: the value of every time and duration of 64 bits."""
        self.random = random.Random(str(seed))
        self.time_ms = time_ms

    def fields(self, entity: Any) -> dict[str, Any]:
        return {field.name: self.value(field) for field in shape_of(entity)}

    def value(self, field: FieldShape) -> Any:
        nullable_on_wire = field.nullable and field.tag is None
        if nullable_on_wire and self.random.random() < 0.2:
            return None
        if field.is_array:
            sizes = (0, 1, 2) if field.entity is not None else (0, 1, 130)
            return [self.item(field) for _ in range(self.random.choice(sizes))]
        return self.item(field)

    def item(self, field: FieldShape) -> Any:
        if field.entity is not None:
            return self.fields(field.entity)
        pick = self.random
        match field.kafka_type:
            case "datetime_i64" | "timedelta_i64" if self.time_ms is not None:
                return self.time_ms
            case "string":
                return pick.choice(("", "a", "grüße", "x" * 200))
            case "bytes" | "records":
                return pick.randbytes(pick.choice((0, 1, 127, 300)))
            case "bool":
                return pick.random() < 0.5
            case "float64":
                return pick.choice((0.0, -1.5, 1e300))
            case "uuid":
                return uuid.UUID(int=pick.randrange(1, 1 << 128))
            case "error_code":
                return pick.choice(list(ErrorCode))
            case "datetime_i64":
                return pick.randrange(0, 10**9) * 1000
            case "timedelta_i32" | "timedelta_i64":
                return pick.randrange(0, 10**6)
            case "uint16":
                return pick.randrange(0, 1 << 16)
            case kafka_type:
                bits = int(str(kafka_type).removeprefix("int"))
                return pick.choice((0, -1, 7, (1 << (bits - 1)) - 1, -(1 << (bits - 1))))


def comparable(value: Any, given: Any) -> Any:
    """A decoded value in the plain form in which it was given."""
    if dataclasses.is_dataclass(value):
        return {f.name: comparable(getattr(value, f.name), given[f.name]) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [comparable(item, given_item) for item, given_item in zip(value, given, strict=True)]
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // datetime.timedelta(milliseconds=1)
    return value


@pytest.mark.parametrize("api_key", list(ApiKey), ids=lambda key: key.name)
def test_requests_and_responses_agree_with_kio(api_key: ApiKey) -> None:
    for version in sorted(schema_name_map[api_key_map[api_key]]):
        request_type, response_type = (
            load_request_schema(api_key, version),
            load_response_schema(api_key, version),
        )
        for round_number in range(3):
            generator = Generator((api_key, version, round_number))
            request = generator.fields(request_type)
            frame = encode_request(api_key, version, 77, "client", request)
            assert int.from_bytes(frame[:4], "big") == len(frame) - 4
            header, body = parse_request_header(frame, 4)
            assert header == (api_key, version, 77, "client")
            decoded = decode_request(api_key, version, frame, body)
            assert comparable(decoded, request) == request
            assert_kio_agrees(request_type, decoded, frame[body:])

            response = generator.fields(response_type)
            frame = encode_response(api_key, version, -5, response)
            correlation_id, decoded = decode_response(api_key, version, memoryview(frame)[4:])
            assert correlation_id == -5
            assert comparable(decoded, response) == response
            header_size = 4 + (1 if response_type.__header_schema__.__version__ == 1 else 0)
            assert_kio_agrees(response_type, decoded, frame[4 + header_size :])


@pytest.mark.parametrize("api_key", list(ApiKey), ids=lambda key: key.name)
def test_any_time_and_any_duration_can_be_read(api_key: ApiKey) -> None:
    """Python's own types end earlier than 64 bits of milliseconds do."""
    for version in sorted(schema_name_map[api_key_map[api_key]]):
        for milliseconds in (2**63 - 1, -(2**63), 2**62, -(2**55), 253_402_300_800_000, -62_135_596_800_001):
            generator = Generator((api_key, version), milliseconds)
            request = generator.fields(load_request_schema(api_key, version))
            frame = encode_request(api_key, version, 1, None, request)
            decode_request(api_key, version, frame, parse_request_header(frame, 4)[1])
            response = generator.fields(load_response_schema(api_key, version))
            decode_response(api_key, version, encode_response(api_key, version, 1, response), 4)


def test_durations_are_exact() -> None:
    for milliseconds in (*range(3_000), 2**31 - 1, 86_399_999_999_999_999):
        assert in_ms(datetime.timedelta(milliseconds=milliseconds)) == milliseconds


def assert_kio_agrees(entity: Any, decoded: Any, body: bytes) -> None:
    by_kio, size = entity_reader(entity)(body, 0)
    assert size == len(body)
    assert by_kio == decoded
    out = io.BytesIO()
    entity_writer(entity)(out, decoded)
    assert out.getvalue() == body


@pytest.mark.parametrize("api_key", list(ApiKey), ids=lambda key: key.name)
def test_hostile_bytes_raise_peer_error_only(api_key: ApiKey) -> None:
    pick = random.Random(int(api_key))
    for version in sorted(schema_name_map[api_key_map[api_key]]):
        valid = encode_request(
            api_key,
            version,
            1,
            None,
            Generator((api_key, version)).fields(load_request_schema(api_key, version)),
        )
        for _ in range(60):
            for hostile in (noise(pick), mutated(pick, valid)):
                try:
                    header, body = parse_request_header(hostile, 4)
                except PeerError:
                    body, header = 4, None
                for key, tried_version in ((api_key, version), header[:2] if header else (api_key, version)):
                    try:
                        decode_request(key, tried_version, hostile, min(body, len(hostile)))
                    except PeerError:
                        pass


def noise(pick: random.Random) -> bytes:
    size = pick.choice((0, 3, 14, 40, 200))
    return bytes(pick.choice((0, 0, 1, 2, 0x7F, 0xFF, pick.randrange(256))) for _ in range(size))


def mutated(pick: random.Random, valid: bytes) -> bytes:
    data = bytearray(valid)
    for _ in range(pick.randrange(1, 4)):
        if not data:
            break
        at = pick.randrange(len(data))
        match pick.randrange(4):
            case 0:
                data[at] = pick.randrange(256)
            case 1:
                data[at : at + 4] = pick.choice(
                    (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\x00\x00\x00")
                )
            case 2:
                del data[at:]
            case 3:
                data[at:at] = pick.randbytes(3)
    return bytes(data)


def test_a_giant_array_length_is_refused_before_anything_is_allocated() -> None:
    for version, body in ((7, b"\xff\xff\xff\xff\x07"), (4, b"\x7f\xff\xff\xff")):
        with pytest.raises(PeerError, match="array of"):
            decode_request(ApiKey.CREATE_TOPICS, version, body + bytes(100))


def test_the_number_of_elements_is_bounded() -> None:
    frame = encode_request(ApiKey.METADATA, 1, 1, None, {"topics": [{"name": "t"}] * 11})
    body = parse_request_header(frame, 4)[1]
    assert len(decode_request(ApiKey.METADATA, 1, frame, body, elements_max=11).topics) == 11
    with pytest.raises(PeerError, match="too many"):
        decode_request(ApiKey.METADATA, 1, frame, body, elements_max=10)


def test_a_null_array_where_none_is_allowed_is_refused() -> None:
    with pytest.raises(PeerError, match="topics is null"):
        decode_request(ApiKey.CREATE_TOPICS, 2, b"\xff\xff\xff\xff" + bytes(5))


def test_a_version_without_schema_is_refused() -> None:
    with pytest.raises(PeerError, match="no schema"):
        decode_request(ApiKey.METADATA, 99, b"")


def test_flexible_versions_match_the_schemas() -> None:
    for key, version in API_VERSIONS:
        assert is_flexible(key, version) == load_request_schema(key, version).__flexible__, (key, version)


def test_every_schema_has_an_api_key() -> None:
    assert {int(key): key.name.lower() for key in ApiKey} == dict(api_key_map)
    assert schema_versions(ApiKey.METADATA) == (0, 13)


def test_api_versions_responses_keep_the_oldest_header() -> None:
    frame = encode_response(ApiKey.API_VERSIONS, 3, 9, {"error_code": ErrorCode.unsupported_version})
    assert frame[4:10] == b"\x00\x00\x00\x09" + b"\x00\x23"


def test_one_reply_serves_old_and_new_versions() -> None:
    reply = {
        "throttle_time": 5,
        "brokers": [{"node_id": 1, "host": "h", "port": 9092}],
        "cluster_id": "c",
        "topics": [
            {"error_code": ErrorCode.none, "name": "t", "topic_id": uuid.UUID(int=5), "partitions": []}
        ],
    }
    check_fields(ApiKey.METADATA, "response", reply)
    for version in range(14):
        _, response = decode_response(
            ApiKey.METADATA, version, encode_response(ApiKey.METADATA, version, 1, reply), 4
        )
        assert response.topics[0].name == "t"
        assert response.brokers[0].port == 9092
    assert response.topics[0].topic_id == uuid.UUID(int=5)
    assert response.controller_id == -1
    assert response.throttle_time == datetime.timedelta(milliseconds=5)


def test_null_becomes_empty_where_the_version_has_no_null() -> None:
    reply = {"topics": [{"error_code": ErrorCode.unknown_topic_id, "name": None}]}
    for version, name in ((9, ""), (12, None)):
        frame = encode_response(ApiKey.METADATA, version, 1, reply)
        assert decode_response(ApiKey.METADATA, version, frame, 4)[1].topics[0].name == name


def test_a_misspelt_field_is_found() -> None:
    with pytest.raises(ValueError, match=r"topics has no field 'topic_name'"):
        check_fields(ApiKey.METADATA, "response", {"topics": [{"topic_name": "t"}]})
    # Gone from the newest version, yet part of older ones.
    check_fields(ApiKey.METADATA, "response", {"cluster_authorized_operations": 0})


@pytest.mark.parametrize(
    "data", [b"", b"\x00\x03", b"\x00\x03\x00\x0c" + bytes(4) + b"\x00\x05ab", b"\x7f" * 20]
)
def test_a_broken_header_is_a_peer_error(data: bytes) -> None:
    with pytest.raises(PeerError):
        parse_request_header(data)


def test_header_tags_are_passed_over() -> None:
    frame = encode_request(ApiKey.METADATA, 12, 3, "c", {"topics": None})
    cut = 4 + 10 + 1
    tagged = frame[:cut] + b"\x02\x00\x01x\x05\x02yz" + frame[cut + 1 :]
    header, body = parse_request_header(tagged, 4)
    assert header.client_id == "c"
    assert decode_request(ApiKey.METADATA, 12, tagged, body).topics is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_foreign_implementation_agrees() -> None:
    from kafka.protocol.admin import CreateTopicsRequest, CreateTopicsResponse

    topic_type = CreateTopicsRequest.CreatableTopic
    for version in range(2, 8):
        foreign = CreateTopicsRequest(
            topics=[
                topic_type(
                    name="orders",
                    num_partitions=3,
                    replication_factor=-1,
                    assignments=[],
                    configs=[topic_type.CreatableTopicConfig(name="retention.ms", value="5")],
                )
            ],
            timeout_ms=1500,
            validate_only=True,
        )
        ours = decode_request(ApiKey.CREATE_TOPICS, version, foreign.encode(version=version))
        assert (ours.topics[0].name, ours.topics[0].num_partitions) == ("orders", 3)
        assert ours.topics[0].configs[0].value == "5"
        assert (ours.timeout, ours.validate_only) == (datetime.timedelta(milliseconds=1500), True)

        reply = {
            "topics": [{"name": "orders", "error_code": 36, "error_message": "there", "num_partitions": 3}]
        }
        frame = encode_response(ApiKey.CREATE_TOPICS, version, 1, reply)
        body = frame[9:] if is_flexible(ApiKey.CREATE_TOPICS, version) else frame[8:]
        theirs = CreateTopicsResponse.decode(body, version=version)
        assert (theirs.topics[0].name, theirs.topics[0].error_code) == ("orders", 36)
        assert theirs.topics[0].error_message == "there"
