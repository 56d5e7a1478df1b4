"""The audit as a page: verdict, first differences, counts, a plot of how far each replica goes."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Final

from chronik.spark.jobs.audit import Audit
from chronik.spark.jobs.plots import Part, bars, page, table, write_report

TITLE: Final = "Audit"


def html(result: Audit) -> str:
    return page(TITLE, body_of(result))


def write(result: Audit, path: Path) -> list[Path]:
    return write_report(path, TITLE, body_of(result))


def body_of(result: Audit) -> list[Part]:
    partitions = {(each.topic, each.partition) for each in result.replicas}
    records = sum(each.records for each in result.replicas)
    if result.is_clean:
        verdict = '<p class="good"><strong>Clean.</strong> Every replica agrees with every other.</p>'
    else:
        count = len(result.findings)
        verdict = f'<p class="bad"><strong>{count} finding{"s" * (count != 1)}.</strong></p>'
    body: list[Part] = [
        verdict,
        f"<p>{len(result.replicas):,} replicas of {len(partitions):,} partitions, {records:,} records.</p>",
    ]
    if result.findings:
        rows = [[f.topic, f.partition, f.offset, f.replica, f.what] for f in result.findings]
        body += [
            "<h2>Findings, first ones first</h2>",
            table(["topic", "#partition", "#offset", "replica", "what"], rows),
        ]
    if result.skipped:
        names = ", ".join(escape(name) for name in result.skipped)
        body.append(f"<p>Compacted topics, each replica checked by itself: {names}.</p>")
    wrong = {(f.topic, f.partition, f.replica) for f in result.findings}
    replicas = sorted(
        result.replicas, key=lambda each: (each.topic, each.partition, each.replica) not in wrong
    )
    body.append(
        bars(
            "Where each replica ends",
            "log end offset",
            [
                (
                    f"{each.topic}-{each.partition}, {each.replica}",
                    each.end_offset,
                    "#c53030" if (each.topic, each.partition, each.replica) in wrong else "#2f855a",
                )
                for each in replicas
            ],
        )
    )
    headings = [
        "topic",
        "#partition",
        "replica",
        "#batches",
        "#records",
        "#bytes",
        "#first",
        "#end",
        "#watermark",
    ]
    rows = [
        [
            each.topic,
            each.partition,
            each.replica,
            each.batches,
            each.records,
            each.size_bytes,
            each.first_offset,
            each.end_offset,
            result.watermarks.get((each.topic, each.partition), "-"),
        ]
        for each in result.replicas
    ]
    body += ["<h2>Replicas</h2>", table(headings, rows)]
    return body
