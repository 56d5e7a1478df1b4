"""Options that hold for every kind of test."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--crash-rounds", type=int, default=5, help="rounds of kill -9 under load in the crash tests"
    )
