"""`make audit`: which releases it asks about, and what it makes of the answers."""

from __future__ import annotations

import urllib.error

import pytest

from tools import audit

LOCK = """\
# comment==1.0
jinja2==2.4.1 \\
    --hash=sha256:00
    # via other==3
uvicorn[standard]==0.30.1 ; python_version > "3" \\
    --hash=sha256:00
"""
ANSWER = {
    "vulnerabilities": [
        {"id": "PYSEC-1", "aliases": ["CVE-1"], "fixed_in": ["2.5"], "summary": "It leaks."},
        {"id": "PYSEC-2", "withdrawn": "2026-01-01T00:00:00Z"},
    ]
}


def test_what_is_locked_is_asked_about_once() -> None:
    assert audit.locked([LOCK, LOCK]) == [("jinja2", "2.4.1"), ("uvicorn", "0.30.1")]


def test_a_vulnerability_fails_and_silence_is_not_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        audit, "ask", lambda release: audit.advisories(ANSWER) if release[0] == "ruff" else []
    )
    assert audit.main() == 1
    assert "PYSEC-1, CVE-1, fixed in 2.5: It leaks." in (told := capsys.readouterr().out)
    assert "PYSEC-2" not in told
    monkeypatch.setattr(audit, "ask", lambda _: [])
    assert audit.main() == 0

    def unreachable(_: object) -> list[str]:
        raise urllib.error.URLError("no route")

    monkeypatch.setattr(audit, "ask", unreachable)
    assert audit.main() == 2
    assert "nothing was checked" in capsys.readouterr().out
