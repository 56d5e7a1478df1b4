// The nodes of the cluster: who votes, who leads; adding one, draining one, spreading replicas.

import { useState } from "/console/vendor/preact.js";
import { post } from "/console/api.js";
import { Confirm, Form, openDialog, toast } from "/console/dialogs.js";
import { bytes, count, counted, duration } from "/console/format.js";
import { live, refreshAgain } from "/console/live.js";
import { liveState, useLive, useLoad, useMay } from "/console/load.js";
import { Badge, Dot, Loaded, NodeBadge, Page, html, stateOf } from "/console/parts.js";
import { isUp } from "/console/pages/overview.js";
import { Release } from "/console/pages/release.js";
import { Table } from "/console/table.js";

const MOVING_MS = 610_000;

const statusOf = (node) => live.nodes.find((one) => one.node_id === node.node_id)?.status;
const roleOf = (node) => statusOf(node)?.raft.role;

export function Nodes() {
  useLive();
  const may = useMay()("cluster", "ALTER"), state = liveState();
  const columns = [
    { title: "Node", num: false, by: (one) => one.node_id, show: (one) => html`<span class="row nowrap"><${NodeBadge} id=${one.node_id} />${one.is_controller && html`<${Badge} kind="accent">controller<//>`}${one.is_this && html`<${Badge}>this one<//>`}</span>` },
    { title: "State", by: (one) => isUp(live, one), show: (one) => html`<span class="row nowrap"><${Dot} kind=${isUp(live, one) ? "ok" : "bad"} />${isUp(live, one) ? "up" : "down"}</span>` },
    { title: "Kafka", narrow: false, show: (one) => html`<span class="mono">${one.endpoints.kafka}</span>` },
    ...(live.cluster?.nodes.some((one) => one.rack) ? [{ title: "Rack", narrow: false, by: (one) => one.rack, show: (one) => one.rack ?? "–" }] : []),
    { title: "Metadata", narrow: false, by: roleOf, show: (one) => roleOf(one) ?? "–" },
    { title: "Leads", num: true, narrow: false, by: (one) => one.leader_count, show: (one) => count(one.leader_count) },
    { title: "Replicas", num: true, by: (one) => one.replica_count, show: (one) => html`${count(one.replica_count)}${one.isr_count < one.replica_count && html` <${Badge} kind="warn">${one.replica_count - one.isr_count} out of sync<//>`}` },
    { title: "Memory", num: true, narrow: false, by: (one) => statusOf(one)?.resident_bytes, show: (one) => bytes(statusOf(one)?.resident_bytes) },
    { title: "Up", num: true, narrow: false, by: (one) => statusOf(one)?.up_seconds, show: (one) => (statusOf(one) ? duration(statusOf(one).up_seconds) : "–") },
    ...(may ? [{ title: "", show: (one) => html`<${Actions} node=${one} />` }] : []),
  ];
  return html`<${Page} title="Nodes" state=${stateOf(state)} actions=${may && html`
      <a class="button" href="#/nodes/moves">Move replicas…</a>
      <button type="button" onClick=${() => openDialog(html`<${Rebalance} />`)}>Rebalance…</button>
      <button type="button" class="primary" onClick=${() => openDialog(html`<${Add} />`)}>Add a node…</button>`}>
    <${Loaded} of=${state}>${() => html`<div class="stack"><div class="card flush live"><${Table} label="Nodes" columns=${columns} rows=${live.cluster.nodes} keyOf=${(one) => one.node_id} sortBy=${0} /></div>
      ${live.cluster.nodes.length === 1 && html`<div class="note">This node is a cluster by itself. Start it with <code>--peers</code> to add others, and records can have replicas.</div>`}
      <${Release} /></div>`}<//>
  <//>`;
}

function Actions({ node }) {
  const role = roleOf(node);
  if (live.cluster.nodes.length === 1) return null;
  return html`<span class="row nowrap end">
    ${role === "observer" && html`<button type="button" class="small" onClick=${() => openDialog(html`<${Vote} node=${node} call="promote" />`)}>Vote…</button>`}
    ${(role === "follower" || role === "leader") && html`<button type="button" class="small" onClick=${() => openDialog(html`<${Vote} node=${node} call="demote" />`)}>Observe…</button>`}
    <button type="button" class="small danger" onClick=${() => openDialog(html`<${Drain} node=${node} />`)}>Drain…</button></span>`;
}

function Vote({ node, call }) {
  const text = call === "promote" ? "It votes on metadata from then on. If there are enough voters, another one becomes an observer." : "It follows the metadata log and does not vote. Another node becomes a voter in its place.";
  return html`<${Form} title=${call === "promote" ? `Let node ${node.node_id} vote?` : `Have node ${node.node_id} only observe?`} action=${call === "promote" ? "Let it vote" : "Only observe"} run=${async () => {
    toast((await post(`/admin/${call}-node`, { node_id: node.node_id }, { timeout: 65000 })).message);
    await refreshAgain();
  }}><p>${text}</p><//>`;
}

function Add() {
  const host = live.cluster?.nodes[0]?.endpoints.kafka?.split(":")[0] ?? "";
  const next = Math.max(0, ...(live.cluster?.nodes ?? []).map((one) => one.node_id)) + 1;
  const run = async (form) => {
    const { node_id: id, kafka, wal, raft, http } = form.elements;
    toast((await post("/admin/add-node", { node_id: Number(id.value), kafka: kafka.value, wal: wal.value, raft: raft.value, http: http.value || null })).message);
    await refreshAgain();
  };
  const field = (name, label, port, required = true) => html`<label>${label}<input name=${name} required=${required} placeholder=${`${host}:${port}`} pattern=".+:[0-9]+" title="host:port" autocomplete="off" /></label>`;
  return html`<${Form} title="Add a node" action="Add" run=${run}>
    <p class="dim">Start it before or after, with the same cluster secret and these peers. It gets replicas with the next rebalance.</p>
    <label>Node id<input name="node_id" type="number" min="0" required value=${next} /></label>
    <div class="row fields">${field("kafka", "Kafka", 9092)}${field("http", "HTTP", 6092, false)}</div>
    <div class="row fields">${field("wal", "WAL", 9291)}${field("raft", "Raft", 5001)}</div>
  <//>`;
}

// Draining takes as long as its replicas need to be copied; the dialog may be closed meanwhile.
function Drain({ node }) {
  const [force, setForce] = useState(false);
  const id = node.node_id;
  const plan = useLoad(() => post("/admin/reassign/plan", { drain: [id] }), [id]);
  const run = async () => {
    toast(`Draining node ${id}`);
    toast((await post("/admin/remove-node", { node_id: id, force }, { timeout: MOVING_MS })).message);
    await refreshAgain();
  };
  return html`<${Confirm} title=${`Drain and remove node ${id}?`} action="Drain and remove" typed=${String(id)} what="node's id" run=${run}>
    <div class="stack"><p>Its replicas and leaderships move to the other nodes first; then it leaves the cluster and can be switched off. It goes on if you close this.</p>
    ${plan.error ? html`<div class="error" role="alert">${plan.error.message}</div>` : !plan.value ? html`<p class="dim">Making a plan…</p>`
      : html`<div class="preview" aria-label="Preview">${plan.value.moves.length === 0 ? "It holds no replicas." : html`${counted(plan.value.moves.length, "partition")} would move:
        ${plan.value.moves.slice(0, 8).map((one) => html`<div key=${`${one.topic}-${one.partition}`} class="mono">${one.topic}-${one.partition}: ${one.before.join(", ")} → ${one.after.join(", ")}</div>`)}
        ${plan.value.moves.length > 8 && html`<div class="dim">and ${plan.value.moves.length - 8} more</div>`}`}</div>`}
    <label class="check"><input type="checkbox" checked=${force} onChange=${(event) => setForce(event.target.checked)} />remove it even if its replicas cannot be moved (it is gone for good)</label></div>
  <//>`;
}

function Rebalance() {
  const preview = useLoad(() => post("/admin/rebalance", { dry_run: true }, { timeout: 60000 }), []);
  const run = async () => {
    toast("Rebalancing");
    toast((await post("/admin/rebalance", {}, { timeout: MOVING_MS })).message);
    await refreshAgain();
  };
  return html`<${Form} title="Rebalance" action="Move them" run=${run} ready=${Boolean(preview.value) && preview.value.message !== "Nothing to move."}>
    <p>Spreads replicas and leaders evenly over the nodes. No replica is dropped before its successor is in sync.</p>
    ${preview.error ? html`<div class="error" role="alert">${preview.error.message}</div>` : html`<div class="preview" aria-label="Preview">${preview.value?.message ?? "Making a plan…"}</div>`}
  <//>`;
}
