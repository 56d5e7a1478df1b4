"""The command line against a real broker, as a person and as a script would use it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from tests.process import ServerProcess

SOURCE = Path(__file__).parents[2] / "src"
COMMAND = [sys.executable, "-c", "import sys; sys.argv[0] = 'chronik'; from chronik.cli import main; main()"]


class Cli:
    def __init__(self, bootstrap: str) -> None:
        self.env = {**os.environ, "PYTHONPATH": str(SOURCE), "CHRONIK_BOOTSTRAP": bootstrap, "COLUMNS": "120"}

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*COMMAND, *args],
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *args: str, stdin: str = "") -> tuple[int, str, str]:
        process = self.start(*args)
        out, err = process.communicate(stdin.encode(), timeout=60)
        return process.returncode, out.decode(), err.decode()

    def __call__(self, *args: str, stdin: str = "") -> str:
        """What a command that must succeed prints."""
        code, out, err = self.run(*args, stdin=stdin)
        assert (code, err) == (0, ""), f"{args}: {code} {err}"
        return out

    def json(self, *args: str) -> Any:
        return json.loads(self(*args, "--json"))


@pytest.fixture
def cli(broker: ServerProcess) -> Cli:
    return Cli(broker.bootstrap)


@pytest.fixture
def open_transaction(broker: ServerProcess, topic: str) -> Iterator[str]:
    """A transaction with one record in `topic`, left open; its id is the topic's name."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"not yet")
    producer.flush(60)
    yield topic
    producer.purge()


