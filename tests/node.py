"""A real chronik node in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

from chronik.testing import free_ports
from tests.process import HOST, ServerProcess

SOURCE = Path(__file__).parents[1] / "src"
RECORDER = Path(__file__).parent / "recorder"
"""Notes which client sends what, for docs/PROTOCOL.md."""


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

    def open_peer_ports(self) -> None:
        """Be a cluster of one: without peers a node does not listen on its WAL and Raft ports."""
        config = self.data_dir.parent / "chronik.toml"
        config.parent.mkdir(parents=True, exist_ok=True)
        addresses = "\n".join(
            f'{name} = "{HOST}:{self.settings[f"{name}_port"]}"' for name in ("kafka", "wal", "raft", "http")
        )
        config.write_text(f"[[peers]]\nid = {self.settings.get('node_id', 1)}\n{addresses}\n")
        self.settings["config"] = config

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
        return {**inherited, "PYTHONPATH": f"{RECORDER}:{SOURCE}", **self.env}

    def segment_files(self, topic: str) -> list[Path]:
        return sorted(self.data_dir.rglob(f"{topic}-*/*.log"))
