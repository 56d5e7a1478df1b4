"""The reference pages of the HTTP API and of the metrics, made from the code's own tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from chronik.admin.endpoint import HttpAccess, HttpEndpoint
from chronik.admin.needs import is_by_node
from chronik.admin.routes import ENDPOINTS
from chronik.metrics import METRICS

HTTP_HEAD = """\
# HTTP

Made by `python tools/check_docs.py --write` from the endpoints themselves. Every node serves this on its HTTP port
(`--http-port`), and every node answers for the whole cluster. A running node describes itself at `/openapi.json` (OpenAPI 3.1)
and `/docs`; the console is at `/`.

- Errors are JSON: `{"code": "topic_already_exists", "message": "Topic 'orders' already exists."}` with a fitting 4xx or 5xx status.
- Bodies are JSON of at most 1 MiB; unknown fields are refused, so a typing mistake is noticed. An `int32` is a whole number of 32 bits; one that does not fit gets 400.
- **Key.** Calls marked *change* need the API key (`CHRONIK_ADMIN_API_KEY`) as `Authorization: Bearer KEY` or `X-API-Key: KEY`.
  Without a key set they work only while the node listens on loopback. Calls marked *data* show records: they need the key wherever one is set.
- **Rights.** With `authorizer=true` every call needs a login: the key, which may do everything, a user's name and password
  (`curl -u alice`), a token of the OAuth issuer (`Authorization: Bearer TOKEN`), or a client certificate. The principal is the one that
  Kafka's listeners know, and the ACLs in the last column decide: lists, searches and SQL show the topics that it may see, and no more.
- Pages of other sites cannot call a node from a visitor's browser: a foreign `Origin`, a foreign `Host` on a loopback node, or `Sec-Fetch-Site: cross-site` for anything but the console, health and metrics gets 403.

```sh
curl localhost:6092/admin/raft-status
curl localhost:6092/admin/create-topic -d '{"name": "orders", "partitions": 3, "config": {"searchable": true}}'
curl localhost:6092/orders/_search -d '{"query": {"match": {"customer": "ada"}}, "sort": [{"@timestamp": "desc"}]}'
curl localhost:6092/_sql -d '{"query": "SELECT customer, sum(total) FROM orders GROUP BY ALL"}'
```

| call | what it does | key | ACL |
|---|---|---|---|
"""
HTTP_TAIL = """
## Search

Topics with the config `searchable=true` are indexed as records arrive, by a process of their own on each node. A hit's `_id` is
`PARTITION-OFFSET`, its `_source` the record's value. Fields are paths into JSON values (`customer.name`); a record's own fields are
`_key`, `_partition`, `_offset`, `@timestamp` and `_text` (words anywhere in the value; of JSON objects, in their fields). JSON
strings are indexed word by word, in lower case; numbers, truth values and dates match as a whole.
Totals are exact. Partitions that could not be searched (no leader, an index that is being built) are counted in `_shards.failed`, and
the total's `relation` is then `gte`.
A record can be found as soon as it is committed: what the index does not have yet is read from memory, and of that the records that
the query may find are indexed for this search alone. Where those are too many (20,000, or two seconds' work, as for a range over
a field that every record has), only the index answers; `lag` counts the committed records that were not searched. `"refresh": true`
waits for the index then, five seconds at most. While others need the processors the index stands back, for ten seconds or 128 MB of
records; up to 256 MB that are not indexed yet are kept in memory. Scores of records that are not indexed yet do not compare with others.
What DeleteRecords or retention delete is not found from then on. What compaction takes is gone from the index a second or two later,
and a search with `"refresh": true` waits for that.

With `published_index_dir` set to the folder that `chronik pipeline index --to FOLDER` publishes to (every node needs it at the same
place), searches also find records that retention has deleted: the node's own index answers from where its log begins, the published one
for everything before, so nothing is found twice. A newer index is used by the first search after it was published; one that is damaged
counts in `_shards.failed`. With real-time indexing turned off, published indexes are all that is searched, and `lag` says what they lack.

## SQL

Every topic is a table: `topic`, `partition`, `offset`, `timestamp` (UTC), `key`, `value`, `headers`, and a column for each field of JSON
values. A field named like one of these is called `value.NAME`. Only SELECT is possible, and a query sees committed records up to the moment it
starts. What was read once is kept in columns, so the next query reads only what came since; conditions on `offset`, `partition` and
`timestamp` in the WHERE of a query over one topic limit what is read the first time. `offset` is a word of SQL: write `"offset"`.

