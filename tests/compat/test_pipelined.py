"""A transactional Java producer with several requests in flight, which the broker finds all at once."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import java
from tests.compat.test_transactions import create
from tests.process import ServerProcess

PROGRAM = Path(__file__).parent / "foreign" / "java" / "PipelinedTransactions.java"
PARTITIONS = 4
TRANSACTIONS = 2


@contextmanager
def stopped(broker: ServerProcess) -> Iterator[None]:
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def test_requests_of_a_transaction_do_not_overtake_each_other(broker: ServerProcess, topic: str) -> None:
    create(broker, topic, PARTITIONS)
    arguments = (broker.bootstrap, topic, str(PARTITIONS), str(TRANSACTIONS))
    process = subprocess.Popen(
        java.command(str(PROGRAM), *arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    said = []
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line == "ready\n":
                    with stopped(broker):
                        process.stdin.write("\n")
                        process.stdin.flush()
                        assert process.stdout.readline() == "sent\n"
                else:
                    said.append(line.strip())
        finally:
            process.kill()
    assert said == ["errors 0", "retries 0", "failures {}", f"committed {TRANSACTIONS}"]
