from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from chronik.check import write_history
from chronik.cli import build
from tests.unit.check.test_checker import final, send


def run(*arguments: str):
    return CliRunner().invoke(build("check"), ["check", *arguments])


def test_a_clean_history(tmp_path: Path) -> None:
    file = tmp_path / "history"
    file.write_bytes(b"".join(write_history([send("p.1", 0), final(0, "p.1")])))
    result = run(str(file))
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "no anomaly"


def test_a_lost_write_is_named_and_sets_the_exit_code(tmp_path: Path) -> None:
    file = tmp_path / "history"
    file.write_bytes(b"".join(write_history([send("p.1", 0, acks=1), final(0)])))
    assert run(str(file)).exit_code == 0
    result = run(str(file), "--acks-one")
    assert result.exit_code == 1
    assert "lost write: t-0: 'p.1'" in result.stdout
    assert json.loads(run(str(file), "--acks-one", "--json").stdout)["counts"] == {"lost write": 1}
