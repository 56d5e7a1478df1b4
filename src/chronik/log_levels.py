"""Levels of loggers by module, set at the start and changed while a node runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping

__all__ = ["change_log_levels", "log_levels", "logger_levels", "set_log_levels"]


def set_log_levels(levels: Mapping[str, str]) -> None:
    """Give these modules their levels; every other one has the node's own again. For the whole process."""
    for name, known in list(logging.Logger.manager.loggerDict.items()):
        if isinstance(known, logging.Logger) and _is_ours(name):
            known.setLevel(logging.NOTSET)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level.upper())


def change_log_levels(levels: Mapping[str, str | None]) -> None:
    """Give these modules their levels, or with None the node's own; leave all others as they are."""
    for name, level in levels.items():
        logging.getLogger(name).setLevel(logging.NOTSET if level is None else level)


def logger_levels() -> dict[str, str]:
    """The level that holds for each of our loggers, its own or not."""
    names = {"chronik", *filter(_is_ours, logging.Logger.manager.loggerDict)}
    return {name: logging.getLevelName(logging.getLogger(name).getEffectiveLevel()) for name in sorted(names)}


def log_levels() -> dict[str, str]:
    """The modules that have a level of their own."""
    return {
        name: logging.getLevelName(known.level).lower()
        for name, known in sorted(logging.Logger.manager.loggerDict.items())
        if isinstance(known, logging.Logger) and _is_ours(name) and known.level != logging.NOTSET
    }


def _is_ours(name: str) -> bool:
    return name == "chronik" or name.startswith("chronik.")
