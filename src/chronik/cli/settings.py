"""Command line options made from the table of settings, so that there is no second list of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from chronik.config import Address, Setting, table
from chronik.config_sources import Resolved, environment, fit_memory, load_settings
from chronik.memory import control_group_limit

COMMON: Final = (
    "data_dir",
    "kafka_port",
    "http_port",
    "wal_port",
    "raft_port",
    "node_id",
    "bind",
    "advertise",
)
"""What a newcomer may want to set; the rest gets a panel of its own in the help."""

_METAVARS: Final = {bool: "true|false", int: "N", str: "TEXT", Path: "DIR", Address: "HOST[:PORT]"}

CONFIG_OPTION: Final = typer.Option(
    "--config", "-c", metavar="FILE", help="TOML file with settings; flags and variables win over it"
)


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for every setting to a command, which gets what was given as `flags`."""

    def run(**given: Any) -> None:
        own = {name: given.pop(name) for name in own_names}
        command(**own, flags=given)

    own_parameters = [
        parameter
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items()
        if name != "flags"
    ]
    own_names = [parameter.name for parameter in own_parameters]
    options = [_option(setting) for setting in table().values() if setting.flag]
    parameters = [*own_parameters, *options]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__ = command.__doc__
    run.__name__ = command.__name__
    return run


def load(flags: dict[str, object], config: Path | None) -> Resolved:
    return fit_memory(load_settings(flags, environment(), config), control_group_limit())


def _option(setting: Setting) -> inspect.Parameter:
    # Values stay text here: config.py reads flags, variables and files alike and words the mistakes.
    facts = [*setting.rule.choices]
    if setting.default is not None:
        facts.append(f"default: {plain(setting.default)}")
    option = typer.Option(
        setting.flag,
        metavar=_METAVARS[setting.kind],
        help=escape(setting.doc) + (f" [dim]({', '.join(facts)})[/dim]" if facts else ""),
        show_default=False,
        rich_help_panel=None if setting.name in COMMON else "More settings",
    )
    return inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option]
    )


def plain(value: object) -> str:
    """A value as a person would write it in a flag."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def escape(text: str) -> str:
    return text.replace("[", r"\[")
