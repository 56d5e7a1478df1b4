// The card of the Doctor page that checks the segments of nodes while they run.

import { get, post } from "/console/api.js";
import { Confirm, openDialog, toast } from "/console/dialogs.js";
import { bytes, clock, count, counted } from "/console/format.js";
import { useLoad, useMay } from "/console/load.js";
import { Badge, Card, Command, Loaded, NodeBadge, Note, html } from "/console/parts.js";
import { Table } from "/console/table.js";

const PERIOD_MS = 2000;
const KINDS = { running: "accent", done: "ok", cancelled: "warn", failed: "bad", never: "" };
const isRunning = (one) => one.report?.state === "running";

const FINDINGS = [
  { title: "Node", show: (one) => html`<${NodeBadge} id=${one.node_id} />` },
  { title: "File", show: (one) => html`<span class="mono wrap">${one.file}</span>` },
  { title: "Byte", num: true, show: (one) => (one.position < 0 ? "–" : count(one.position)) },
  { title: "What", show: (one) => html`<span class="wrap"><b>${one.kind}</b>: ${one.what}${one.offset === null ? "" : `, from offset ${count(one.offset)} on`}</span>` },
];

export function FilesOnDisk() {
  const may = useMay()("cluster", "ALTER");
  const load = useLoad(() => get("/admin/verify"), [], PERIOD_MS);
  const send = async (body) => load.give(await post("/admin/verify", body));
  const start = () => openDialog(html`<${Confirm} title="Check all closed segments?" action="Check" run=${() => send({})}>
    Every node reads its closed segments once, slowly, in a thread that rests most of the time. Nothing is repaired, and you can cancel it.<//>`);
  const cancel = async (one) => {
    try {
      await send({ node_id: one.node_id, cancel: true });
    } catch (error) {
      toast(error.message, "bad");
    }
  };
  const columns = [
    { title: "Node", show: (one) => html`<${NodeBadge} id=${one.node_id} />` },
    { title: "Check", show: (one) => (one.report ? html`<${Badge} kind=${KINDS[one.report.state]}>${one.report.state === "never" ? "not yet" : one.report.state}<//>` : html`<span class="wrap">${one.problem}</span>`) },
    { title: "Progress", show: (one) => one.report && progress(one.report) },
    { title: "Found", num: true, show: (one) => (one.report && one.report.state !== "never" ? html`<${Badge} kind=${one.report.finding_count ? "bad" : "ok"}>${count(one.report.finding_count)}<//>` : "–") },
    { title: "", show: (one) => may && isRunning(one) && html`<button type="button" class="small" onClick=${() => cancel(one)}>Cancel</button>` },
  ];
  const begin = may && html`<button type="button" onClick=${start} disabled=${load.value?.nodes.every(isRunning) ?? true}>Check the segments…</button>`;
  return html`<${Card} title="Files on disk" aside=${begin}>
    <${Loaded} of=${load} rows=${1}>${({ nodes }) => html`<div class="stack">
      <${Table} label="Checks of files" columns=${columns} rows=${nodes} keyOf=${(one) => one.node_id} />
      <${Findings} nodes=${nodes} /></div>`}<//>
    <p class="dim">Read are checksums, the order of offsets and indexes of segments that are closed and in a checkpoint. <code>chronik verify</code> also compares the WAL, checkpoints
      and metadata of a node that is stopped, and repairs:</p>
    <${Command}>chronik verify DATA_DIR<//><//>`;
}

function progress(report) {
  if (report.state === "never") return "–";
  const done = `${count(report.partitions_done)} of ${counted(report.partitions, "partition")}, ${bytes(report.bytes_done)}`;
  const aside = report.changed_meanwhile ? `, ${counted(report.changed_meanwhile, "segment")} changed meanwhile` : "";
  const ended = report.ended_ms === null ? "" : `, ended at ${clock(report.ended_ms)}`;
  return html`${done}${aside}${ended}${report.problem && html`<div class="wrap">${report.problem}</div>`}${report.file && html`<div class="mono wrap faint">${report.file}</div>`}`;
}

function Findings({ nodes }) {
  const rows = nodes.flatMap((one) => (one.report?.findings ?? []).map((found) => ({ ...found, node_id: one.node_id })));
  const hidden = nodes.reduce((sum, one) => sum + (one.report?.finding_count ?? 0), 0) - rows.length;
  if (rows.length === 0 && hidden === 0) return null;
  return html`<${Note} kind="bad">A reader that meets damage makes the node take the records from a replica that is in sync, if there is one. Damaged indexes are passed over.<//>
    <${Table} label="Damaged files" columns=${FINDINGS} rows=${rows} keyOf=${(one) => `${one.node_id} ${one.file} ${one.kind}`} />
    ${hidden > 0 && html`<p class="dim">${count(hidden)} more are not shown: a node keeps the first ones, of topics that you may see.</p>`}`;
}
