// One record's way through the cluster: as `chronik explain` tells it.

import { get, topicPath } from "/console/api.js";
import { bytes, count, counted, groupHref, time, topicHref } from "/console/format.js";
import { useLoad } from "/console/load.js";
import { Badge, Card, Fact, Json, Loaded, NodeBadge, Page, html, stateOf } from "/console/parts.js";
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
    const [found, groups, content] = await Promise.all([
      get(topicPath(name, `/explain?partition=${partition}&offset=${offset}`)), get("/admin/groups").catch(() => ({ groups: [] })),
      get(topicPath(name, `/messages?partition=${partition}&offset=${offset}&limit=1`)).catch(() => ({ messages: [] })),
    ]);
    return { found, groups: groups.groups, record: content.messages.find((one) => one.offset === offset) ?? null };
  }, [name, partition, offset]);
  return html`<${Page} title=${`${partition} @ ${offset}`} crumb=${{ name, href: topicHref(name) }} sub="one record's way" state=${stateOf(load)}
    actions=${html`${offset > 0 && html`<a class="button small" href=${topicHref(name, `/record/${partition}/${offset - 1}`)}>Before</a>`}
      <a class="button small" href=${topicHref(name, `/record/${partition}/${offset + 1}`)}>Next</a>`}>
    <${Loaded} of=${load}>${({ found, groups, record }) => html`<div class="stack">
      <${Steps} found=${found} />
      <${Content} found=${found} record=${record} />
      ${found.batch && html`<${Batch} found=${found} />`}
      <${Replicas} found=${found} />
      <${Passed} found=${found} groups=${groups} />
    </div>`}<//>
  <//>`;
}

const isInStore = (found) => Boolean(found.remote?.has_record);
const toldBy = (found) => found.replicas.find((one) => one.node_id === found.reported_by).facts;
// Of a record that is on no local disk any more there is no stage.
const isInStoreAlone = (found) => isInStore(found) && !toldBy(found).has_record;

// From left to right what happens to a record; each step says whether it has happened.
function Steps({ found }) {
  const stage = toldBy(found).stage;
  const holders = found.replicas.filter((one) => one.facts?.has_record).length;
  const steps = [
    ["Written", found.batch !== null || isInStore(found), written(found)],
    ["Durable", stage === null ? isInStore(found) : stage !== "memory", STAGES[stage] ?? (isInStore(found) ? "in the object store; local copies are gone" : "not known")],
    ["Replicated", found.offset < found.high_watermark, isInStoreAlone(found) ? "it was; the object store has it now" : `${count(holders)} of ${found.replicas.length} replicas have it`],
    ["Visible", found.offset < found.last_stable_offset && found.batch?.transaction !== "aborted", visible(found)],
    ["Indexed", found.index?.state === "indexed", !found.index ? "not known" : INDEX[found.index.state] ?? `the index has reached ${count(found.index.next_offset)}`],
    ["Archived", found.archive.state === "archived", archived(found.archive)],
    ["In the object store", isInStore(found), remote(found.remote)],
  ];
  return html`<ol class="steps">${steps.map(([title, done, text]) => html`<li key=${title} class=${done ? "done" : ""}>
    <b>${title}<span class="hidden-text">: ${done ? "yes" : "no"}</span></b><span>${text}</span></li>`)}</ol>`;
}

function written({ batch, ...found }) {
  if (batch) return time(batch.max_timestamp_ms);
  return isInStore(found) ? "the object store did not tell when" : "compaction removed it";
}

function archived({ state, step, next_offset: next }) {
  if (ARCHIVE[state]) return ARCHIVE[state];
  if (state === "expired") return `step ${count(step)} took it, its files have expired`;
  return step === null ? `the archive has reached ${count(next)}` : `by step ${count(step)}`;
}

function remote(copy) {
  if (copy === null) return "nothing of the partition is there";
  return copy.has_record ? `it has ${count(copy.start_offset)} to ${count(copy.end_offset - 1)}` : `not yet: it ends at ${count(copy.end_offset - 1)}`;
}

function visible({ batch, offset, high_watermark: watermark, last_stable_offset: stable }) {
  if (batch?.transaction === "aborted" && offset < stable) return "to read_uncommitted alone: aborted";
  if (offset >= watermark) return "to nobody yet";
  return offset >= stable ? "to read_uncommitted: a transaction is open" : "to everybody";
}

