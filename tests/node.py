"""A real chronik node in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

from chronik.testing import free_ports
from tests.process import ServerProcess

SOURCE = Path(__file__).parents[1] / "src"


class ChronikNode(ServerProcess):
    """`chronik start` on free loopback ports, everything it keeps in `folder`.

    `settings` are setting names with their values: ChronikNode(tmp_path, wal_profile="ultra").
    """

    name = "chronik"

    def __init__(self, folder: Path, *, env: dict[str, str] | None = None, **settings: object) -> None:
        kafka, http, wal, raft = free_ports(4)
        self.settings: dict[str, object] = {
            "kafka_port": kafka,
            "http_port": http,
            "wal_port": wal,
            "raft_port": raft,
            "data_dir": folder / "data",
            **settings,
        }
        super().__init__(folder, kafka_port=int(str(self.settings["kafka_port"])), env=env)

    @property
    def data_dir(self) -> Path:
        return Path(str(self.settings["data_dir"]))

    def command(self) -> list[str]:
        flags = [
            part
            for name, value in self.settings.items()
            for part in (
                "--" + name.replace("_", "-"),
                str(value).lower() if isinstance(value, bool) else str(value),
            )
        ]
        return [sys.executable, "-c", "from chronik.cli import main; main()", "start", *flags]

    def environment(self) -> dict[str, str]:
        inherited = {
            name: value for name, value in super().environment().items() if not name.startswith("CHRONIK_")
        }
        return {**inherited, "PYTHONPATH": str(SOURCE), **self.env}

    def segment_files(self, topic: str) -> list[Path]:
        return sorted(self.data_dir.rglob(f"{topic}-*/*.log"))
