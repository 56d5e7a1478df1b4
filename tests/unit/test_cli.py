"""The frame of the command line: what it says, on which stream, with which exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chronik import __version__

SOURCE = Path(__file__).parents[2] / "src"


def chronik(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CHRONIK_")}
    return subprocess.run(
        [sys.executable, "-c", "from chronik.cli import main; main()", *arguments],
        cwd=cwd,
        env={**clean, "PYTHONPATH": str(SOURCE), "COLUMNS": "200", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_version(tmp_path: Path) -> None:
    assert __version__ in chronik("version", cwd=tmp_path).stdout
    assert json.loads(chronik("version", "--json", cwd=tmp_path).stdout)["version"] == __version__


def test_config_show_names_value_and_origin(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("http_port = 7000\n")
    shown = chronik(
        "config",
        "show",
        "--json",
        "-c",
        "c.toml",
        "--node-id",
        "3",
        cwd=tmp_path,
        CHRONIK_WAL_PROFILE="ultra",
    )
    values = json.loads(shown.stdout)
    assert values["http_port"] == {"value": 7000, "origin": "c.toml, line 1"}
    assert values["node_id"] == {"value": 3, "origin": "flag --node-id"}
    assert values["wal_profile"] == {"value": "ultra", "origin": "environment CHRONIK_WAL_PROFILE"}
    assert values["kafka_port"] == {"value": 9092, "origin": "default"}
    table = chronik("config", "show", cwd=tmp_path).stdout
    assert "kafka_port" in table


@pytest.mark.parametrize("command", [("config", "show"), ("start",)])
def test_a_mistake_is_one_sentence_and_exit_code_2(command: tuple[str, ...], tmp_path: Path) -> None:
    done = chronik(*command, "--kafka-port", "http", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "chronik: --kafka-port: 'http' is no whole number, 0 to 65535\n"
    assert done.stdout == ""
    assert not list(tmp_path.iterdir())


def test_an_unknown_command_is_refused_with_code_2(tmp_path: Path) -> None:
    done = chronik("strat", cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_help_lists_every_flag(tmp_path: Path) -> None:
    from chronik.config import table

    text = chronik("start", "--help", cwd=tmp_path).stdout
    assert not [s.flag for s in table().values() if s.flag and s.flag not in text]


@pytest.mark.parametrize(("arguments", "code"), [(["version"], 0), (["no-such-command"], 2)])
def test_a_process_with_obstore_ends_without_taking_the_interpreter_down(
    arguments: list[str], code: int, tmp_path: Path
) -> None:
    """Taking it down would wait for the thread, for ever; a thread of obstore would be hurt by it."""
    program = (
        "import atexit, sys, threading, types\n"
        "from chronik.cli import main\n"
        "sys.modules['obstore'] = types.ModuleType('obstore')\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "atexit.register(print, 'at exit')\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert done.stdout.endswith("at exit\n")
    assert bool(done.stderr) == bool(code)
