"""Run a node from the built image and look at it from outside (`make container-try`).

Checks: not root and no way to write to the image, the health check, records in and out through a published
port, that `chronik doctor` knows the memory limit and the budgets follow it, SIGTERM, and that a stopped and
a killed node keep their records.
Needs podman; PODMAN says how it is called (`podman --runtime runc`), CONTAINER_ARGS what else a node's
container is started with.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shlex
import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer

sys.path.insert(0, str(Path(__file__).parents[1]))
from chronik.testing import free_ports

PODMAN = shlex.split(os.environ.get("PODMAN", "podman"))
ARGS = shlex.split(os.environ.get("CONTAINER_ARGS", ""))
NAME = f"chronik-try-{os.getpid()}"
MEMORY_MIB = 1024
RECORDS = 1000
DEADLINE_S = 120
STOP_S = 60


class Failed(Exception):
    """What was seen is not what was expected."""


def podman(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*PODMAN, *command], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    if check and done.returncode:
        raise Failed(f"podman {' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return done


def inside(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return podman("exec", NAME, *command, check=check)


def create(image: str, port: int) -> None:
    """A container as compose.yml makes one: nothing writable but the volume and /tmp, no capabilities."""
    podman(
        *("create", "--name", NAME, "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"),
        *("--security-opt", "no-new-privileges", "--memory", f"{MEMORY_MIB}m"),
        *("--volume", f"{NAME}:/var/lib/chronik", "--publish", f"127.0.0.1:{port}:{port}"),
        *("--env", f"CHRONIK_ADMIN_API_KEY={secrets.token_urlsafe(32)}", *ARGS, image),
        *("start", "--kafka-port", str(port), "--advertise", f"127.0.0.1:{port}"),
    )


def start() -> float:
    """Start and wait until the health check says yes; how long that took."""
    began = time.monotonic()
    podman("start", NAME)
    while podman("healthcheck", "run", NAME, check=False).returncode:
        state = podman("inspect", "--format", "{{.State.Status}}", NAME).stdout.strip()
        if state != "running" or time.monotonic() - began > DEADLINE_S:
            raise Failed(f"the node is {state} and not healthy:\n{podman('logs', NAME).stderr}")
    return time.monotonic() - began


def produce(bootstrap: str, first: int) -> None:
    refused: list[str] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for n in range(first, first + RECORDS):
        producer.produce(
            "tried", str(n), on_delivery=lambda error, _: refused.append(str(error)) if error else None
        )
    if producer.flush(DEADLINE_S) or refused:
        raise Failed(f"not all records were accepted: {refused[:3]}")


def consume(bootstrap: str, count: int) -> None:
    """The topic holds exactly the numbers from 0 on, in order."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": secrets.token_hex(8), "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["tried"])
    found: list[int] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count and time.monotonic() < deadline:
        record = consumer.poll(1)
        if record is not None and not record.error():
            found.append(int(record.value() or b""))
    consumer.close()
    if found != list(range(count)):
        raise Failed(f"expected {count} records in order, found {len(found)}")


def look_inside() -> None:
    uid = inside("id", "-u").stdout.strip()
    if uid == "0":
        raise Failed("the node runs as root")
    if inside("touch", "/opt/chronik/written", check=False).returncode == 0:
        raise Failed("the image can be written to")
    print(f"user {uid}, the image cannot be written to")
    said = json.loads(inside("chronik", "doctor", "--json", check=False).stdout)
    (memory,) = (one["message"] for one in said if one["check"] == "memory")
    if " MB " not in memory:
        raise Failed(f"doctor does not see the limit of {MEMORY_MIB} MiB: {memory}")
    print(f"doctor, with a limit of {MEMORY_MIB} MiB: {memory}")
    shown = json.loads(inside("chronik", "config", "show", "--json").stdout)
    budget = {name: shown[name]["value"] for name in ("memory_bytes_max", "client_state_bytes_max")}
    if budget["memory_bytes_max"] != MEMORY_MIB << 20:
        raise Failed(f"budgets do not follow the limit: {budget}")
    print(f"budgets follow the limit: {budget}")


def stop() -> None:
    began = time.monotonic()
    podman("stop", "--time", str(STOP_S), NAME)
    code = podman("inspect", "--format", "{{.State.ExitCode}}", NAME).stdout.strip()
    if code != "0":
        raise Failed(f"the stopped node ended with {code}:\n{podman('logs', NAME).stderr}")
    print(f"SIGTERM: stopped in order after {time.monotonic() - began:.1f} s, exit code 0")


def attempt(image: str) -> None:
    (port,) = free_ports(1)
    bootstrap = f"127.0.0.1:{port}"
    size = int(podman("image", "inspect", "--format", "{{.Size}}", image).stdout)
    print(f"image {image}: {size / 1e6:.0f} MB")
    create(image, port)
    print(f"healthy after {start():.1f} s")
    look_inside()
    produce(bootstrap, 0)
    consume(bootstrap, RECORDS)
    print(f"{RECORDS} records in and out from outside")
    stop()
    print(f"healthy again after {start():.1f} s")
    consume(bootstrap, RECORDS)
    produce(bootstrap, RECORDS)
    podman("kill", "--signal", "KILL", NAME)
    podman("wait", NAME)
    print(f"killed; healthy again after {start():.1f} s")
    consume(bootstrap, 2 * RECORDS)
    stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--image", default="chronik")
    image = parser.parse_args().image
    try:
        attempt(image)
    except Failed as error:
        print(f"container-try: {error}")
        return 1
    finally:
        podman("rm", "--force", "--volumes", NAME, check=False)
        podman("volume", "rm", "--force", NAME, check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