function Content({ found, record }) {
  if (record === null) {
    const why = found.batch?.marker ? `A marker that ends a transaction: ${found.batch.marker}.` : found.offset >= found.high_watermark ? "It is not shown before it is committed."
      : found.batch || isInStore(found) ? "It cannot be read: compaction removed it from its batch, or the node could not fetch it." : "Compaction removed it: a later record has the same key.";
    return html`<${Card} title="Record"><p class="dim">${why}</p><//>`;
  }
  return html`<${Card} title="Record"><dl class="facts wide">
    <${Fact} label="key">${record.key === null ? html`<span class="faint">null</span>` : html`<span class="mono">${record.key}</span>`}<//>
    <${Fact} label="timestamp">${time(record.timestamp_ms)}${found.batch && ` (${found.batch.timestamp_type})`}<//>
    <${Fact} label="value's size">${bytes(record.size_bytes)}${record.is_cut ? ", cut here" : ""}${record.encoding === "utf-8" ? "" : ", shown as base64"}<//>
    ${record.headers.map(([name, value], index) => html`<${Fact} key=${index} label=${`header ${name}`}>${value ?? "null"}<//>`)}</dl>
    <pre tabindex="0" aria-label="Value">${record.is_json ? html`<${Json} value=${record.json} />` : record.error ?? record.value ?? "null"}</pre><//>`;
}

function Batch({ found }) {
  const { batch, archive } = found;
  const told = toldBy(found);
  const producer = batch.producer_id === null ? "not idempotent"
    : `id ${batch.producer_id}, epoch ${batch.producer_epoch}${batch.base_sequence === null ? "" : `, sequence ${count(batch.base_sequence)} at the batch's start`}`;
  return html`<${Card} title="Batch"><dl class="facts wide">
    <${Fact} label="offsets">${batch.base_offset} to ${batch.last_offset}<//>
    <${Fact} label="records">${count(batch.record_count)}<//>
    <${Fact} label="size">${bytes(batch.size_bytes)}<//>
    <${Fact} label="compression">${batch.compression}<//>
    <${Fact} label="leader epoch">${batch.leader_epoch}<//>
    <${Fact} label="timestamps">${batch.timestamp_type}<//>
    <${Fact} label="client">${client(found)}<//>
    <${Fact} label="producer">${producer}<//>
    ${batch.is_transactional && html`<${Fact} label="transaction">${batch.marker ? `marker: ${batch.marker}` : batch.transaction}<//>
      <${Fact} label="transactional id">${found.transactional_id ?? "not known: its coordinator has forgotten it, or you may not see it"}<//>`}
    <${Fact} label="segment">${told.segment ? `${told.segment}, byte ${count(told.position)}` : "–"}<//>
    ${told.wal?.state === "held" && html`<${Fact} label="WAL">${told.wal.file}, byte ${count(told.wal.position)}, round ${count(told.wal.round)}<//>`}
    ${archive.step !== null && html`<${Fact} label=${`archive, step ${count(archive.step)}`}>${archive.files.length ? archive.files.join(", ") : "a table of files"}<//>`}
    ${isInStore(found) && html`<${Fact} label="object">${found.remote.object ?? "not known: the store did not tell"}<//>`}
  </dl><//>`;
}

function client({ client: who, batch }) {
  if (batch.marker) return "the transaction's coordinator";
  if (who === null) return "not known: the leader remembers who wrote last, and tells those who may DESCRIBE the cluster";
  return `${who.client_id ?? "without an id"}, from ${who.host}:${who.port}`;
}

const REPLICAS = [
  { title: "Replica", show: (one) => html`<${NodeBadge} id=${one.node_id} />` },
  { title: "Role", show: (one) => html`<${Badge} kind=${one.is_leader ? "accent" : one.is_in_sync ? "ok" : "warn"}>${one.is_leader ? "leader" : one.is_in_sync ? "in sync" : "not in sync"}<//>` },
  { title: "This record", show: (one) => html`${one.facts ? one.has : one.problem}<div class="show-narrow dim">${when(one.acknowledged)}</div>` },
  { title: "Had it", narrow: false, show: (one) => when(one.acknowledged) },
  { title: "Start", num: true, narrow: false, show: (one) => count(one.facts?.log_start_offset) },
  { title: "End", num: true, narrow: false, show: (one) => count(one.facts?.log_end_offset) },
  { title: "Durable to", num: true, narrow: false, show: (one) => count(one.facts?.durable_end_offset) },
  { title: "Watermark", num: true, narrow: false, show: (one) => count(one.facts?.high_watermark) },
];

function Replicas({ found }) {
  const rows = found.replicas.map((one) => ({ ...one, has: one.facts && held(one.facts, found.offset) }));
  return html`<${Card} title="Replicas" flush><${Table} label="Replicas" columns=${REPLICAS} rows=${rows} keyOf=${(one) => one.node_id} /><//>`;
}

function held(facts, offset) {
  if (facts.has_record) return facts.stage;
  if (offset >= facts.log_end_offset) return "no";
  return offset >= facts.log_start_offset ? "in the object store alone" : "deleted";
}

// When the leader had the record, and when a follower had told it that it has it.
function when(ack) {
  if (!ack) return "not known";
  if (ack.after_ms === null) return `by ${time(ack.by_ms)}`;
  return ack.after_ms === ack.by_ms ? `at ${time(ack.by_ms)}` : `between ${time(ack.after_ms)} and ${time(ack.by_ms)}`;
}

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

