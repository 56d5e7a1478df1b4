"""Which clients really sent which API in which version, for docs/PROTOCOL.md.

Each node that tests under RECORDED start notes it in a file (`tests/recorder/sitecustomize.py`), whichever
tests are selected and however many processes run them. At the end, the run fails if `protocol.tsv` lacks a
row that was seen; `pytest --write-protocol TESTS` adds it. Rows are only ever added: empty the file to begin
anew.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from chronik.wire.api import ApiKey

TABLE = Path(__file__).parent / "protocol.tsv"
SEEN_DIR = "REQUESTS_SEEN_DIR"
TESTS = Path(__file__).parents[1]
RECORDER = TESTS / "recorder"
RECORDED: Final = frozenset({"compat", "security", "cluster"})
NOT_RECORDED: Final = frozenset({"test_rights.py"})
"""Sends every API by hand, through our own client."""
TOLD_BY_CLIENT_ID: Final = "Java 0.11"
"""Gives no name of its own; newer ones have the same client ids, and no test lets this one log in."""
NAMED = (
    (r"apache-kafka-java (\d+\.\d+).*", r"Java \1"),
    (r"confluent-kafka-python.*", "confluent-kafka"),
    (r"kgo .*|franz-go.*", "franz-go"),
    (r"sarama.*", "sarama"),
    (r"kafka-go.*", "kafka-go"),
    (r"kafkajs.*", "kafkajs"),
    (r"kcat.*|librdkafka.*", "kcat"),
    (r"kafka-python.*", "kafka-python"),
    (r"aiokafka.*", "aiokafka"),
    (r"chronik.*", "chronik's own"),
    (r"console-producer|console-consumer.*|consumer-.*", TOLD_BY_CLIENT_ID),
)
"""Name and version that a client gives in ApiVersions, or else its client id → the name in the table."""
LOGIN: Final = str(int(ApiKey.SASL_HANDSHAKE))
BY_CHANCE: Final = frozenset(
    {
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
        ApiKey.PUSH_TELEMETRY,
        ApiKey.RENEW_DELEGATION_TOKEN,
    }
)
"""Sent by some clients only after an interval or a change of leader: a row that lacks fails no run."""
UNLOCKED: Final = frozenset({"kcat"})
"""Clients in whatever version the machine has, so what they send fails no run."""


class Row(NamedTuple):
    api_key: int
    version: int
    client: str

    def __str__(self) -> str:
        return f"{ApiKey(self.api_key).name} v{self.version} by {self.client}"


def client_name(given: str) -> str | None:
    for pattern, name in NAMED:
        if re.fullmatch(pattern, given):
            return re.sub(pattern, name, given)
    return None


def read_seen(folder: Path) -> tuple[set[Row], set[str]]:
    """Rows that the nodes noted, of versions that a node offers; names of clients that are in no row."""
    files = list(folder.glob("*.tsv"))
    if not files:
        return set(), set()
    from chronik.server.handlers import all_handlers  # takes long, and most runs see nothing

    offered = {int(handler.api_key): handler.versions for handler in all_handlers()}
    rows: set[Row] = set()
    unknown: set[str] = set()
    for file in files:
        lines = [line.split("\t") for line in file.read_text(errors="replace").splitlines()]
        # Java logs in before it tells who it is: what counts is what a connection says in the end.
        software = {columns[0]: columns[1] for columns in lines if len(columns) == 2}
        logging_in = {columns[0] for columns in lines if len(columns) == 4 and columns[2] == LOGIN}
        for columns in lines:
            # A node that was killed may have written half a line, a hostile client any name.
            if len(columns) != 4 or not all(number.isdecimal() for number in columns[2:]):
                continue
            given = software.get(columns[0], columns[1])
            key, version = int(columns[2]), int(columns[3])
            name = client_name(given)
            if name == TOLD_BY_CLIENT_ID and columns[0] in logging_in - software.keys():
                continue  # a newer Java that lost its connection before it said who it is
            if name is None:
                unknown.add(given)
            elif key in offered and offered[key][0] <= version <= offered[key][1]:
                rows.add(Row(key, version, name))
    return rows, unknown


def read_table() -> set[Row]:
    lines = (line.split("\t") for line in TABLE.read_text().splitlines())
    return {
        Row(int(key), int(version), client)
        for key, version, clients in lines
        for client in clients.split(", ")
    }


def write_table(rows: Iterable[Row]) -> None:
    clients: dict[tuple[int, int], set[str]] = defaultdict(set)
    for row in rows:
        clients[row.api_key, row.version].add(row.client)
    TABLE.write_text(
        "".join(
            f"{key}\t{version}\t{', '.join(sorted(names))}\n"
            for (key, version), names in sorted(clients.items())
        )
    )


def must_be_listed(rows: Iterable[Row]) -> list[Row]:
    """Of rows that the table lacks, those that a client sends in every run."""
    return sorted(row for row in rows if row.api_key not in BY_CHANCE and row.client not in UNLOCKED)


# --- the test run -----------------------------------------------------------------------------


class Recorder:
    """A pytest plugin, in each process of a run: nodes that tests under RECORDED start note what they get."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if item.path.relative_to(TESTS).parts[0] in RECORDED and item.path.name not in NOT_RECORDED:
            os.environ[SEEN_DIR] = str(self._folder)
        else:
            os.environ.pop(SEEN_DIR, None)


class Keeper:
    """A pytest plugin, in the process that a run was started in: keeps or checks what all of it saw."""

    def __init__(self, folder: Path, *, write: bool) -> None:
        self._folder = folder
        self._write = write
        self._told: list[str] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """xdist starts a worker."""
        node.workerinput[SEEN_DIR] = str(self._folder)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        seen, unknown = read_seen(self._folder)
        shutil.rmtree(self._folder, ignore_errors=True)
        lacking = seen - read_table()
        if self._write:
            write_table(lacking | read_table())
            self._told = [f"protocol.tsv: {len(lacking)} rows added", *map(str, sorted(lacking))]
            if unknown:
                self._told.append(f"clients without a name in the table: {', '.join(sorted(unknown))}")
        elif stale := must_be_listed(lacking):
            self._told = [
                "tests/compat/protocol.tsv lacks what clients sent in this run; --write-protocol adds it, "
                "then python tools/check_docs.py --write makes docs/PROTOCOL.md",
                *map(str, stale),
            ]
            if session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._told:
            terminalreporter.section("requests seen by the nodes")
            for line in self._told:
                terminalreporter.write_line(line)


def record_requests(config: pytest.Config) -> None:
    of_controller = getattr(config, "workerinput", {}).get(SEEN_DIR)
    folder = Path(of_controller or tempfile.mkdtemp(prefix="requests-seen-"))
    config.pluginmanager.register(Recorder(folder))
    if of_controller is None:
        config.pluginmanager.register(Keeper(folder, write=config.getoption("--write-protocol")))
    # For clusters: their nodes get the environment of the test that starts them.
    paths = [str(RECORDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
