"""Runs many seeds on all cores; replays one with its trace; shortens a failing one."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chronik.check import write_history
from chronik.sim.scenario import SCENARIOS, Result, Scenario, run_seed

_FAILURES_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class SeedOutcome:
    """What a worker reports of a seed: small, since it travels between processes."""

    seed: int
    failures: tuple[str, ...]
    counts: Counter[str]
    acked: int
    read: int
    steps: int


@dataclass(slots=True)
class Summary:
    clean: int = 0
    failed: list[SeedOutcome] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    seeds_with: Counter[str] = field(default_factory=Counter)
    acked: int = 0
    read: int = 0

    def add(self, outcome: SeedOutcome) -> None:
        if outcome.failures:
            self.failed.append(outcome)
        else:
            self.clean += 1
        self.counts.update(outcome.counts)
        self.seeds_with.update(outcome.counts.keys())
        self.acked += outcome.acked
        self.read += outcome.read


def run_one(job: tuple[int, str]) -> SeedOutcome:
    seed, name = job
    result = run_seed(seed, SCENARIOS[name])
    gc.collect()  # a world is one large cycle; the next one takes its memory
    return SeedOutcome(seed, tuple(result.failures), result.counts, result.acked, result.read, result.steps)


def run_many(seeds: Sequence[int], scenario: Scenario, workers: int) -> Iterator[SeedOutcome]:
    """Outcomes as they come in. Workers are forked, so that imports are paid for once."""
    jobs = [(seed, scenario.name) for seed in seeds]
    if workers == 1:
        yield from map(run_one, jobs)
        return
    gc.freeze()
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        yield from pool.imap_unordered(run_one, jobs, chunksize=1)


def shrink(seed: int, scenario: Scenario) -> list[int] | None:
    """The numbers of a short list of faults with which the seed still fails; None if it does not fail.

    Leaves out ever smaller pieces of the plan as long as that goes on failing.
    """
    first = run_seed(seed, scenario)
    if not first.failures:
        return None
    kept = [fault.number for fault in first.plan]
    piece = max(1, len(kept) // 2)
    while kept:
        shorter = _without_a_piece(seed, scenario, kept, piece)
        if shorter is not None:
            kept = shorter
            piece = max(1, min(piece, len(kept)))
        elif piece == 1:
            break
        else:
            piece //= 2
    return kept


def _without_a_piece(seed: int, scenario: Scenario, kept: list[int], piece: int) -> list[int] | None:
    for start in range(0, len(kept), piece):
        rest = kept[:start] + kept[start + piece :]
        if run_seed(seed, scenario, only=rest).failures:
            return rest
    return None


def replay_command(seed: int, scenario: Scenario, only: Collection[int] | None = None) -> str:
    chosen = "" if only is None else f" --only {','.join(map(str, only)) or 'none'}"
    return f"python -m chronik.sim --scenario {scenario.name} --replay {seed}{chosen}"


def replay(seed: int, scenario: Scenario, only: Collection[int] | None, history: Path | None) -> Result:
    result = run_seed(seed, scenario, only=only, keep_trace=True)
    sys.stdout.write(result.trace)
    if history is not None:
        history.write_bytes(b"".join(write_history(result.history)))
    return result


def _report(summary: Summary, scenario: Scenario, seconds: float) -> None:
    count = summary.clean + len(summary.failed)
    print(f"\n{summary.acked} records acknowledged, {summary.read} read by consumers")
    print("faults (times, in how many seeds):")
    for kind, times in sorted(summary.counts.items()):
        print(f"  {kind:<28} {times:>8} {summary.seeds_with[kind]:>8}")
    for outcome in sorted(summary.failed, key=lambda each: each.seed)[:_FAILURES_SHOWN]:
        print(f"\nseed {outcome.seed} failed: {outcome.failures[0].splitlines()[0]}")
        print(f"  {replay_command(outcome.seed, scenario)}")
    rate = count / seconds * 60 if seconds else 0.0
    print(f"\nseeds {count}, clean {summary.clean}, failed {len(summary.failed)}, {rate:.0f} seeds/min")


def _numbers(text: str) -> list[int]:
    return [] if text == "none" else [int(part) for part in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m chronik.sim", description=__doc__)
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), default=next(iter(SCENARIOS)))
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first failing seed")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one seed and print its trace")
    parser.add_argument("--only", type=_numbers, help="with --replay: only these faults, as 1,4,7 or none")
    parser.add_argument("--history", type=Path, help="with --replay: write the history for `chronik check`")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="find a short list of faults that fails")
    given = parser.parse_args(arguments)
    scenario = SCENARIOS[given.scenario]
    if given.replay is not None:
        return int(bool(replay(given.replay, scenario, given.only, given.history).failures))
    if given.shrink is not None:
        kept = shrink(given.shrink, scenario)
        if kept is None:
            print(f"seed {given.shrink} does not fail")
            return 0
        for fault in run_seed(given.shrink, scenario, only=kept).plan:
            print(fault)
        print(replay_command(given.shrink, scenario, kept))
        return 1
    return _run_and_report(given, scenario)


def _run_and_report(given: argparse.Namespace, scenario: Scenario) -> int:
    summary = Summary()
    seeds = range(given.first, given.first + given.seeds)
    started = time.monotonic()
    shown = started
    for outcome in run_many(seeds, scenario, given.workers):
        summary.add(outcome)
        if outcome.failures:
            print(f"seed {outcome.seed} failed: {outcome.failures[0].splitlines()[0]}", flush=True)
            if given.fail_fast:
                break
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            print(f"{summary.clean + len(summary.failed)} of {len(seeds)} seeds", file=sys.stderr, flush=True)
    _report(summary, scenario, time.monotonic() - started)
    return int(bool(summary.failed))
