"""A real server that speaks S3 (the Versity gateway, over a directory), on loopback."""

from __future__ import annotations

import os
import time
from pathlib import Path
from urllib.request import urlopen

from chronik.testing import free_ports
from tests.process import HOST, POLL_S, ServerFailed, ServerProcess

ROOT = Path(__file__).parents[1]
PROGRAM = Path(os.environ.get("FOREIGN_DIR", ROOT / ".foreign")) / "go" / "versitygw"
BUCKET = "segments"
KEY_ID = "canary-of-the-key-id-2c41"
SECRET = "canary-of-the-store-77e0"


class S3Server(ServerProcess):
    name = "S3 server"

    def __init__(self, folder: Path) -> None:
        (self.port,) = free_ports(1)
        super().__init__(folder, kafka_port=0, env={"ROOT_ACCESS_KEY": KEY_ID, "ROOT_SECRET_KEY": SECRET})

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def objects(self) -> Path:
        return self.folder / "buckets" / BUCKET

    def prepare(self) -> None:
        if not PROGRAM.exists():
            raise ServerFailed(f"{PROGRAM} is not there; `make foreign` builds it")
        self.objects.mkdir(parents=True, exist_ok=True)

    def command(self) -> list[str]:
        sidecar = self.folder / "facts"
        sidecar.mkdir(exist_ok=True)
        return [
            str(PROGRAM), "--port", f"{HOST}:{self.port}", "--health", "/health",
            "posix", "--sidecar", str(sidecar), str(self.folder / "buckets"),
        ]  # fmt: skip

    def start(self, *, timeout_s: float = 60) -> float:
        began = time.monotonic()
        self.spawn()
        while True:
            try:
                with urlopen(f"{self.endpoint}/health", timeout=2):
                    return time.monotonic() - began
            except OSError:
                pass
            if not self.running or time.monotonic() - began > timeout_s:
                raise ServerFailed(f"{self.name} does not answer: {self.log_tail()}")
            time.sleep(POLL_S)

    def settings(self, prefix: str = "chronik") -> dict[str, str]:
        return {
            "object_store": f"s3://{BUCKET}/{prefix}",
            "object_store_endpoint": self.endpoint,
        }

    def secrets(self) -> dict[str, str]:
        return {
            "CHRONIK_OBJECT_STORE_ACCESS_KEY_ID": KEY_ID,
            "CHRONIK_OBJECT_STORE_SECRET_ACCESS_KEY": SECRET,
        }
