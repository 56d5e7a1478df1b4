"""Options that hold for every kind of test."""

from __future__ import annotations

import gc
import signal

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from tests.compat.recording import record_requests
from tests.durations import summary
from tests.schedule import FilesInOrder, put_in_order

# How long an example takes says something about the machine, not about the code.
settings.register_profile("chronik", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("chronik")

# A shell that starts a run in the background lets it ignore SIGINT, and so would all that tests start and
# interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--broker",
        choices=("chronik", "kafka"),
        default="chronik",
        help="what the compatibility tests run against; Apache Kafka shows whether a test itself is right",
    )
    parser.addoption(
        "--write-protocol",
        action="store_true",
        help="add to tests/compat/protocol.tsv which client sent which API and version, for docs/PROTOCOL.md",
    )
    parser.addoption(
        "--write-differences",
        action="store_true",
        help="keep how many answers were compared with Apache Kafka's, for docs/DIFFERENCES.md",
    )
    parser.addoption(
        "--hostile-connections",
        type=int,
        default=600,
        help="connection attempts of the hostile client (make hostile: 10,000)",
    )
    parser.addoption(
        "--write-rights",
        action="store_true",
        help="keep what each API refuses without each right (with --broker kafka)",
    )
    parser.addoption(
        "--compaction-updates",
        type=int,
        default=50_000,
        help="updates of the compacted topic in the crash tests, over a tenth as many keys, 10,000 at most",
    )
    parser.addoption(
        "--crash-rounds", type=int, default=5, help="rounds of kill -9 under load in the crash tests"
    )
    parser.addoption(
        "--churn-seconds",
        type=float,
        default=10.0,
        help="how long consumers join, leave and crash in the crash tests (make churn: 120)",
    )
    parser.addoption(
        "--cluster-rounds", type=int, default=3, help="rounds of kill -9 under load in the cluster tests"
    )
    parser.addoption(
        "--upgrade-rounds", type=int, default=0, help="upgrades and ways back of all nodes (make upgrade: 10)"
    )
    parser.addoption(
        "--fault-seconds",
        type=float,
        default=20.0,
        help="how long real nodes are broken in the fault tests (make faults: 3600)",
    )
    parser.addoption("--fault-seed", type=int, default=None, help="repeat the faults of an earlier run")
    parser.addoption(
        "--cluster-long", action="store_true", help="the cluster tests in full length (make cluster-long)"
    )
    parser.addoption(
        "--spark-kill-rounds", type=int, default=1, help="rounds of kill -9 for each kind of Spark job"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    put_in_order(items)


def pytest_collection_finish() -> None:
    # Half a million objects that stay: to look for cycles in them took a twentieth of the unit tests' CPU.
    gc.freeze()


@pytest.hookimpl(optionalhook=True)  # unknown without xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesInOrder | None:
    return FilesInOrder(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [
        report
        for found in terminalreporter.stats.values()
        for report in found
        if isinstance(report, pytest.TestReport)
    ]
    if lines := summary(reports):
        terminalreporter.section("longest files")
        for line in lines:
            terminalreporter.line(line)


def pytest_configure(config: pytest.Config) -> None:
    record_requests(config)
