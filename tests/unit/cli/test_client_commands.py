"""Commands that talk to a cluster, against a broker at the wire level: output, sentences, exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chronik.cli import run_command
from chronik.model import ErrorCode, TopicPartition
from chronik.records.reader import Record, read_all_records
from chronik.records.writer import build_batch
from chronik.wire.api import ApiKey
from tests.unit.client.broker import Broker


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


Cli = Callable[..., Result]


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker in a thread with a loop of its own, since each command brings its own as well."""
    started: threading.Event = threading.Event()
    found: list[Any] = []

    async def serve() -> None:
        stop = asyncio.Event()
        async with Broker() as broker:
            found.extend((broker, stop, asyncio.get_running_loop()))
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    started.wait()
    broker, stop, loop = found
    yield broker
    loop.call_soon_threadsafe(stop.set)
    thread.join()


@pytest.fixture
def cli(broker: Broker, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    monkeypatch.setenv("CHRONIK_BOOTSTRAP", broker.address)

    def run(*args: str, stdin: bytes = b"") -> Result:
        reading, writing = os.pipe()
        os.write(writing, stdin)
        os.close(writing)
        monkeypatch.setattr(sys, "argv", ["chronik", *args])
        with os.fdopen(reading) as pipe:
            monkeypatch.setattr(sys, "stdin", pipe)
            with pytest.raises(SystemExit) as caught:
                run_command()
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return Result(int(caught.value.code or 0), out.decode(), err.decode())

    return run


def stored(broker: Broker, tp: TopicPartition) -> list[Record]:
    return list(read_all_records(broker.logs[tp]))


def put(broker: Broker, topic: str, *values: bytes, partition: int = 0) -> None:
    """Records that were there before; only before the first command, as the broker's loop is not ours."""
    broker.leaders[TopicPartition(topic, partition)] = broker.node_id
    records = [Record(key=b"k%d" % i, value=value, timestamp_ms=7) for i, value in enumerate(values)]
    broker.logs[TopicPartition(topic, partition)] += build_batch(records)


def test_topics_come_and_go(broker: Broker, cli: Cli) -> None:
    assert cli("topic", "list").out == "No topics yet: create one with `chronik topic create NAME`.\n"
    created = cli("topic", "create", "a", "b", "--partitions", "3", "--config", "retention.ms=5")
    assert (created.code, created.err) == (0, "")
    assert created.out.startswith("a created with 3 partitions")
    (request,) = [r for key, r in broker.requests if key == ApiKey.CREATE_TOPICS]
    assert [(c.name, c.value) for c in request.topics[0].configs] == [("retention.ms", "5")]
    listed = json.loads(cli("topic", "list", "--json").out)
    assert [(row["topic"], row["partitions"]) for row in listed] == [("a", 3), ("b", 3)]
    table = cli("topic", "list").out
    assert "partitions" in table
    assert "a" in table
    assert cli("topic", "delete", "a", "b").out == "a deleted\nb deleted\n"
    assert json.loads(cli("topic", "list", "--json").out) == []


def test_describe_shows_leaders_offsets_and_what_was_set(broker: Broker, cli: Cli) -> None:
    put(broker, "a", b"1", b"2")
    (topic,) = json.loads(cli("topic", "describe", "a", "--json").out)
    assert topic["configs"] == {"retention.ms": "1000"}
    assert topic["partitions"] == [
        {
            "partition": 0,
            "leader": 1,
            "leader_epoch": 0,
            "replicas": [1],
            "isr": [1],
            "start_offset": 0,
            "end_offset": 2,
        }
    ]
    told = cli("topic", "describe", "a").out
    assert "retention.ms=1000" in told
    assert ("An acknowledged write is synced" in told) is (topic["durability"] is not None)


def test_an_existing_topic_is_an_error_unless_that_is_fine(cli: Cli) -> None:
    cli("topic", "create", "a")
    again = cli("topic", "create", "a")
    assert again.code == 2
    assert again.err.endswith("choose another name, or pass --if-not-exists\n")
    fine = cli("topic", "create", "a", "--if-not-exists")
    assert (fine.code, fine.out) == (0, "a exists already\n")


def test_a_part_that_failed_is_named_and_counts(cli: Cli) -> None:
    cli("topic", "create", "a")
    result = cli("topic", "delete", "a", "nope")
    assert (result.code, result.out) == (1, "a deleted\n")
    assert result.err == "chronik: topic 'nope' does not exist: `chronik topic list` shows those that do\n"
    assert cli("topic", "delete", "nope").code == 2
    assert cli("topic", "delete", "nope", "--if-exists").out == "nope was not there\n"


@pytest.mark.parametrize(
    "args", [("topic", "describe", "nope"), ("consume", "nope", "--from-beginning", "--to-end")]
)
def test_a_topic_that_is_not_there_is_one_sentence(cli: Cli, args: tuple[str, ...]) -> None:
    result = cli(*args)
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        "chronik: topic 'nope' does not exist: create it with `chronik topic create nope`\n"
    )