With `archive_dir` set to the folder that `chronik pipeline archive --to FOLDER` writes (Parquet; a local or mounted folder that every
node sees at the same place), the archive and the log are one table. The archive's last committed step says by partition where it ends:
records before that offset are read from the archive, the others from the log, so that none is counted twice or missed, and the table
keeps what retention has deleted from the log. Archived records differ in this alone: `value` is the decoded record written as JSON again
(fields that are null are left out), and `headers` are null unless the archive was made with `--headers`. Bad records of the archive
(`_dead_letters`) are rows like any other, as they came. Days that `chronik pipeline compact --keep-days` removed are gone from the table.
Archives in Delta or Iceberg tables are for Spark; SQL here reads the log alone then.
"""
METRICS_HEAD = """\
# Metrics

Made by `python tools/check_docs.py --write` from the table in `src/chronik/metrics.py`. Prometheus scrapes them at `/metrics` of every
node. [deploy/grafana/chronik.json](../deploy/grafana/chronik.json) is a dashboard and
[deploy/prometheus/alerts.yml](../deploy/prometheus/alerts.yml) has alert rules; a test proves that both use only names listed here.
A histogram `x` has the series `x_bucket`, `x_count` and `x_sum`; p99 is
`histogram_quantile(0.99, sum by (le) (rate(x_bucket[5m])))`. `process_*` are those of prometheus-client.

| metric | kind | labels | what it says |
|---|---|---|---|
"""
_ACCESS = {
    HttpAccess.OPEN: "",
    HttpAccess.HEALTH: "key if `health_needs_key`",
    HttpAccess.METRICS: "key if `metrics_need_key`",
    HttpAccess.STATUS: "key beyond loopback",
    HttpAccess.DATA: "key (data)",
    HttpAccess.CHANGE: "key (change)",
}


def http_page() -> str:
    rows = [
        f"| `{one.method} {one.path}` | {_said(one)} | {_ACCESS[one.access]} | {_rights(one)} |\n"
        for one in ENDPOINTS
    ]
    return HTTP_HEAD + "".join(rows) + "".join(_details(one) for one in ENDPOINTS) + HTTP_TAIL


def _rights(one: HttpEndpoint) -> str:
    rights = [
        f"{operation.name} {kind.name.replace('_', ' ').capitalize()}"
        for operation, kind in one.needs.demands
    ]
    return "<br>".join((*rights, "or signed by a node") if is_by_node(one.needs) else rights).removeprefix(
        "or "
    )


def _said(one: HttpEndpoint) -> str:
    return f"{one.summary}. {one.doc}".strip().replace("|", "\\|")


def _details(one: HttpEndpoint) -> str:
    rows = [*_fields("query", one.query), *_fields("body", one.body)]
    if not rows:
        return ""
    table = "".join(f"| {place} | `{name}` | {kind} | {default} |\n" for place, name, kind, default in rows)
    return f"\n### {one.method} {one.path}\n\n| in | name | type | default |\n|---|---|---|---|\n{table}"


def _fields(place: str, kind: Any) -> Iterator[tuple[str, str, str, str]]:
    if kind is None:
        return
    for field in msgspec.structs.fields(kind):
        default = "required" if field.required else ""
        if field.default is not msgspec.NODEFAULT:
            default = f"`{msgspec.json.encode(field.default).decode()}`"
        yield place, field.encode_name, _kind(field.type), default


def _kind(kind: Any) -> str:
    """A field's type as JSON's readers know it."""
    arguments = get_args(kind)
    match get_origin(kind):
        case None:
            if kind in (NoneType, ...):
                return "null" if kind is NoneType else "..."
            return str(getattr(kind, "__name__", kind))
        case origin if origin is Annotated:
            return f"int{arguments[1].le.bit_length() + 1}"  # Int16, Int32 and Int64 are all there are
        case origin if origin is Literal:
            return " or ".join(f"`{msgspec.json.encode(one).decode()}`" for one in arguments)
        case origin if origin in (Union, UnionType):
            return " or ".join(map(_kind, arguments))
        case origin:
            return f"{origin.__name__}[{', '.join(map(_kind, arguments))}]"


def metrics_page() -> str:
    rows = [
        f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} | {one.doc} |\n"
        for one in METRICS.values()
    ]
    return METRICS_HEAD + "".join(rows)


def unknown_metrics(root: Path) -> Iterator[str]:
    """Names in the dashboard, the alerts and the pages that no node has."""
    known = {name for metric in METRICS.values() for name in (metric.name, *metric.samples())}
    files = [*root.glob("deploy/**/*.json"), *root.glob("deploy/**/*.yml"), *root.glob("docs/**/*.md")]
    for path in sorted(files):
        for name in sorted(set(re.findall(r"\bchronik_[a-z0-9_]+\b", path.read_text()))):
            if name not in known:
                yield f"{path.relative_to(root)}: there is no metric {name}"
