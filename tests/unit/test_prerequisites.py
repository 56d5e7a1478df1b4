"""A program that the tests call and the machine lacks: one sentence says which package has it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tools import check_prerequisites
from tools.check_prerequisites import PROGRAMS

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_missing_program_is_told(
    program: check_prerequisites.Program, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_prerequisites.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(check_prerequisites, "java_major", lambda: 17)
    monkeypatch.setattr(check_prerequisites, "go_minor", lambda: 21)
    monkeypatch.setattr(
        shutil, "which", lambda command: None if command in program.commands else f"/bin/{command}"
    )
    assert check_prerequisites.main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{program.name} is not installed; it is needed for ")
    assert line.endswith(f"apt-get install {' '.join(program.packages)}")


def test_what_the_compat_tests_call_is_checked() -> None:
    """Programs are named as the first word of a command, or looked up by name."""
    known = {command for program in PROGRAMS for command in program.commands}
    text = "".join(path.read_text() for path in (TESTS / "compat").rglob("*.py"))
    called = set(re.findall(r'(?:subprocess\.run\(\s*\[|shutil\.which\()"([a-z]+)"', text))
    assert "javac" in called
    assert called - known == {"bash"}, "which any machine with make has"
