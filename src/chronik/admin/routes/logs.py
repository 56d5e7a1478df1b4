"""Log levels by module, changed while the node runs."""

from __future__ import annotations

import logging

import msgspec

from chronik.admin.endpoint import HttpAccess, HttpCall, endpoint
from chronik.admin.errors import HttpError, sentence
from chronik.config import ConfigError
from chronik.config_sources import parse_log_levels
from chronik.log_levels import log_levels, set_log_levels
from chronik.security.acls import Operation
from chronik.server.gate import on_cluster

log = logging.getLogger(__name__)


class LogLevels(msgspec.Struct, frozen=True):
    default: str
    """Level of every module that is not named."""
    modules: dict[str, str]


class NewLogLevels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    log: str
    """Levels as in CHRONIK_LOG: chronik.raft=debug,chronik.metadata=debug; empty for the default alone."""


@endpoint(
    "GET",
    "/admin/log",
    needs=on_cluster(Operation.DESCRIBE_CONFIGS),
    summary="Log levels of this node",
    answer=LogLevels,
    always=True,
)
async def levels(call: HttpCall) -> LogLevels:
    return LogLevels(call.context.settings.log_level, log_levels())


@endpoint(
    "POST",
    "/admin/log",
    needs=on_cluster(Operation.ALTER_CONFIGS),
    summary="Change the log levels of this node",
    body=NewLogLevels,
    answer=LogLevels,
    access=HttpAccess.CHANGE,
    always=True,
    about=lambda body: [body.log],
)
async def change_levels(call: HttpCall) -> LogLevels:
    """The levels hold until the next start, which takes them from the setting `log` again."""
    wanted: NewLogLevels = call.body
    try:
        parsed = parse_log_levels(wanted.log, "log")
    except ConfigError as error:
        raise HttpError(400, "invalid_body", sentence(str(error))) from None
    log.info("log levels are now: %s", wanted.log or call.context.settings.log_level)
    set_log_levels(parsed)
    return LogLevels(call.context.settings.log_level, log_levels())
