"""What `chronik doctor` says: one finding for each thing it looked at, with the way out of what is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

State: TypeAlias = Literal["ok", "warning", "wrong", "unknown"]
"""`unknown`: it could not be looked at, which is nobody's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str
    state: State
    message: str
    fix: str | None = None
    """One sentence; every warning and everything wrong has one."""


def ok(check: str, message: str) -> Finding:
    return Finding(check=check, state="ok", message=message)


def warning(check: str, message: str, fix: str) -> Finding:
    return Finding(check=check, state="warning", message=message, fix=fix)


def wrong(check: str, message: str, fix: str) -> Finding:
    return Finding(check=check, state="wrong", message=message, fix=fix)


def unknown(check: str, message: str) -> Finding:
    return Finding(check=check, state="unknown", message=message)
