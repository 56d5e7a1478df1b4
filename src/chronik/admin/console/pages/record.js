// One record's way through the cluster: as `chronik explain` tells it.

import { get, topicPath } from "/console/api.js";
import { bytes, count, counted, groupHref, time, topicHref } from "/console/format.js";
import { useLoad } from "/console/load.js";
import { Badge, Card, Fact, Loaded, NodeBadge, Page, html, stateOf } from "/console/parts.js";
import { Table } from "/console/table.js";

const STAGES = {
  memory: "on its way to the WAL, not durable yet",
  wal: "in the WAL: a restart replays it",
  checkpointed: "in a synced segment: the WAL is not needed",
};
const INDEX = {
  not_searchable: "the topic is not searchable", not_installed: "search is not installed on the leader",
  off: "indexing is turned off", unreadable: "the published index cannot be read",
};
const ARCHIVE = { not_configured: "no archive is configured", unreadable: "the archive cannot be read" };

export function RecordsWay({ name, partition, offset }) {
  const load = useLoad(async () => {
    const [found, groups] = await Promise.all([
      get(topicPath(name, `/explain?partition=${partition}&offset=${offset}`)), get("/admin/groups").catch(() => ({ groups: [] })),
    ]);
    return { found, groups: groups.groups };
  }, [name, partition, offset]);
  return html`<${Page} title=${`${partition} @ ${offset}`} crumb=${{ name, href: topicHref(name) }} sub="one record's way" state=${stateOf(load)}
    actions=${html`${offset > 0 && html`<a class="button small" href=${topicHref(name, `/record/${partition}/${offset - 1}`)}>Before</a>`}
      <a class="button small" href=${topicHref(name, `/record/${partition}/${offset + 1}`)}>Next</a>`}>
    <${Loaded} of=${load}>${({ found, groups }) => html`<div class="stack">
      <${Steps} found=${found} />
      ${found.batch && html`<${Batch} found=${found} />`}
      <${Replicas} found=${found} />
      <${Passed} found=${found} groups=${groups} />
    </div>`}<//>
  <//>`;
}

// From left to right what happens to a record; each step says whether it has happened.
function Steps({ found }) {
  const told = found.replicas.find((one) => one.node_id === found.reported_by).facts;
  const steps = [
    ["Written", found.batch !== null, found.batch ? time(found.batch.max_timestamp_ms) : "compaction removed it"],
    ["Durable", told.stage !== "memory", STAGES[told.stage] ?? "not known"],
    ["Replicated", found.offset < found.high_watermark, `${count(found.replicas.filter((one) => one.facts?.has_record).length)} of ${found.replicas.length} replicas have it`],
    ["Visible", found.offset < found.last_stable_offset && found.batch?.transaction !== "aborted", visible(found)],
    ["Indexed", found.index?.state === "indexed", !found.index ? "not known" : INDEX[found.index.state] ?? `the index has reached ${count(found.index.next_offset)}`],
    ["Archived", found.archive.state === "archived", ARCHIVE[found.archive.state] ?? (found.archive.state === "expired" ? "its files have expired" : `the archive has reached ${count(found.archive.next_offset)}`)],
  ];
  return html`<ol class="steps">${steps.map(([title, done, text]) => html`<li key=${title} class=${done ? "done" : ""}>
    <b>${title}<span class="hidden-text">: ${done ? "yes" : "no"}</span></b><span>${text}</span></li>`)}</ol>`;
}

function visible({ batch, offset, high_watermark: watermark, last_stable_offset: stable }) {
  if (batch?.transaction === "aborted" && offset < stable) return "to read_uncommitted alone: aborted";
  if (offset >= watermark) return "to nobody yet";
  return offset >= stable ? "to read_uncommitted: a transaction is open" : "to everybody";
}

function Batch({ found }) {
  const { batch } = found;
  const told = found.replicas.find((one) => one.node_id === found.reported_by).facts;
  return html`<${Card} title="Batch"><dl class="facts wide">
    <${Fact} label="offsets">${batch.base_offset} to ${batch.last_offset}<//>
    <${Fact} label="records">${count(batch.record_count)}<//>
    <${Fact} label="size">${bytes(batch.size_bytes)}<//>
    <${Fact} label="compression">${batch.compression}<//>
    <${Fact} label="leader epoch">${batch.leader_epoch}<//>
    <${Fact} label="timestamps">${batch.timestamp_type}<//>
    <${Fact} label="producer">${batch.producer_id === null ? "not idempotent" : `id ${batch.producer_id}, epoch ${batch.producer_epoch}`}<//>
    ${batch.is_transactional && html`<${Fact} label="transaction">${batch.marker ? `marker: ${batch.marker}` : batch.transaction}<//>`}
    <${Fact} label="segment">${told.segment ? `${told.segment}, byte ${count(told.position)}` : "–"}<//>
    ${told.wal?.state === "held" && html`<${Fact} label="WAL">${told.wal.file}, byte ${count(told.wal.position)}, round ${count(told.wal.round)}<//>`}
  </dl><//>`;
}

const REPLICAS = [
  { title: "Replica", show: (one) => html`<${NodeBadge} id=${one.node_id} />` },
  { title: "Role", show: (one) => html`<${Badge} kind=${one.is_leader ? "accent" : one.is_in_sync ? "ok" : "warn"}>${one.is_leader ? "leader" : one.is_in_sync ? "in sync" : "not in sync"}<//>` },
  { title: "This record", show: (one) => (one.facts ? (one.facts.has_record ? one.facts.stage : "no") : one.problem) },
  { title: "Acknowledged", show: (one) => (one.acknowledged ? `by ${time(one.acknowledged.by_ms)}` : one.is_leader ? "–" : "not known") },
  { title: "Start", num: true, narrow: false, show: (one) => count(one.facts?.log_start_offset) },
  { title: "End", num: true, narrow: false, show: (one) => count(one.facts?.log_end_offset) },
  { title: "Durable to", num: true, narrow: false, show: (one) => count(one.facts?.durable_end_offset) },
  { title: "Watermark", num: true, narrow: false, show: (one) => count(one.facts?.high_watermark) },
];
const Replicas = ({ found }) => html`<${Card} title="Replicas" flush><${Table} label="Replicas" columns=${REPLICAS} rows=${found.replicas} keyOf=${(one) => one.node_id} /><//>`;

function Passed({ found, groups }) {
  const rows = groups.flatMap((group) => group.partitions.filter((one) => one.topic === found.topic && one.partition === found.partition && one.committed_offset >= 0)
    .map((one) => ({ group: group.group_id, committed: one.committed_offset, passed: one.committed_offset > found.offset })));
  const columns = [
    { title: "Group", by: (one) => one.group, show: (one) => html`<a class="name" href=${groupHref(one.group)}>${one.group}</a>` },
    { title: "Committed", num: true, by: (one) => one.committed, show: (one) => count(one.committed) },
    { title: "This record", show: (one) => html`<${Badge} kind=${one.passed ? "ok" : ""}>${one.passed ? "passed" : `${counted(found.offset - one.committed + 1, "record")} to go`}<//>` },
  ];
  return html`<${Card} title="Groups" flush>${rows.length ? html`<${Table} label="Groups" columns=${columns} rows=${rows} keyOf=${(one) => one.group} />`
    : html`<p class="pad dim">No group has committed an offset in this partition.</p>`}<//>`;
}