def read_some(broker: ServerProcess, topic: str, group: str, count: int) -> None:
    """Read and commit `count` records as a member of a group, then leave it."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    last = None
    for _ in range(count):
        last = consumer.poll(30)
        assert last is not None
        assert last.error() is None
    consumer.commit(last, asynchronous=False)
    consumer.close()


def test_what_a_topic_promises_is_told_in_one_sentence(broker: ServerProcess, cli: Cli, topic: str) -> None:
    """Of chronik alone: what another broker does depends on its own settings."""
    cli("topic", "create", topic, "--config", "flush.ms=1000")
    (described,) = cli.json("topic", "describe", topic)
    if broker.name == "chronik":
        assert "and synced within 1000 ms" in described["durability"]
        assert described["durability"] in cli("topic", "describe", topic)
    else:
        assert described["durability"] is None
    cli("config", "set", "--topic", topic, "--unset", "flush.ms")
    (described,) = cli.json("topic", "describe", topic)
    assert (described["durability"] or "").startswith(
        "An acknowledged write is synced" * (broker.name == "chronik")
    )


def test_a_topic_from_creation_to_deletion(cli: Cli, topic: str) -> None:
    assert cli("topic", "create", topic, "--partitions", "3").startswith(f"{topic} created with 3 partitions")
    assert topic in [row["topic"] for row in cli.json("topic", "list")]
    (described,) = cli.json("topic", "describe", topic)
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
    assert cli("produce", topic, "--key-separator", ":", stdin="a:1\nb:2\nc:3\n") == f"3 records to {topic}\n"
    (described,) = cli.json("topic", "describe", topic)
    assert sum(p["end_offset"] for p in described["partitions"]) == 3
    lines = cli("consume", topic, "--from-beginning", "--to-end", "--format", "{key}={value}").splitlines()
    assert sorted(lines) == ["a=1", "b=2", "c=3"]
    assert cli("topic", "delete", topic) == f"{topic} deleted\n"
    assert topic not in [row["topic"] for row in cli.json("topic", "list")]
    code, _, err = cli.run("topic", "describe", topic)
    assert (code, err.count("\n")) == (2, 1)
    assert f"create it with `chronik topic create {topic}`" in err


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_produced_is_consumed_whatever_the_codec(cli: Cli, topic: str, codec: str) -> None:
    text = "".join(f"{number} äöü\n" for number in range(5_000))
    assert cli("produce", topic, "--compression", codec, stdin=text) == f"5,000 records to {topic}\n"
    assert cli("consume", topic, "--from-beginning", "--to-end") == text


def test_a_bulk_load_is_counted_in_full(cli: Cli, topic: str) -> None:
    sent = cli.json("produce", topic, "--count", "100000", "--size", "64", "--acks", "1")
    assert (sent["records"], sent["bytes"]) == (100_000, 6_400_000)
    counted = cli("consume", topic, "--from-beginning", "--to-end", "--count")
    assert counted.startswith(f"100,000 records in {topic}")


def test_consume_follows_until_interrupted(cli: Cli, topic: str) -> None:
    cli("topic", "create", topic)
    consumer = cli.start("consume", topic, "--from-beginning")
    assert consumer.stdout is not None
    cli("produce", topic, stdin="now\n")
    assert consumer.stdout.readline() == b"now\n"
    consumer.send_signal(signal.SIGINT)
    out, err = consumer.communicate(timeout=60)
    assert (consumer.returncode, out, err) == (130, b"", b"")


def test_a_reader_that_goes_away_is_no_error(cli: Cli, topic: str) -> None:
    cli("produce", topic, "--count", "50000")
    consumer = cli.start("consume", topic, "--from-beginning", "--to-end")
    assert consumer.stdout is not None
    assert consumer.stderr is not None
    consumer.stdout.readline()
    consumer.stdout.close()
    assert consumer.wait(30) == 0
    assert consumer.stderr.read() == b""


def test_a_group_is_listed_described_moved_and_deleted(broker: ServerProcess, cli: Cli, topic: str) -> None:
    group = f"{topic}-group"
    cli("produce", topic, stdin="".join(f"{n}\n" for n in range(10)))
    read_some(broker, topic, group, 4)
    assert group in [row["group"] for row in cli.json("group", "list")]
    (described,) = cli.json("group", "describe", group)
    (row,) = described["partitions"]
    assert (row["committed"], row["end"], row["lag"]) == (4, 10, 6)

    planned = cli.json("group", "reset-offsets", group, "--to-earliest", "--dry-run")
    assert planned["offsets"] == [{"topic": topic, "partition": 0, "before": 4, "after": 0}]
    for flags, after in (
        (["--shift-by", "-3"], 1),
        (["--to-latest"], 10),
        (["--to-offset", "7"], 7),
        (["--to-offset", "999"], 10),
        (["--to-time", "2020-01-01T00:00:00Z"], 0),
        (["--to-time", "2099-01-01T00:00:00Z"], 10),
    ):
        assert cli.json("group", "reset-offsets", group, *flags)["offsets"][0]["after"] == after
    (described,) = cli.json("group", "describe", group)
    assert described["partitions"][0]["committed"] == 10

    assert cli("group", "delete", group) == f"{group} deleted\n"
    assert group not in [row["group"] for row in cli.json("group", "list")]
    code, _, err = cli.run("group", "describe", group)
    assert code == 2
    assert "`chronik group list` shows those there are" in err


def test_a_member_of_a_group_goes_on_where_the_last_one_stopped(cli: Cli, topic: str) -> None:
    cli("produce", topic, stdin="".join(f"{n}\n" for n in range(10)))
    as_member = ("consume", topic, "--group", f"{topic}-group", "--from-beginning")
    assert cli(*as_member, "--max-messages", "4") == "0\n1\n2\n3\n"
    assert cli(*as_member, "--max-messages", "6") == "4\n5\n6\n7\n8\n9\n"
    assert cli(*as_member, "--timeout", "2") == ""


def test_members_of_a_group_share_the_partitions_and_take_over(cli: Cli, topic: str) -> None:
    cli("topic", "create", topic, "--partitions", "4")
    group = f"{topic}-group"
    flags = ("consume", topic, "--group", group, "--from-beginning", "--format", "{partition}")
    one, two = cli.start(*flags), cli.start(*flags)
    try:
        wait_for(lambda: shares(cli, group) == [2, 2])
        one.send_signal(signal.SIGINT)
        assert one.wait(30) == 130
        wait_for(lambda: shares(cli, group) == [4])
        for partition in range(4):
            cli("produce", topic, "--partition", str(partition), stdin="x\n")
        assert two.stdout is not None
        assert sorted(two.stdout.readline() for _ in range(4)) == [b"0\n", b"1\n", b"2\n", b"3\n"]
        two.send_signal(signal.SIGINT)
        assert two.wait(30) == 130
    finally:
        one.kill()
        two.kill()
    (described,) = cli.json("group", "describe", group)
    assert [row["lag"] for row in described["partitions"]] == [0, 0, 0, 0]


def shares(cli: Cli, group: str) -> list[int]:
    """How many partitions each member owns."""
    code, out, _ = cli.run("group", "describe", group, "--json")
    return sorted(len(m["partitions"]) for m in json.loads(out)[0]["members"]) if code == 0 else []


def wait_for(fact: Callable[[], bool], timeout_s: float = 60) -> None:
    end = time.monotonic() + timeout_s
    while not fact():
        assert time.monotonic() < end, "it did not come true in time"


def test_a_group_with_members_is_left_alone(broker: ServerProcess, cli: Cli, topic: str) -> None:
    group = f"{topic}-group"
    cli("produce", topic, stdin="x\n")
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    assert consumer.poll(30) is not None
    (described,) = cli.json("group", "describe", group)
    assert [m["partitions"] for m in described["members"]] == [[f"{topic}-0"]]
    for args in (["reset-offsets", group, "--topic", topic, "--to-earliest"], ["delete", group]):
        code, _, err = cli.run("group", *args)
        assert code == 2
        assert "stop" in err
    consumer.close()


def test_configs_are_set_seen_and_taken_back(cli: Cli, topic: str) -> None:
    cli("topic", "create", topic)
    assert cli("config", "set", "--topic", topic, "retention.ms=12345") == "retention.ms=12345\n"
    (entry,) = cli.json("config", "get", "--topic", topic, "retention.ms")
    assert (entry["value"], entry["source"]) == ("12345", "topic")
    assert cli.json("topic", "describe", topic)[0]["configs"] == {"retention.ms": "12345"}
    cli("config", "set", "--topic", topic, "--unset", "retention.ms")
    (entry,) = cli.json("config", "get", "--topic", topic, "retention.ms")
    assert entry["source"] != "topic"
    code, _, err = cli.run("config", "set", "--topic", topic, "no.such.config=1")
    assert code == 2
    assert "no.such.config" in err


def test_configs_of_all_brokers_are_set_seen_and_taken_back(cli: Cli) -> None:
    name = "log.cleaner.backoff.ms"
    assert cli("config", "set", "--broker", "all", f"{name}=14999") == f"{name}=14999\n"
    (entry,) = cli.json("config", "get", "--broker", "1", name)
    assert (entry["value"], entry["source"]) == ("14999", "cluster")
    cli("config", "set", "--broker", "all", "--unset", name)
    (entry,) = cli.json("config", "get", "--broker", "1", name)
    assert (entry["value"], entry["source"]) == ("15000", "default")
    code, _, err = cli.run("config", "set", "--broker", "all", f"{name}=soon")
    assert code == 2
    assert f"all brokers: Invalid value soon for configuration {name}" in err


def test_an_open_transaction_is_listed_and_aborted(cli: Cli, open_transaction: str) -> None:
    topic = open_transaction
    (found,) = [t for t in cli.json("transaction", "list") if t["transactional_id"] == topic]
    assert (found["state"], found["partitions"]) == ("Ongoing", [f"{topic}-0"])
    assert cli("consume", topic, "--from-beginning", "--to-end", "--isolation", "read_committed") == ""
    assert cli("transaction", "abort", topic).startswith(f"{topic} aborted")
    cli("produce", topic, stdin="after\n")
    assert cli("consume", topic, "--from-beginning", "--to-end", "--isolation", "read_committed") == "after\n"
    code, _, err = cli.run("transaction", "abort", topic)
    assert code == 2
    assert "is not open" in err


def test_a_hanging_transaction_is_aborted_by_its_partition(cli: Cli, open_transaction: str) -> None:
    topic = open_transaction
    assert "aborted" in cli("transaction", "abort", "--topic", topic, "--partition", "0")
    cli("produce", topic, stdin="after\n")
    assert cli("consume", topic, "--from-beginning", "--to-end", "--isolation", "read_committed") == "after\n"


def test_a_bench_measures_what_it_sent(cli: Cli, topic: str) -> None:
    def bench(*arguments: str) -> Any:
        code, out, err = cli.run("bench", *arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    at_rate = bench("produce", topic, "--rate", "100", "--seconds", "0.5", "--size", "10")
    assert (at_rate["records"], at_rate["loop"]) == (50, "open")
    assert 0 < at_rate["latency_ms"]["p50"] <= at_rate["latency_ms"]["p99"] <= at_rate["latency_ms"]["max"]
    assert sum(count for _, count in at_rate["histogram_ms"]) == 50
    flat_out = bench("produce", topic, "--under-way", "10", "--seconds", "0.3")
    assert flat_out["loop"] == "closed"
    read = bench("consume", topic)
    assert read["records"] == 50 + flat_out["records"]
    there_and_back = bench("latency", topic, "--rate", "50", "--seconds", "0.5")
    assert there_and_back["records"] == 25
    code, out, _ = cli.run("bench", "latency", topic, "--rate", "50", "--seconds", "0.2")
    assert code == 0
    assert "p99.9" in out
    assert "█" in out


def test_schemas_are_registered_checked_shown_and_deleted(cli: Cli, topic: str, tmp_path: Path) -> None:
    """H06"""

    def record(*fields: str) -> str:
        made = [{"name": name, "type": "int"} for name in fields]
        return json.dumps({"type": "record", "name": "Order", "fields": made})

    subject, avro, proto = f"{topic}-value", tmp_path / "order.avsc", tmp_path / "m.proto"
    avro.write_text(record("a"))
    proto.write_text('syntax = "proto3"; message M { int32 x = 1; }')
    schema_id = int(cli("schema", "register", subject, str(avro)))
    assert cli("schema", "register", subject, "-", "--type", "avro", stdin=record("a")) == f"{schema_id}\n"
    assert json.loads(cli("schema", "get", subject))["fields"] == [{"name": "a", "type": "int"}]
    assert cli.json("schema", "get", str(schema_id), "--id") == {"schema": record("a").replace(" ", "")}
    avro.write_text(record("a", "b"))
    code, out, _ = cli.run("schema", "check", subject, str(avro))
    assert (code, "/b: the reader's field has no default" in out) == (1, True)
    code, _, err = cli.run("schema", "register", subject, str(avro))
    assert (code, "incompatible with an earlier schema" in err) == (2, True)
    avro.write_text(record())
    assert cli("schema", "check", subject, str(avro)) == f"the schema is compatible with those of {subject}\n"
    cli("schema", "register", subject, str(avro))
    cli("schema", "register", f"{topic}/m.proto", str(proto))
    using = tmp_path / "n.proto"
    using.write_text('syntax = "proto3"; import "m.proto"; message N { M m = 1; }')
    cli("schema", "register", topic, str(using), "-r", f"m.proto={topic}/m.proto:1")
    assert "M m = 1;" in cli("schema", "get", topic)
    listed = {one["subject"]: one for one in cli.json("schema", "list")}
    assert (listed[subject]["version"], listed[f"{topic}/m.proto"]["schemaType"]) == (2, "PROTOBUF")
    assert [one["version"] for one in cli.json("schema", "list", subject)] == [1, 2]
    assert subject in cli("schema", "list")
    assert cli("schema", "delete", subject, "--version", "1") == f"deleted of {subject}: version 1\n"
    cli("schema", "delete", subject)
    assert cli("schema", "delete", subject, "--permanent") == f"deleted of {subject}: version 1, 2\n"
    for arguments, sentence in (
        (("get", subject), "not found"),
        (("list", subject), "there is no subject"),
        (("register", subject, "-"), "--type avro, json or protobuf"),
        (("register", subject, str(avro), "-r", "x"), "NAME=SUBJECT:VERSION"),
        (("register", subject, str(tmp_path / "none.avsc")), "cannot be read"),
    ):
        code, _, err = cli.run("schema", *arguments)
        assert (code, sentence in err) == (2, True), err
