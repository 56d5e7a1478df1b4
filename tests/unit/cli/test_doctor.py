"""`chronik doctor`: each thing that is wrong is found, with its way out; what is well is left alone (O03)."""

from __future__ import annotations

import asyncio
import datetime
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chronik.cli.start import locked
from chronik.client.metadata import PartitionInfo, TopicInfo
from chronik.client.transactions import ActiveProducer, TransactionDescription
from chronik.config import Settings
from chronik.doctor.cluster import HANGING_MAX, HANGING_MS, hanging, over_timeout, partitions
from chronik.doctor.levels import NodeLevels, Upgrade, releases
from chronik.doctor.machine import available_memory, disk_space, file_system
from chronik.doctor.store import look_at_store
from chronik.model import NO_LEADER, ErrorCode, TopicPartition
from chronik.node import Node
from chronik.testing import free_ports
from tests.node import SOURCE
from tests.s3 import BUCKET
from tests.tls import make_certificate
from tests.unit.admin.support import Http, with_node

NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
TP = TopicPartition("orders", 0)


def doctor(data_dir: Path, *flags: str, limit: str = "") -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code and findings by check, on ports that are free unless the flags say otherwise."""
    ports = dict(
        zip(("--kafka-port", "--http-port", "--wal-port", "--raft-port"), free_ports(4), strict=True)
    )
    given = [str(part) for flag, port in ports.items() if flag not in flags for part in (flag, port)]
    command = [
        sys.executable,
        "-m",
        "chronik",
        "doctor",
        "--json",
        "--data-dir",
        str(data_dir),
        *given,
        *flags,
    ]
    done = subprocess.run(
        ["bash", "-c", f'{limit} exec "$@"', "bash", *command],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not done.stderr, done.stderr
    findings = json.loads(done.stdout)
    assert all(bool(one["fix"]) == (one["state"] in ("wrong", "warning")) for one in findings)
    return done.returncode, {one["check"]: one for one in findings}


def test_nothing_is_wrong_with_a_machine_on_which_a_node_could_start(tmp_path: Path) -> None:
    code, found = doctor(tmp_path / "data")
    assert [one for one in found.values() if one["state"] == "wrong"] == []
    assert code == 0
    assert found["cluster"]["state"] == "unknown"
    assert not (tmp_path / "data").exists()


def test_a_taken_port_an_open_directory_and_few_descriptors(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, found = doctor(tmp_path / "data", "--http-port", str(port), limit="ulimit -n 900;")
    assert code == 1
    assert found[f"port {port}"]["state"] == "wrong"
    assert "--http-port" in found[f"port {port}"]["fix"]
    assert found["data directory"]["state"] == "wrong"
    assert "chmod 700" in found["data directory"]["fix"]
    assert found["open files"]["state"] == "wrong"


def test_a_node_that_runs_but_does_not_answer(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    with locked(tmp_path / "data"):
        code, found = doctor(tmp_path / "data", "--kafka-port", str(port))
    assert code == 1
    assert found[f"port {port}"]["state"] == "wrong"
    assert found["cluster"]["state"] == "wrong"


def test_open_doors_and_a_certificate_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    code, found = doctor(
        tmp_path / "data",
        "--bind",
        "0.0.0.0",
        "--advertise",
        "here",
        "--http-tls-cert",
        str(tmp_path / "bad.pem"),
    )
    assert code == 1
    assert found["settings"]["state"] == "wrong"
    assert found["settings"]["fix"].startswith("Set an API key")
    assert found["certificate bad.pem"]["state"] == "wrong"


def test_a_certificate_that_is_about_to_expire(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    code, found = doctor(tmp_path / "data", "--http-tls-cert", str(cert), "--http-tls-key", str(key))
    assert code == 0
    assert found["certificate cert.pem"]["state"] == "warning"
    assert "in 1 days" in found["certificate cert.pem"]["message"]


def test_authorities_that_are_about_to_expire(tmp_path: Path) -> None:
    cert, _ = make_certificate(tmp_path)
    (tmp_path / "bad.pem").write_text("no certificate")
    flags = ("--http-tls-client-ca", str(cert), "--kafka-tls-ca", str(tmp_path / "bad.pem"))
    _, found = doctor(tmp_path / "data", *flags)
    assert found["authorities cert.pem"]["state"] == "warning"
    assert "in 1 days" in found["authorities cert.pem"]["message"]
    assert found["authorities bad.pem"]["state"] == "wrong"


def test_the_console_looks_at_what_the_command_looks_at(tmp_path: Path) -> None:
    """Of a node that runs, beside what both ask the cluster."""
    objects = (tmp_path / "objects").as_uri()
    by_http: list[str] = []
    kafka_port, http_port = free_ports(2)

    async def work(_node: Node, http: Http) -> None:
        answer = (await http.get("/admin/doctor")).json["findings"]
        assert [one for one in answer if one["check"].startswith(("port", "data dir")) and one["fix"]] == []
        by_http.extend(one["check"] for one in answer)

    with_node(tmp_path / "data", work, kafka_port=kafka_port, http_port=http_port, object_store=objects)
    flags = ("--kafka-port", str(kafka_port), "--http-port", str(http_port), "--object-store", objects)
    _, found = doctor(tmp_path / "data", *flags)
    assert set(found) - {"cluster"} <= set(by_http)
    expected = {
        f"port {kafka_port}",
        f"port {http_port}",
        "settings",
        "data directory",
        "disk",
        "object store",
    }
    assert expected <= set(found)
    assert {"nodes", "releases", "partitions", "groups", "transactions"} <= set(by_http)


def test_an_object_store_that_cannot_be_reached() -> None:
    port = free_ports(1)[0]
    settings = {
        "object_store": f"s3://{BUCKET}/folder",
        "object_store_endpoint": f"http://127.0.0.1:{port}",
        "object_store_access_key_id": "key",
        "object_store_secret_access_key": "not to be told",
    }
    (found,) = asyncio.run(look_at_store(Settings(**settings)))  # type: ignore[arg-type]
    assert (found.check, found.state) == ("object store", "wrong")
    assert "not to be told" not in f"{found}"
    assert asyncio.run(look_at_store(Settings())) == []


@pytest.mark.parametrize(
    ("level", "highs", "state", "words"),
    [
        (2, (2, 2), "ok", "all nodes work at level 2 (release 0.2)"),
        (1, (1, 2), "warning", "these nodes still run an older release: 1 (0.1)"),
        (1, (2, 2), "warning", "the cluster is still at level 1"),
    ],
)
def test_an_upgrade_that_is_not_finished(level: int, highs: tuple[int, ...], state: str, words: str) -> None:
    nodes = [NodeLevels(number, 1, high) for number, high in enumerate(highs, 1)]
    found = releases(Upgrade(level=level, nodes=nodes))
    assert (found.check, found.state) == ("releases", state)
    assert words in found.message
    assert releases(Upgrade(level=1, nodes=nodes, is_told=False)).state == "unknown"


def test_the_file_system_is_that_of_the_innermost_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("a / ext4 rw 0 0\nb /data\\040dir nfs4 rw 0 0\nc /run tmpfs rw 0 0\n")
    assert file_system(Path("/data dir/node"), mounts) == "nfs4"
    assert file_system(Path("/runner"), mounts) == "ext4"
    assert file_system(Path("/run/node"), mounts) == "tmpfs"


def test_memory_is_that_of_the_control_group_if_that_is_less(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 4096 kB\n")
    assert available_memory(tmp_path / "meminfo", tmp_path) == 4096 * 1024
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert available_memory(tmp_path / "meminfo", tmp_path) == 600
    (tmp_path / "memory.stat").write_text("active_file 50\ninactive_file 100\n")
    assert available_memory(tmp_path / "meminfo", tmp_path) == 700
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(tmp_path / "meminfo", tmp_path) == 4096 * 1024


def test_memory_limits_of_the_first_version_of_control_groups_count(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable: 4096 kB\n")
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text("1000\n")
    (folder / "memory.usage_in_bytes").write_text("900\n")
    assert available_memory(tmp_path / "meminfo", tmp_path) == 100
    (folder / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 800\n")
    assert available_memory(tmp_path / "meminfo", tmp_path) == 900


def topic(leader: int, replicas: tuple[int, ...], isr: tuple[int, ...]) -> TopicInfo:
    partition = PartitionInfo(
        partition=0, leader_id=leader, leader_epoch=1, replicas=replicas, isr=isr, offline_replicas=()
    )
    return TopicInfo(
        name="orders", topic_id=None, is_internal=False, error_code=ErrorCode.none, partitions={0: partition}
    )


def test_partitions_without_leader_or_replicas() -> None:
    assert [one.state for one in partitions([topic(1, (1, 2), (1, 2))])] == ["ok"]
    (offline,) = partitions([topic(NO_LEADER, (1, 2), (2,))])
    assert (offline.check, offline.state) == ("offline partitions", "wrong")
    (short,) = partitions([topic(1, (1, 2, 3), (1, 3))])
    assert (short.check, short.state) == ("replicas", "wrong")
    assert "orders-0 (not in sync: 2)" in short.message


def description(*, age_s: float) -> TransactionDescription:
    return TransactionDescription(
        transactional_id="pay",
        producer_id=7,
        producer_epoch=0,
        state="Ongoing",
        timeout_ms=60_000,
        started_at=NOW - datetime.timedelta(seconds=age_s),
        partitions=(TP,),
        coordinator_id=1,
    )


def test_a_transaction_over_its_timeout() -> None:
    assert over_timeout([description(age_s=65)], NOW) == []
    (found,) = over_timeout([description(age_s=75)], NOW)
    assert found.fix == "End it: `chronik transaction abort pay`."


@pytest.mark.parametrize(
    ("age_ms", "known", "count"), [(HANGING_MS - 1, 0, 0), (HANGING_MS + 1, 0, 1), (HANGING_MS + 1, 1, 0)]
)
def test_a_transaction_that_no_coordinator_knows(age_ms: int, known: int, count: int) -> None:
    found = hanging([(TP, open_producer(7, age_ms))], [description(age_s=1)] * known, NOW)
    assert len(found) == count
    assert all("--topic orders --partition 0 --producer-id 7" in (one.fix or "") for one in found)


def open_producer(producer_id: int, age_ms: int) -> ActiveProducer:
    return ActiveProducer(
        producer_id=producer_id,
        producer_epoch=0,
        last_sequence=0,
        last_timestamp_ms=int(NOW.timestamp() * 1000) - age_ms,
        coordinator_epoch=0,
        transaction_start_offset=4,
    )


def test_very_many_open_transactions_take_one_look_at_each_that_is_known() -> None:
    looks = 0

    class Known(list[TransactionDescription]):
        def __iter__(self) -> Iterator[TransactionDescription]:
            nonlocal looks
            for one in super().__iter__():
                looks += 1
                yield one

    known = Known([description(age_s=1)] * 500)
    producers = [(TP, open_producer(100 + n, HANGING_MS + 1)) for n in range(500)]
    found = hanging(producers, known, NOW)
    assert looks == len(known)
    assert len(found) == HANGING_MAX + 1
    assert found[-1].message == "400 more hang like these"


@pytest.mark.parametrize(
    ("free_gb", "total_gb", "inodes", "state"),
    [
        (50, 100, None, "ok"),
        (15, 100, 10_000, "ok"),
        (14.9, 100, None, "warning"),
        (5, 100, None, "warning"),
        (4.9, 100, None, "wrong"),
        (0.9, 4, None, "wrong"),
        (50, 100, 9_999, "wrong"),
        (0, 0, None, "wrong"),
    ],
)
def test_how_full_a_disk_may_be(free_gb: float, total_gb: float, inodes: int | None, state: str) -> None:
    """Shares are of the whole; less than a gigabyte is too little whatever the share."""
    found = disk_space(int(free_gb * 2**30), int(total_gb * 2**30), inodes)
    assert (found.check, found.state) == ("disk", state)
    assert (found.fix is None) == (state == "ok")
