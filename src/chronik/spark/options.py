"""The options of the data source, read into values; a mistake is one sentence.

Names are those of the official Kafka connector. An option that starts with `kafka.` may also be written
without that prefix. What chronik's client has no use for is ignored, as the connector ignores it.
"""

from __future__ import annotations

import json
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from chronik.client.login import Login
from chronik.client.offsets import EARLIEST, LATEST
from chronik.client.options import ClientOptions, parse_bootstrap
from chronik.client.properties import LOGIN_PROPERTIES, PropertiesError, login_of
from chronik.model import ChronikError, TopicPartition

Strategy = Literal["error", "latest"]
_NAMED: Final[Mapping[str, int]] = {"earliest": EARLIEST, "latest": LATEST}
_SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class OptionError(ChronikError, ValueError):
    """An option of the data source is wrong; the message says which and what to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """How to reach the cluster; travels to the tasks as it is."""

    bootstrap: str
    client_id: str = "chronik-spark"
    deadline_ms: int = 120_000
    request_timeout_ms: int = 30_000
    security_protocol: str = "PLAINTEXT"
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: str | None = None
    check_hostname: bool = True
    login: Login | None = None

    def tls(self) -> ssl.SSLContext | None:
        if not self.security_protocol.endswith("SSL"):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            context.check_hostname = self.check_hostname
            if self.certificate_file:
                context.load_cert_chain(self.certificate_file, self.key_file, self.key_password)
        except OSError as error:  # ssl's own errors are of this kind too, and none names its file
            files = [file for file in (self.ca_file, self.certificate_file, self.key_file) if file]
            missing = [file for file in files if not os.path.exists(file)]
            why = "is not there" if missing else f"cannot be used: {error.strerror or error}"
            raise OptionError(f"TLS: {', '.join(missing or files)} {why}") from None
        return context

    def client_options(self) -> ClientOptions:
        return ClientOptions(
            client_id=self.client_id,
            deadline_ms=self.deadline_ms,
            request_timeout_ms=self.request_timeout_ms,
            tls=self.tls(),
            login=self.login,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSelection:
    """Which partitions are read; exactly one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where reading starts or ends: an offset or a time for each partition, or one rule for all.

    Offsets -1 and -2 mean latest and earliest, as in ListOffsets.
    """

    default: int
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamps_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    connect: Connect
    subscription: TopicSelection
    starting: Position
    ending: Position
    no_match: Strategy
    """What a start time younger than every record means."""
    fail_on_data_loss: bool
    read_committed: bool
    max_offsets_per_trigger: int | None
    min_partitions: int | None
    include_headers: bool
    columns: tuple[str, ...] | None
    commit_group: str | None
    """A consumer group to which a stream commits how far it has come, for those who watch its lag."""
    fetch_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    connect: Connect
    topic: str | None
    compression: str
    batch_bytes: int
    transactional: bool
    transaction_timeout_ms: int
    sink_id: str | None
    batch_id: int | None


class _Options:
    """Case-blind access to the strings Spark hands over, with or without the prefix `kafka.`."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}

    def text(self, name: str) -> str | None:
        bare = name.lower().removeprefix("kafka.")
        for candidate in (f"kafka.{bare}", bare):
            value = self._given.get(candidate)
            if value is not None and value.strip():
                return value.strip()
        return None

    def integer(self, name: str, default: int | None = None, *, minimum: int = 1) -> int | None:
        text = self.text(name)
        if text is None:
            return default
        if not re.fullmatch(r"-?\d+", text) or int(text) < minimum:
            raise OptionError(f"option {name}: {text!r} is no whole number from {minimum} on")
        return int(text)

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise OptionError(f"option {name}: write true or false, not {text!r}")
        return text.lower() == "true"

    def choice(self, name: str, choices: Mapping[str, Any], default: Any) -> Any:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in choices:
            raise OptionError(f"option {name}: {text!r} is not known, {' and '.join(choices)} are")
        return choices[text.lower()]


def read_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    options = _Options(given)
    columns = options.text("columns")
    return ReadOptions(
        connect=_connect(options),
        subscription=_subscription(options),
        starting=_position(options, "starting", LATEST if streaming else EARLIEST),
        ending=_position(options, "ending", LATEST),
        no_match=options.choice(
            "startingOffsetsByTimestampStrategy", {"error": "error", "latest": "latest"}, "error"
        ),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        read_committed=options.choice(
            "isolation.level", {"read_committed": True, "read_uncommitted": False}, True
        ),
        max_offsets_per_trigger=options.integer("maxOffsetsPerTrigger"),
        min_partitions=options.integer("minPartitions"),
        include_headers=options.flag("includeHeaders", False),
        columns=tuple(name.strip() for name in columns.split(",")) if columns else None,
        commit_group=options.text("commitGroup"),
        fetch_bytes=options.integer("max.partition.fetch.bytes", 4 * 1024 * 1024) or 0,
    )


def connect_options(given: Mapping[str, str]) -> Connect:
    return _connect(_Options(given))


