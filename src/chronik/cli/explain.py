"""`chronik explain`: one record's way, from the nodes that have it and from what Kafka's APIs tell."""

from __future__ import annotations

import asyncio
import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import typer

from chronik.cli.client import AsJson, Bootstrap, cell, print_json, print_table, run
from chronik.cli.client import (
    explain as sentence,
)
from chronik.cli.http import HttpUrl, with_http
from chronik.cli.printable import say
from chronik.model import ChronikError, TopicPartition
from chronik.words import counted, human_bytes

if TYPE_CHECKING:
    from chronik.client import Cluster
    from chronik.records.reader import Record

SHOWN_BYTES_MAX: Final = 200
"""Bytes shown of a key, a value or a header, on the terminal and in JSON."""
ASKED_AT_ONCE: Final = 16

_STAGES: Final = {
    "memory": "on its way to the WAL, not durable yet",
    "wal": "in the WAL: a restart replays it",
    "checkpointed": "checkpointed: its segment is synced, the WAL is not needed",
}
_INDEX: Final = {
    "not_searchable": "no: the topic's config searchable is false",
    "not_installed": "no: the leader runs without the extra chronik[query]",
    "off": "no: disable_realtime_index is set and nothing is published",
    "unreadable": "not known: the published index cannot be read on the leader",
}
_ARCHIVE: Final = {
    "not_configured": "no: archive_dir is not set",
    "unreadable": "not known: the archive cannot be read on the node",
}


def register(app: typer.Typer) -> None:
    app.command()(explain)


def explain(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0, show_default=False)],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, show_default=False)],
    as_json: AsJson = False,
    url: HttpUrl = None,
    servers: Bootstrap = None,
) -> None:
    """Show one record's way: batch, producer, files, replicas, who sees it, groups, search index, archive.

    Examples:

      chronik explain orders 0 42

      chronik explain orders 0 42 --json | jq '.replicas\\[] | .facts.has_record'
    """
    path = f"/admin/topics/{quote(topic, safe='')}/explain?partition={partition}&offset={offset}"
    found: dict[str, Any] = with_http(url, servers, lambda http: http.get(path))
    tp = TopicPartition(topic, partition)

    async def work(cluster: Cluster) -> tuple[Any, Any]:
        batch = found["batch"]
        is_record = batch["marker"] is None if batch is not None else _is_in_store(found)
        is_readable = is_record and offset < found["high_watermark"]
        record = await _record(cluster, tp, offset) if is_readable else None
        return record, await _groups(cluster, tp, offset)

    found["record"], found["groups"] = run(servers, work)
    if as_json:
        print_json(found)
    else:
        _show(found)


# --- what Kafka's APIs tell ------------------------------------------------------------------------


async def _record(cluster: Cluster, tp: TopicPartition, offset: int) -> dict[str, Any] | None:
    """What a consumer reads there; None if compaction removed it from its batch."""
    from chronik.client import Consumer

    async with Consumer(cluster) as consumer:
        consumer.assign({tp: offset})
        async for one in consumer.records({tp: offset + 1}):
            return _preview(one.record)
    return None


def _preview(record: Record) -> dict[str, Any]:
    if record.unreadable is not None:
        return {"error": str(record.unreadable)}
    return {
        "timestamp_ms": record.timestamp_ms,
        "key": shortened(record.key),
        "key_bytes": None if record.key is None else len(record.key),
        "value": shortened(record.value),
        "value_bytes": None if record.value is None else len(record.value),
        "headers": [[name, shortened(content)] for name, content in record.headers],
    }


def shortened(content: bytes | None) -> str | None:
    """The beginning of it as text; bytes that are no text as Python writes them."""
    if content is None:
        return None
    shown = content[:SHOWN_BYTES_MAX]
    try:
        # A character may have been cut in two.
        text = shown.decode("utf-8", "ignore" if len(content) > len(shown) else "strict")
    except UnicodeDecodeError:
        text = repr(shown)[2:-1]
    return text + ("..." if len(content) > len(shown) else "")


