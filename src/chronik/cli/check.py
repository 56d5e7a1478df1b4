"""`chronik check`: judge a history of what clients saw."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command()(check)


def check(
    history: Annotated[Path, typer.Argument(help="file with one event per line; - reads from stdin")],
    acks_one: Annotated[
        bool, typer.Option("--acks-one", help="records acknowledged with acks=1 may not be lost either")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="for scripts")] = False,
) -> None:
    """Look for lost, duplicated, reordered and wrongly shown records in a history; exit code 1: some.

    Examples:

      chronik check history.jsonl

      python -m chronik.sim --replay 7 --history history.jsonl && chronik check history.jsonl
    """
    from chronik.check import check as judge
    from chronik.check import read_history
    from chronik.check.history import HistoryError

    durable_acks = (-1, 1) if acks_one else (-1,)
    try:
        if str(history) == "-":
            verdict = judge(read_history(sys.stdin.buffer), durable_acks=durable_acks)
        else:
            with history.open("rb") as lines:
                verdict = judge(read_history(lines), durable_acks=durable_acks)
    except OSError as error:
        raise HistoryError(f"{history}: {(error.strerror or str(error)).lower()}") from None
    if as_json:
        shown = {
            "clean": verdict.is_clean,
            "counts": dict(verdict.counts),
            "anomalies": [[anomaly.kind, anomaly.what] for anomaly in verdict.anomalies],
            "sends": dict(verdict.outcomes),
            "records_read": verdict.records_read,
        }
        print(json.dumps(shown))
    else:
        for anomaly in verdict.anomalies:
            print(anomaly)
        for kind, count in sorted(verdict.counts.items()):
            print(f"{count} x {kind}")
        sends = ", ".join(f"{count} {outcome}" for outcome, count in sorted(verdict.outcomes.items()))
        print(f"sends: {sends or 'none'}; records read: {verdict.records_read}")
        print("no anomaly" if verdict.is_clean else f"{verdict.counts.total()} anomalies")
    if not verdict.is_clean:
        raise typer.Exit(1)
