"""Whether the libraries of search and SQL are installed: they are an extra that a broker alone does not
need."""

from __future__ import annotations

import importlib.util
from typing import Final

__all__ = ["NOT_INSTALLED", "is_installed"]

NOT_INSTALLED: Final = (
    "Search and SQL are not installed on this node: run pip install 'chronik[query]' and start it again."
)
_MODULES: Final = ("duckdb", "pyarrow", "pytz", "tantivy")
"""The modules of the extra `query`. The node itself imports none of them, its query process does."""


def is_installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in _MODULES)