def test_nobody_there_names_the_address_and_the_way_out(cli: Cli) -> None:
    result = cli("topic", "list", "--bootstrap", "127.0.0.1:1")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        "chronik: no node answers at 127.0.0.1:1 (connection refused): "
        "start one with `chronik start`, or name another with --bootstrap\n"
    )


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("topic", "list", "-b", "a:b"), "write host:port"),
        (("produce", "t", "--acks", "2"), "write 0, 1 or all"),
        (("produce", "t", "--compression", "zip"), "none, gzip, snappy, lz4, zstd are"),
        (("produce", "t", "--header", "x"), "write name=value"),
        (("produce", "t", "--count", "5", "--key-separator", ":"), "do not go with it"),
        (("produce", "t", "--file", "/nowhere/at/all"), "no such file or directory"),
        (("consume", "t", "--offset", "x"), "write a number, -N, earliest or latest"),
        (("consume", "t", "--offset", "5", "--from-beginning"), "give one of them"),
        (("consume", "t", "--isolation", "x"), "read_uncommitted or read_committed"),
        (("consume", "t", "--format", "{x}"), "{value}"),
        (("consume", "t", "--format", "{key}", "--json"), "give one of them"),
    ],
)
def test_a_wrong_option_is_told_with_the_right_one(cli: Cli, args: tuple[str, ...], sentence: str) -> None:
    result = cli(*args)
    assert result.code == 2
    assert result.err.startswith("chronik: ")
    assert sentence in result.err
    assert result.err.count("\n") == 1


def test_lines_become_records(broker: Broker, cli: Cli) -> None:
    result = cli("produce", "t", "--key-separator", ":", "--header", "h=1", stdin=b"a:1\nb:2:3\n\xff:")
    assert (result.code, result.out, result.err) == (0, "3 records to t\n", "")
    got = [(r.key, r.value, r.headers) for r in stored(broker, TopicPartition("t", 0))]
    headers = (("h", b"1"),)
    assert got == [(b"a", b"1", headers), (b"b", b"2:3", headers), (b"\xff", b"", headers)]


def test_lines_of_a_file_to_one_partition(broker: Broker, cli: Cli, tmp_path: Path) -> None:
    cli("topic", "create", "t", "--partitions", "3")
    lines = tmp_path / "lines"
    lines.write_bytes(b"".join(b"line %d\n" % i for i in range(20_000)))
    result = cli("produce", "t", "--file", str(lines), "--partition", "2", "--compression", "zstd", "--json")
    assert json.loads(result.out)["records"] == 20_000
    got = [r.value for r in stored(broker, TopicPartition("t", 2))]
    assert got == [b"line %d" % i for i in range(20_000)]


def test_a_line_without_separator_is_named(cli: Cli) -> None:
    result = cli("produce", "t", "--key-separator", ":", stdin=b"a:1\nb\n")
    assert result.code == 2
    assert "line 2 has no ':'" in result.err


def test_made_up_records_have_the_number_and_size_asked_for(broker: Broker, cli: Cli) -> None:
    cli("topic", "create", "t", "--partitions", "2")
    result = cli("produce", "t", "--count", "25001", "--size", "100", "--acks", "1")
    assert result.out.startswith("25,001 records to t in ")
    records = [r for p in range(2) for r in stored(broker, TopicPartition("t", p))]
    assert len(records) == 25_001
    assert {len(r.value or b"") for r in records} == {100}
    assert all(r.timestamp_ms > 0 for r in records)


