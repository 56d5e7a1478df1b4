"""confluent-kafka's schema registry client and its serializers, against a node's HTTP port (H06)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from tests.node import ChronikNode

DEADLINE_S = 60
AVRO = json.dumps({"type": "record", "name": "User", "fields": [{"name": "name", "type": "string"}]})
WIDER = json.dumps(
    {
        "type": "record",
        "name": "User",
        "fields": [{"name": "name", "type": "string"}, {"name": "age", "type": "int", "default": 0}],
    }
)
NARROWER = json.dumps({"type": "record", "name": "User", "fields": [{"name": "age", "type": "int"}]})
JSON_SCHEMA = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "User",
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
        "additionalProperties": False,
    }
)


@pytest.fixture
def node(broker: Any) -> ChronikNode:
    if not isinstance(broker, ChronikNode):
        pytest.skip("about chronik alone")
    return broker


@pytest.fixture
def registry(node: ChronikNode) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": f"http://127.0.0.1:{node.settings['http_port']}"})


def through_the_log(
    node: ChronikNode, topic: str, value: Any, serialize: Callable[..., Any], deserialize: Callable[..., Any]
) -> Any:
    """Produce a value by a serializer, consume it by a deserializer."""
    context = SerializationContext(topic, MessageField.VALUE)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    producer.produce(topic, serialize(value, context))
    assert producer.flush(DEADLINE_S) == 0
    consumer = Consumer(
        {"bootstrap.servers": node.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        while (message := consumer.poll(DEADLINE_S)) is not None:
            if message.error() is None:
                return deserialize(message.value(), context)
            assert message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    finally:
        consumer.close()
    raise AssertionError("no message came")


def test_avro(node: ChronikNode, registry: SchemaRegistryClient, topic: str) -> None:
    serializer = AvroSerializer(registry, AVRO)
    fresh = SchemaRegistryClient({"url": f"http://127.0.0.1:{node.settings['http_port']}"})
    value = {"name": "Ada"}
    assert through_the_log(node, topic, value, serializer, AvroDeserializer(fresh)) == value
    evolved = AvroDeserializer(fresh, WIDER)
    assert through_the_log(node, f"{topic}-2", value, serializer, evolved) == {"name": "Ada", "age": 0}


def test_json(node: ChronikNode, registry: SchemaRegistryClient, topic: str) -> None:
    serializer = JSONSerializer(JSON_SCHEMA, registry)
    deserializer = JSONDeserializer(None, schema_registry_client=registry)
    assert through_the_log(node, topic, {"name": "Ada"}, serializer, deserializer) == {"name": "Ada"}


def message_types(package: str) -> tuple[Any, Any]:
    """Two messages in two files, of which one imports the other from a folder."""
    inner = descriptor_pb2.FileDescriptorProto(
        name=f"{package}/inner.proto", package=package, syntax="proto3"
    )
    street = inner.message_type.add(name="Address").field.add(name="street", number=1, label=1, type=9)
    assert street.name == "street"
    outer = descriptor_pb2.FileDescriptorProto(
        name=f"{package}/outer.proto", package=package, syntax="proto3"
    )
    outer.dependency.extend([inner.name, "google/protobuf/timestamp.proto"])
    user = outer.message_type.add(name="User")
    user.field.add(name="name", number=1, label=1, type=9)
    user.field.add(name="address", number=2, label=1, type=11, type_name=f".{package}.Address")
    user.field.add(name="at", number=3, label=1, type=11, type_name=".google.protobuf.Timestamp")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    for file in (inner, outer):
        pool.Add(file)
    found = (pool.FindMessageTypeByName(f"{package}.{name}") for name in ("User", "Address"))
    user_type, address_type = (message_factory.GetMessageClass(one) for one in found)
    return user_type, address_type


def test_protobuf_with_an_import(node: ChronikNode, registry: SchemaRegistryClient, topic: str) -> None:
    package = topic.replace("-", "_")
    user_type, address_type = message_types(package)
    user = user_type(name="Ada", address=address_type(street="Long Lane"))
    user.at.seconds = 7
    serializer = ProtobufSerializer(user_type, registry, {"use.deprecated.format": False})
    deserializer = ProtobufDeserializer(user_type, {"use.deprecated.format": False}, registry)
    assert through_the_log(node, topic, user, serializer, deserializer) == user
    again = ProtobufSerializer(user_type, registry, {"auto.register.schemas": False})
    assert again(user, SerializationContext(topic, MessageField.VALUE))
    found = registry.get_latest_version(f"{topic}-value")
    assert [one.name for one in found.schema.references] == [f"{package}/inner.proto"]
    assert "message User" in found.schema.schema_str


def test_the_client_sees_what_it_registered(registry: SchemaRegistryClient, topic: str) -> None:
    first = registry.register_schema(topic, Schema(AVRO, "AVRO"))
    assert registry.register_schema(topic, Schema(AVRO, "AVRO"), normalize_schemas=True) == first
    assert registry.test_compatibility(topic, Schema(WIDER, "AVRO"))
    assert not registry.test_compatibility(topic, Schema(NARROWER, "AVRO"))
    second = registry.register_schema(topic, Schema(WIDER, "AVRO"))
    assert second > first
    assert json.loads(str(registry.get_schema(second).schema_str)) == json.loads(WIDER)
    assert registry.get_versions(topic) == [1, 2]
    assert registry.get_latest_version(topic).schema_id == second
    assert registry.get_version(topic, 1).schema_id == first
    assert registry.lookup_schema(topic, Schema(AVRO, "AVRO")).version == 1
    assert topic in registry.get_subjects()
    assert registry.set_compatibility(topic, "FULL")["compatibility"] == "FULL"
    assert registry.get_compatibility(topic) == "FULL"
    assert registry.delete_version(topic, 1) == 1
    assert registry.delete_subject(topic) == [2]
    assert registry.delete_subject(topic, permanent=True) == [1, 2]
    assert topic not in registry.get_subjects()


def test_refusals_have_confluents_codes(registry: SchemaRegistryClient, topic: str) -> None:
    registry.register_schema(topic, Schema(AVRO, "AVRO"))
    for work, status, code in (
        (lambda: registry.register_schema(topic, Schema(NARROWER, "AVRO")), 409, 409),
        (lambda: registry.register_schema(topic, Schema("{", "AVRO")), 422, 42201),
        (lambda: registry.get_schema(1_000_000), 404, 40403),
        (lambda: registry.get_latest_version("nobody's"), 404, 40401),
        (lambda: registry.get_version(topic, 9), 404, 40402),
        (lambda: registry.get_compatibility(topic), 404, 40408),
        (lambda: registry.set_compatibility(topic, "SOMETIMES"), 422, 42203),
    ):
        with pytest.raises(SchemaRegistryError) as refused:
            work()
        assert (refused.value.http_status_code, refused.value.error_code) == (status, code)


def test_references_by_the_client(registry: SchemaRegistryClient, topic: str) -> None:
    registry.register_schema(topic, Schema(AVRO, "AVRO"))
    order = {"type": "record", "name": "Order", "fields": [{"name": "user", "type": "User"}]}
    reference = SchemaReference("User", topic, 1)
    order_id = registry.register_schema(f"{topic}-order", Schema(json.dumps(order), "AVRO", [reference]))
    assert registry.get_referenced_by(topic, 1) == [order_id]
    assert registry.get_schema(order_id).references == [reference]


def test_clients_do_not_write_there(node: ChronikNode, registry: SchemaRegistryClient, topic: str) -> None:
    registry.register_schema(topic, Schema(AVRO, "AVRO"))
    outcomes: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": node.bootstrap, "message.timeout.ms": 20_000})
    producer.produce("_schemas", b"x", b"k", 0, on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(DEADLINE_S)
    assert [error and error.code() for error in outcomes] == [KafkaError.TOPIC_EXCEPTION]
