"""The options of the data source."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronik.client.offsets import EARLIEST, LATEST
from chronik.model import TopicPartition
from chronik.spark.options import OptionError, connect_options, read_options, write_options

BASE = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}


def test_the_least_that_must_be_said() -> None:
    options = read_options(BASE, streaming=False)
    assert options.subscription.topics == ("orders",)
    assert options.starting.default == EARLIEST
    assert options.ending.default == LATEST
    assert options.fail_on_data_loss
    assert options.read_committed
    assert read_options(BASE, streaming=True).starting.default == LATEST


def test_names_are_those_of_the_kafka_connector_in_any_case() -> None:
    options = read_options(
        {
            "bootstrap.servers": "h:1",
            "ASSIGN": '{"a": [0, 2]}',
            "startingoffsets": '{"a": {"0": 5, "2": -2}}',
            "endingOffsets": "latest",
            "failOnDataLoss": "FALSE",
            "maxOffsetsPerTrigger": "100",
            "minPartitions": "7",
            "includeHeaders": "true",
            "kafka.isolation.level": "read_uncommitted",
        },
        streaming=True,
    )
    assert options.subscription.assigned == (TopicPartition("a", 0), TopicPartition("a", 2))
    assert options.starting.offsets == {TopicPartition("a", 0): 5, TopicPartition("a", 2): EARLIEST}
    assert not options.fail_on_data_loss
    assert not options.read_committed
    assert (options.max_offsets_per_trigger, options.min_partitions, options.include_headers) == (
        100,
        7,
        True,
    )


def test_a_time_for_all_goes_before_everything_else() -> None:
    options = read_options(
        {**BASE, "startingTimestamp": "1000", "startingOffsets": "latest"}, streaming=False
    )
    assert options.starting.timestamp_ms == 1000


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is missing"),
        ({"kafka.bootstrap.servers": "a:b"}, "not an address"),
        ({"subscribe": ""}, "exactly one"),
        ({"assign": "{}"}, "exactly one"),
        ({"subscribe": "", "assign": "[1]"}, "no JSON object"),
        ({"subscribe": "", "assign": '{"a": 1}'}, "write"),
        ({"subscribe": "", "subscribePattern": "("}, "no pattern"),
        ({"startingOffsets": "sometimes"}, "no JSON"),
        ({"startingOffsets": '{"a": {"x": 1}}'}, "no offset"),
        ({"endingOffsets": "earliest"}, "cannot end"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"minPartitions": "0"}, "whole number from 1"),
        ({"isolation.level": "chaos"}, "not known"),
        ({"kafka.security.protocol": "SASL_GSSAPI"}, "not supported"),
        ({"kafka.security.protocol": "SASL_SSL"}, "sasl.mechanism is missing"),
        ({"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"}, "no username"),
    ],
)
def test_a_mistake_is_one_sentence(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        read_options({**BASE, **given}, streaming=False)


def test_writing() -> None:
    options = write_options({**BASE, "topic": "out", "kafka.compression.type": "zstd"})
    assert (options.topic, options.compression, options.transactional) == ("out", "zstd", True)
    with pytest.raises(OptionError, match=r"compression\.type"):
        write_options({**BASE, "compression.type": "rar"})


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_files_that_tls_cannot_use_are_named(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    connect = connect_options(
        {"bootstrap.servers": "a:1", "security.protocol": "SSL", "ssl.ca.location": str(file)}
    )
    with pytest.raises(
        OptionError, match=rf"TLS: .*ca.pem {'is not there' if content is None else 'cannot'}"
    ):
        connect.tls()