def test_a_refused_record_fails_the_command(broker: Broker, cli: Cli) -> None:
    def refuse(_: Any) -> dict[str, Any]:
        partition = {"index": 0, "error_code": ErrorCode.message_too_large, "error_message": "too big"}
        return {"responses": [{"name": "t", "partition_responses": [partition]}]}

    broker.answers[ApiKey.PRODUCE] = [refuse]
    result = cli("produce", "t", stdin=b"x\n")
    assert (result.code, result.out, result.err) == (2, "", "chronik: t-0: too big\n")


def test_consume_prints_values_and_stops_at_the_end(broker: Broker, cli: Cli) -> None:
    put(broker, "t", b"one", b"two", b"three")
    assert cli("consume", "t", "--from-beginning", "--to-end").out == "one\ntwo\nthree\n"
    assert cli("consume", "t", "--offset", "1", "--max-messages", "1").out == "two\n"
    assert cli("consume", "t", "--offset", "-1", "--to-end").out == "three\n"
    assert cli("consume", "t", "--to-end").out == ""
    assert cli("consume", "t", "--from-beginning", "--to-end", "--count").out.startswith("3 records in t")


def test_consume_formats_and_json(broker: Broker, cli: Cli) -> None:
    put(broker, "t", b"one", b"\xff")
    shown = cli(
        "consume", "t", "--from-beginning", "-n", "1", "--format", r"{offset}\t{key}={value}@{timestamp}"
    )
    assert shown.out == "0\tk0=one@7\n"
    lines = cli("consume", "t", "--from-beginning", "--to-end", "--json").out.splitlines()
    assert json.loads(lines[0]) == {
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "timestamp_ms": 7,
        "key": "k0",
        "value": "one",
        "headers": [],
    }
    assert (json.loads(lines[1])["value"], json.loads(lines[1])["value_encoding"]) == ("/w==", "base64")


def test_consume_says_when_too_few_came(broker: Broker, cli: Cli) -> None:
    put(broker, "t", b"one")
    result = cli("consume", "t", "--from-beginning", "--max-messages", "2", "--timeout", "2")
    assert (result.code, result.out) == (1, "one\n")
    assert result.err == "chronik: only 1 of 2 records came in time\n"


def test_consume_one_partition(broker: Broker, cli: Cli) -> None:
    put(broker, "t", b"zero")
    put(broker, "t", b"one", partition=1)
    assert cli("consume", "t", "--from-beginning", "--to-end", "--partition", "1").out == "one\n"
    assert "has no partition 5, only 0-1" in cli("consume", "t", "--partition", "5").err


@pytest.mark.parametrize(
    "command", ["topic create", "topic list", "topic describe", "topic delete", "produce", "consume"]
)
def test_help_shows_examples(cli: Cli, command: str) -> None:
    shown = cli(*command.split(), "--help").out
    assert f"chronik {command}" in shown
    assert "Examples" in shown


@pytest.mark.parametrize("kind", ["Share", "Streams"])
def test_a_group_that_the_node_cannot_describe_is_listed(broker: Broker, cli: Cli, kind: str) -> None:
    listed = {"group_id": "workers", "protocol_type": "", "group_state": "Stable", "group_type": kind}
    missing = {"error_code": ErrorCode.group_id_not_found, "group_id": "workers", "group_state": "Dead"}
    address = {"node_id": broker.node_id, "host": "127.0.0.1", "port": broker.port}

    def coordinator(request: Any) -> dict[str, Any]:
        return {"coordinators": [{"key": request.coordinator_keys[0], **address}]}

    for _ in range(3):
        broker.answers[ApiKey.FIND_COORDINATOR].append(coordinator)
        broker.answers[ApiKey.LIST_GROUPS].append(lambda _: {"groups": [listed]})
        broker.answers[ApiKey.DESCRIBE_GROUPS].append(lambda _: {"groups": [missing]})
    told = cli("group", "list", "--json")
    assert json.loads(told.out)[0]["type"] == kind.lower()
    result = cli("group", "describe", "workers")
    assert result.code == 2
    assert f"does not offer {kind.upper()}_GROUP_DESCRIBE" in result.err
    nobody = cli("group", "describe", "nobody")
    assert "`chronik group list` shows those there are" in nobody.err
