"""Levels of this node's loggers as configs of the resource BROKER_LOGGER, as Kafka has them (KIP-412).

They are changed on the node that is asked, at once, and last until it ends. `root` stands for all of
chronik's own loggers.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from chronik.config_sources import logger_names
from chronik.log_levels import change_log_levels, logger_levels
from chronik.model import ErrorCode, RequestError
from chronik.server.services import Services

if TYPE_CHECKING:
    from kio.schema.incremental_alter_configs.v1.request import AlterConfigsResource

__all__ = ["change_loggers", "logger_entries"]

log = logging.getLogger(__name__)

_ROOT: Final = "root"
_OURS: Final = "chronik"
_SET, _DELETE = 0, 1
_SOURCE: Final = 6
"""DYNAMIC_BROKER_LOGGER_CONFIG"""
_LIST: Final = 7
_LEVELS: Final = {
    "TRACE": "DEBUG",
    "DEBUG": "DEBUG",
    "INFO": "INFO",
    "WARN": "WARNING",
    "ERROR": "ERROR",
    "FATAL": "CRITICAL",
}
"""Kafka's names, and what they are here."""
_NAMES: Final = {ours: kafkas for kafkas, ours in _LEVELS.items() if kafkas != "TRACE"}


def logger_entries(services: Services, name: str) -> list[dict[str, Any]]:
    """All loggers and the levels that hold for them."""
    _check_node(services, name)
    found = logger_levels()
    shown = {_ROOT: found.pop(_OURS, "INFO"), **found}
    return [
        {
            "name": logger,
            "value": _NAMES.get(level, level),
            "read_only": False,
            "config_source": _SOURCE,
            "is_sensitive": False,
            "synonyms": (),
            "config_type": _LIST,
            "documentation": None,
        }
        for logger, level in shown.items()
    ]


def change_loggers(services: Services, resource: AlterConfigsResource, *, validate_only: bool) -> None:
    """All of the changes or none of them."""
    _check_node(services, resource.resource_name)
    wanted: dict[str, str | None] = {}
    for config in resource.configs:
        logger = _OURS if config.name == _ROOT else config.name
        if logger not in logger_names():
            raise RequestError(ErrorCode.invalid_config, f"Logger {config.name} does not exist!")
        if logger in wanted:
            raise RequestError(ErrorCode.invalid_request, f"Config {config.name} is changed twice.")
        if config.config_operation == _DELETE:
            if logger == _OURS:
                raise RequestError(
                    ErrorCode.invalid_request, "Removing the log level of the root logger is not allowed"
                )
            wanted[logger] = None
        elif config.config_operation != _SET:
            raise RequestError(ErrorCode.invalid_request, "A logger's level is set or deleted, no more.")
        elif config.value not in _LEVELS:
            allowed = ", ".join(_LEVELS)
            raise RequestError(
                ErrorCode.invalid_config,
                f"Cannot set the log level of {config.name}: it is none of {allowed}.",
            )
        else:
            wanted[logger] = _LEVELS[config.value]
    if not validate_only:
        log.info("log levels are changed: %s", ", ".join(f"{one}={to}" for one, to in wanted.items()))
        change_log_levels(wanted)


def _check_node(services: Services, name: str) -> None:
    expected = services.settings.node_id
    if name != str(expected):
        raise RequestError(
            ErrorCode.invalid_request, f"Unexpected broker id, expected {expected} but received {name}"
        )