def write_options(given: Mapping[str, str]) -> WriteOptions:
    options = _Options(given)
    compressions = {name: name for name in ("none", "gzip", "snappy", "lz4", "zstd")}
    return WriteOptions(
        connect=_connect(options),
        topic=options.text("topic"),
        compression=options.choice("compression.type", compressions, "none"),
        batch_bytes=options.integer("batch.size", 256 * 1024) or 0,
        transactional=options.flag("transactional", True),
        transaction_timeout_ms=options.integer("transaction.timeout.ms", 900_000) or 0,
        sink_id=options.text("sinkId"),
        batch_id=options.integer("batchId", minimum=0),
    )


def _connect(options: _Options) -> Connect:
    bootstrap = options.text("bootstrap.servers")
    if bootstrap is None:
        raise OptionError("option kafka.bootstrap.servers is missing: write host:port of a node")
    try:
        parse_bootstrap(bootstrap)
    except ValueError as error:
        raise OptionError(f"option kafka.bootstrap.servers: {error}") from None
    protocol = (options.text("security.protocol") or "PLAINTEXT").upper()
    if protocol not in _SECURITY_PROTOCOLS:
        known = " and ".join(_SECURITY_PROTOCOLS)
        raise OptionError(f"option kafka.security.protocol: {protocol} is not supported, {known} are")
    return Connect(
        bootstrap=bootstrap,
        client_id=options.text("client.id") or "chronik-spark",
        deadline_ms=options.integer("default.api.timeout.ms", 120_000) or 0,
        request_timeout_ms=options.integer("request.timeout.ms", 30_000) or 0,
        security_protocol=protocol,
        ca_file=options.text("ssl.ca.location") or options.text("ssl.truststore.location"),
        certificate_file=options.text("ssl.certificate.location") or options.text("ssl.keystore.location"),
        key_file=options.text("ssl.key.location"),
        key_password=options.text("ssl.key.password"),
        check_hostname=options.text("ssl.endpoint.identification.algorithm") != "none",
        login=_login(options) if protocol.startswith("SASL") else None,
    )


def _login(options: _Options) -> Login:
    given = {name: value for name in LOGIN_PROPERTIES if (value := options.text(name)) is not None}
    try:
        return login_of(given)
    except PropertiesError as error:
        raise OptionError(f"option kafka.{error}") from None


def _subscription(options: _Options) -> TopicSelection:
    topics, pattern, assign = (options.text(name) for name in ("subscribe", "subscribePattern", "assign"))
    if sum(each is not None for each in (topics, pattern, assign)) != 1:
        raise OptionError("write exactly one of the options subscribe, subscribePattern and assign")
    if topics is not None:
        return TopicSelection(topics=tuple(dict.fromkeys(t.strip() for t in topics.split(",") if t.strip())))
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(f"option subscribePattern: {pattern!r} is no pattern: {error}") from None
        return TopicSelection(pattern=pattern)
    parsed = _json("assign", assign or "")
    wrong = OptionError('option assign: write {"topic": [0, 1], ...}')
    if not all(isinstance(numbers, list) for numbers in parsed.values()):
        raise wrong
    found = [TopicPartition(topic, number) for topic, numbers in parsed.items() for number in numbers]
    if not found or not all(isinstance(tp.partition, int) for tp in found):
        raise wrong
    return TopicSelection(assigned=tuple(found))


def _position(options: _Options, which: str, default: int) -> Position:
    """One end of the range; a time for all goes before times by partition, and those before offsets."""
    timestamp_ms = options.integer(f"{which}Timestamp", minimum=0)
    if timestamp_ms is not None:
        return Position(default=default, timestamp_ms=timestamp_ms)
    if text := options.text(f"{which}OffsetsByTimestamp"):
        times = by_partition(f"{which}OffsetsByTimestamp", text)
        return Position(default=default, timestamps_ms=times)
    text = options.text(f"{which}Offsets")
    if text is None:
        return Position(default=default)
    if text.lower() in _NAMED:
        if which == "ending" and text.lower() == "earliest":
            raise OptionError("option endingOffsets: a read cannot end at earliest")
        return Position(default=_NAMED[text.lower()])
    return Position(default=default, offsets=by_partition(f"{which}Offsets", text))


def by_partition(name: str, text: str) -> dict[TopicPartition, int]:
    """`{"topic": {"0": 23, "1": -2}}` as offsets by partition."""
    found = {}
    for topic, partitions in _json(name, text).items():
        if not isinstance(partitions, dict):
            raise OptionError(f'option {name}: write {{"{topic}": {{"0": 23, ...}}}}')
        for partition, number in partitions.items():
            if not partition.isdecimal() or not isinstance(number, int) or isinstance(number, bool):
                raise OptionError(f"option {name}: {topic}: {partition!r}: {number!r} is no offset")
            found[TopicPartition(topic, int(partition))] = number
    return found


def _json(name: str, text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise OptionError(f"option {name}: {text!r} is no JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise OptionError(f"option {name}: {text!r} is no JSON object")
    return parsed