async def _groups(cluster: Cluster, tp: TopicPartition, offset: int) -> list[dict[str, Any]]:
    """Groups that committed an offset in this partition; a group that cannot be asked says why."""
    from chronik.client.groups import Groups

    groups = Groups(cluster)
    at_once = asyncio.Semaphore(ASKED_AT_ONCE)

    async def ask(group_id: str) -> dict[str, Any] | None:
        async with at_once:
            try:
                committed = (await groups.offsets(group_id)).get(tp)
            except ChronikError as error:
                return {"group": group_id, "committed": None, "has_passed": None, "problem": sentence(error)}
        if committed is None or committed.offset < 0:
            return None
        return {
            "group": group_id,
            "committed": committed.offset,
            "has_passed": committed.offset > offset,
            "problem": None,
        }

    answers = await asyncio.gather(*(ask(one.group_id) for one in await groups.list()))
    return [one for one in answers if one is not None]


# --- on the terminal -------------------------------------------------------------------------------


def _show(found: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    say(f"{found['topic']}-{found['partition']}, offset {found['offset']}")
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, said in facts(found):
        table.add_row(name, cell(said))
    Console().print(table)
    rows = []
    for one in found["replicas"]:
        known = one["facts"] or {}
        role = "leader" if one["is_leader"] else "in sync" if one["is_in_sync"] else "not in sync"
        rows.append(
            (
                one["node_id"],
                role,
                known.get("log_start_offset"),
                known.get("log_end_offset"),
                known.get("durable_end_offset"),
                known.get("high_watermark"),
                _has_it(one, found["offset"]),
                _when(one),
            )
        )
    headings = (
        "#replica",
        "role",
        "#start",
        "#end",
        "#durable to",
        "#watermark",
        "this record",
        "had it",
    )
    print_table(headings, rows)
    if found["groups"]:
        passed = [(one["group"], one["committed"], _passed(one)) for one in found["groups"]]
        print_table(("group", "#committed", "this record"), passed)
    else:
        print("No group has committed an offset in this partition.")


def _has_it(replica: dict[str, Any], offset: int) -> str:
    known = replica["facts"]
    if known is None:
        return str(replica["problem"])
    if not known["has_record"]:
        if offset >= known["log_end_offset"]:
            return "no"
        return "in the object store alone" if offset >= known["log_start_offset"] else "deleted"
    return str(known["stage"])


def _when(replica: dict[str, Any]) -> str:
    """When the leader had the record, and when a follower had told it that it has it."""
    ack = replica["acknowledged"]
    if ack is None:
        return "unknown"
    after, by = ack["after_ms"], ack["by_ms"]
    if after is None:
        return f"by {_time(by)}"
    return f"at {_time(by)}" if after == by else f"between {_time(after)} and {_time(by)}"


def _passed(group: dict[str, Any]) -> str:
    if group["problem"] is not None:
        return str(group["problem"])
    return "passed" if group["has_passed"] else "not yet"


def facts(found: dict[str, Any]) -> list[tuple[str, str]]:
    """What is known of the record, as lines for people."""
    known = next(one["facts"] for one in found["replicas"] if one["node_id"] == found["reported_by"])
    lines = [*_content_lines(found), *_batch_lines(found)]
    if known["segment"] is not None:
        written = "" if known["is_in_file"] else ", not written out yet"
        where = f"node {found['reported_by']}: {known['segment']}, byte {known['position']:,}{written}"
        lines.append(("segment", where))
    lines.append(("WAL", _durable(known)))
    lines.append(("visible", _visible(found)))
    index, archive = found["index"], found["archive"]
    if index is not None:
        lines.append(("search index", _INDEX.get(index["state"]) or _reached(index, "indexed", "index")))
    lines.append(("archive", _ARCHIVE.get(archive["state"]) or _archived(archive)))
    lines.append(("object store", _remote(found.get("remote"))))
    return lines


def _is_in_store(found: dict[str, Any]) -> bool:
    return bool((found["remote"] or {}).get("has_record"))


def _remote(copy: dict[str, Any] | None) -> str:
    if copy is None:
        return "none: nothing of the partition is there (remote.storage.enable)"
    if copy["has_record"]:
        name = f"in {copy['object']}; " if copy["object"] is not None else ""
        return f"yes; {name}it has the offsets {copy['start_offset']} to {copy['end_offset'] - 1}"
    return f"not yet; it has the partition up to {copy['end_offset'] - 1}"


def _durable(known: dict[str, Any]) -> str:
    """How durable the record is. It has no stage if no local disk holds it any more."""
    if known["stage"] is None:
        return "not needed: the object store has the record, the local copy is gone"
    return _STAGES[known["stage"]] + _wal_place(known["wal"])


def _wal_place(wal: dict[str, Any] | None) -> str:
    if wal is None or wal["state"] == "waiting":
        return ""
    if wal["state"] == "held":
        return f"; {wal['file']}, byte {wal['position']:,}, round {wal['round']}"
    return {
        "gone": "; the WAL does not hold it any more",
        "unknown": "; whether the WAL still holds it is not known: too many entries came after",
    }[wal["state"]]


def _content_lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    record, batch = found["record"], found["batch"]
    if batch is None and not _is_in_store(found):
        return [("record", "none: compaction removed it, a later record has the same key")]
    if batch is not None and batch["marker"] is not None:
        return [("record", f"none: a marker that ends a transaction ({batch['marker']})")]
    if record is None:
        if found["offset"] >= found["high_watermark"]:
            return [("record", "not shown: it is not committed yet")]
        return [("record", "none: compaction removed it from its batch")]
    if "error" in record:
        return [("record", record["error"])]
    lines = [("key", _content(record["key"], record["key_bytes"]))]
    lines.append(("value", _content(record["value"], record["value_bytes"])))
    lines += [("header", f"{name}: {content}") for name, content in record["headers"]]
    kind = f" ({batch['timestamp_type']})" if batch is not None else ""
    lines.append(("timestamp", f"{_time(record['timestamp_ms'])}{kind}"))
    return lines


def _content(shown: str | None, size: int | None) -> str:
    return "null" if shown is None or size is None else f"{shown}  ({human_bytes(size)})"


def _time(timestamp_ms: int) -> str:
    if timestamp_ms < 0:
        return "none"
    try:
        found = datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
    return found.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", " UTC")


def _batch_lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    batch = found["batch"]
    if batch is None:
        if _is_in_store(found):
            return [("batch", "not known: the object store did not tell in time")]
        return []
    span = f"offsets {batch['base_offset']} to {batch['last_offset']}"
    codec = "not compressed" if batch["compression"] == "none" else batch["compression"]
    records = counted(batch["record_count"], "record")
    size = human_bytes(batch["size_bytes"])
    lines = [("batch", f"{span}, {records}, {size}, {codec}, leader epoch {batch['leader_epoch']}")]
    lines.append(("client", _client(found["client"], batch)))
    if batch["producer_id"] is None:
        return [*lines, ("producer", "neither idempotent nor transactional")]
    who = f"id {batch['producer_id']}, epoch {batch['producer_epoch']}"
    if batch["base_sequence"] is not None:
        who += f", sequence {batch['base_sequence']} at the batch's start"
    lines.append(("producer", who))
    if batch["is_transactional"]:
        name = found["transactional_id"]
        of = f"of {name}" if name is not None else "of an id that no coordinator knows any more"
        state = f"{batch['transaction']}, " if batch["transaction"] is not None else ""
        lines.append(("transaction", state + of))
    return lines


def _client(client: dict[str, Any] | None, batch: dict[str, Any]) -> str:
    if batch["marker"] is not None:
        return "none: the coordinator of the transaction wrote it"
    if client is None:
        return "not known: the leader remembers who wrote last, and tells those who may DESCRIBE the cluster"
    name = client["client_id"]
    return f"{'without an id' if name is None else name}, from {client['host']}:{client['port']}"


def _visible(found: dict[str, Any]) -> str:
    offset, watermark, stable = found["offset"], found["high_watermark"], found["last_stable_offset"]
    if found["batch"] is not None and found["batch"]["transaction"] == "aborted" and offset < stable:
        who = "to read_uncommitted alone: its transaction was aborted"
    elif offset >= watermark:
        who = "to nobody yet: too few in-sync replicas have it"
    elif offset >= stable:
        who = "to read_uncommitted; read_committed waits for an open transaction"
    else:
        who = "to everybody"
    return f"{who} (high watermark {watermark}, last stable offset {stable})"


def _reached(state: dict[str, Any], done: str, what: str) -> str:
    if state["state"] == done:
        return f"yes: the {what} holds everything before {state['next_offset']}"
    return f"not yet: the {what} has reached {state['next_offset']}"


def _archived(archive: dict[str, Any]) -> str:
    if archive["state"] == "expired":
        return f"no longer: step {archive['step']} took it, its files have expired"
    said = _reached(archive, "archived", "archive")
    if archive["step"] is not None:
        said += f"; step {archive['step']}"
        said += f": {', '.join(archive['files'])}" if archive["files"] else ", in a table of files"
    return said
