// Transactions: which are open, since when and where; and the end of one that hangs.

import { useState } from "/console/vendor/preact.js";
import { get, post, topicPath } from "/console/api.js";
import { Confirm, openDialog, toast } from "/console/dialogs.js";
import { ago, count, duration, time, topicHref } from "/console/format.js";
import { live } from "/console/live.js";
import { useLive, useLoad, useMay } from "/console/load.js";
import { Badge, Card, Empty, Loaded, Page, Problem, html, stateOf } from "/console/parts.js";
import { Table } from "/console/table.js";

const PERIOD_MS = 5000;
const OPEN = ["Ongoing", "PrepareCommit", "PrepareAbort"];

const isLate = (one) => one.started_ms !== null && Date.now() - one.started_ms > one.timeout_ms;
const openFor = (one) => (one.started_ms === null ? null : duration((Date.now() - one.started_ms) / 1000));
const stateBadge = (one) => html`<${Badge} kind=${!OPEN.includes(one.state) ? "" : isLate(one) ? "bad" : "accent"}>${one.state}<//>`;

export function Transactions() {
  const load = useLoad(() => get("/admin/transactions"), [], PERIOD_MS);
  const end = (one) => openDialog(html`<${Confirm} title=${`End the transaction of ${one.transactional_id}?`} action="Abort it" run=${async () => {
    toast((await post("/admin/transactions/abort", { transactional_id: one.transactional_id })).message);
    load.reload();
  }}>It is open for ${duration((Date.now() - one.started_ms) / 1000)} in ${one.partitions.join(", ") || "no partition yet"}.
    What it wrote is given up, and its producer ${one.producer_id} is fenced: if it still runs, its next write fails.<//>`);
  const columns = [
    { title: "Transactional id", by: (one) => one.transactional_id, show: (one) => html`<span class="name">${one.transactional_id}</span>` },
    { title: "State", by: (one) => one.state, show: (one) => html`${stateBadge(one)}<div class="show-narrow dim">${openFor(one)}</div>` },
    { title: "Open for", num: true, narrow: false, by: (one) => -(one.started_ms ?? 0), show: (one) => openFor(one) ?? "–" },
    { title: "Timeout", num: true, narrow: false, by: (one) => one.timeout_ms, show: (one) => (one.timeout_ms === null ? "–" : duration(one.timeout_ms / 1000)) },
    { title: "Producer", num: true, narrow: false, by: (one) => one.producer_id, show: (one) => one.producer_id },
    { title: "Partitions", narrow: false, show: (one) => html`<span class="mono">${one.partitions.slice(0, 4).join(", ")}${one.partitions.length > 4 ? ` and ${one.partitions.length - 4} more` : ""}</span>` },
    { title: "", show: (one) => one.state === "Ongoing" && one.may_abort && html`<button type="button" class="small danger" onClick=${() => end(one)}>End…</button>` },
  ];
  return html`<${Page} title="Transactions" state=${stateOf(load, (answer) => answer.transactions.length === 0)}>
    <div class="stack"><${Loaded} of=${load} isEmpty=${(answer) => answer.transactions.length === 0}
      empty=${html`<${Empty} title="No transactions">A transactional producer shows up here with its first transaction.<//>`}>
      ${(answer) => html`<div class="card flush live"><${Table} label="Transactions" columns=${columns} rows=${answer.transactions} keyOf=${(one) => one.transactional_id} />
        ${answer.count > answer.transactions.length && html`<p class="pad dim">${count(answer.count)} in all; open ones are listed first.</p>`}</div>`}<//>
    <${Hanging} /></div>
  <//>`;
}

// What no coordinator knows any more holds back its partition's readers for ever.
function Hanging() {
  useLive();
  const may = useMay();
  const [place, setPlace] = useState(null);
  const submit = (event) => {
    event.preventDefault();
    const { topic, partition } = event.target.elements;
    setPlace({ topic: topic.value, partition: Number(partition.value) });
  };
  const names = live.topics.filter((one) => !one.is_internal).map((one) => one.name);
  return html`<${Card} title="Open in a partition">
    <p class="dim">A transaction that its coordinator has forgotten still holds back readers of committed records. Look where they stand still.</p>
    <form class="row fields narrow" onSubmit=${submit}>
      <label>Topic<select name="topic" required>${names.map((name) => html`<option key=${name}>${name}</option>`)}</select></label>
      <label>Partition<input name="partition" type="number" min="0" value="0" /></label><button type="submit" disabled=${names.length === 0}>Look</button></form>
    ${place && html`<${Producers} key=${`${place.topic}-${place.partition}`} ...${place} mayEnd=${may("cluster", "ALTER")} />`}<//>`;
}

function Producers({ topic, partition, mayEnd }) {
  const load = useLoad(() => get(topicPath(topic, `/producers?partition=${partition}`)), [topic, partition]);
  const end = (one) => openDialog(html`<${Confirm} title=${`End what producer ${one.producer_id} left open?`} action="Write the marker" typed=${`${topic}-${partition}`} what="partition" run=${async () => {
    toast((await post("/admin/transactions/abort", { topic, partition, producer_id: one.producer_id })).message);
    load.reload();
  }}>An abort marker is written into ${topic}-${partition} past the coordinator: its records from offset ${one.transaction_start_offset} on are given up there.
    Do this only if the producer's transaction is not listed above.<//>`);
  const columns = [
    { title: "Producer", num: true, show: (one) => one.producer_id }, { title: "Epoch", num: true, show: (one) => one.producer_epoch },
    { title: "Last write", show: (one) => html`<span title=${time(one.last_timestamp_ms)}>${ago(one.last_timestamp_ms)}</span>` },
    { title: "Open from offset", num: true, show: (one) => (one.transaction_start_offset === null ? "–" : html`<a href=${topicHref(topic, `/record/${partition}/${one.transaction_start_offset}`)}>${count(one.transaction_start_offset)}</a>`) },
    { title: "", show: (one) => one.transaction_start_offset !== null && mayEnd && html`<button type="button" class="small danger" onClick=${() => end(one)}>End…</button>` },
  ];
  if (load.error && !load.value) return html`<${Problem} error=${load.error} />`;
  return load.value && (load.value.producers.length === 0 ? html`<p class="dim">No producer is remembered there.</p>`
    : html`<${Table} label=${`Producers of ${topic}-${partition}`} columns=${columns} rows=${load.value.producers} keyOf=${(one) => one.producer_id} />`);
}
