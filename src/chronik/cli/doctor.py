"""`chronik doctor`: what is wrong on this machine and in this cluster, and what to do about it."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from chronik.cli.client import AsJson, Bootstrap, CommandFailed, print_json, print_table, run
from chronik.cli.printable import say
from chronik.cli.settings import CONFIG_OPTION, load, with_settings
from chronik.cli.start import StartFailed, refuse_open_doors
from chronik.config import Settings
from chronik.config_sources import BOOTSTRAP_VARIABLE, Resolved, environment
from chronik.doctor.findings import Finding, unknown, wrong
from chronik.doctor.machine import look_at_machine
from chronik.doctor.start import look_at_start
from chronik.doctor.store import look_at_store
from chronik.local.process import is_in_use

SOMETHING_WRONG = 1
"""Exit code when a finding is wrong; warnings alone leave with 0."""
ASK_SECONDS = 30.0

_StuckAfter = Annotated[
    float,
    typer.Option(
        "--stuck-after", metavar="SECONDS", min=0.0, help="a group that rebalances longer than this is stuck"
    ),
]


def register(app: typer.Typer) -> None:
    app.command()(with_settings(doctor))


def doctor(
    config: Annotated[Path | None, CONFIG_OPTION] = None,
    stuck_after: _StuckAfter = 10.0,
    as_json: AsJson = False,
    servers: Bootstrap = None,
    *,
    flags: dict[str, object],
) -> None:
    """Look for what is wrong on this machine and in the cluster, and say what to do; exit code 1: something.

    Takes what `chronik start` takes, so that it looks at the ports and the directory that a start would use.

    Examples:

      chronik doctor

      chronik doctor --config cluster.toml --node-id 2 --json

      chronik doctor --bootstrap broker.example:9092
    """
    resolved = load(flags, config)
    findings = [
        *_look_at_start(resolved),
        *look_at_machine(resolved.settings),
        *asyncio.run(look_at_store(resolved.settings)),
        *_look_at_cluster(resolved.settings, servers, stuck_after=stuck_after),
    ]
    if as_json:
        print_json([dataclasses.asdict(finding) for finding in findings])
    else:
        _show(findings)
    if any(finding.state == "wrong" for finding in findings):
        raise typer.Exit(SOMETHING_WRONG)


def _look_at_start(resolved: Resolved) -> list[Finding]:
    settings, refusal = resolved.settings, None
    try:
        refuse_open_doors(settings)
    except StartFailed as error:
        refusal = str(error)
    is_running = is_in_use(settings.data_dir)
    return look_at_start(settings, refusal=refusal, doubts=resolved.warnings, is_running=is_running)


def _look_at_cluster(settings: Settings, servers: str | None, *, stuck_after: float) -> list[Finding]:
    from chronik.doctor.cluster import look_at_cluster

    is_named = servers is not None or BOOTSTRAP_VARIABLE in environment()
    is_running = is_in_use(settings.data_dir)
    if not is_named:
        servers = f"{settings.reachable_here}:{settings.kafka_port}"
    peers = [peer.id for peer in settings.peers]
    try:
        return run(
            servers,
            lambda cluster: look_at_cluster(cluster, expected=peers, stuck_after_s=stuck_after),
            timeout=ASK_SECONDS + stuck_after,
        )
    except CommandFailed as error:
        if is_named or is_running:
            return [
                wrong(
                    "cluster",
                    str(error).partition(":")[0] if not is_running else str(error),
                    "Start the nodes (`chronik start`), or look into their logs for why they do not answer.",
                )
            ]
        return [unknown("cluster", "no node runs here: start one with `chronik start`, then look again")]


def _show(findings: list[Finding]) -> None:
    print_table(
        ("check", "state", "what was seen"),
        ([finding.check, finding.state, finding.message] for finding in findings),
    )
    troubles = [finding for finding in findings if finding.fix is not None]
    for finding in sorted(troubles, key=lambda one: one.state != "wrong"):
        say(f"{finding.state}: {finding.check}: {finding.message}\n  {finding.fix}")
    if not troubles:
        print("Nothing is wrong.")
