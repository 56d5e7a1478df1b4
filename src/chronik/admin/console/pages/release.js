// At which level the cluster is and which its nodes know; the step after which no node goes back: `chronik upgrade`.

import { get, post } from "/console/api.js";
import { Confirm, openDialog, toast } from "/console/dialogs.js";
import { useLive, useLoad, useMay } from "/console/load.js";
import { Badge, Card, Loaded, NodeBadge, Sentence, html } from "/console/parts.js";
import { Table } from "/console/table.js";

const PERIOD_MS = 10000;
const named = (release) => (release ? ` (release ${release})` : "");
const begun = (text) => text.charAt(0).toUpperCase() + text.slice(1);

export function Release() {
  const may = useMay();
  return may("cluster", "DESCRIBE") ? html`<${Levels} mayFinalize=${may("cluster", "ALTER")} />` : null;
}

function Levels({ mayFinalize }) {
  const load = useLoad(() => get("/admin/upgrade"), [], PERIOD_MS), { nodes } = useLive();
  const version = (one) => nodes.find((node) => node.node_id === one.node_id)?.status?.version ?? "–";
  const found = load.value;
  const newest = found?.nodes.reduce((most, one) => Math.max(most, one.levels?.[1] ?? 0), found.level);
  const columns = [
    { title: "Node", by: (one) => one.node_id, show: (one) => html`<${NodeBadge} id=${one.node_id} />` },
    { title: "Version", show: version },
    { title: "Levels it knows", show: (one) => (one.levels === null ? html`<${Badge} kind="bad">does not answer<//>`
      : html`<span class="row">${one.levels[0]} to ${one.levels[1]}${named(one.release) || " (newer than this node)"}${one.levels[1] < newest && html`<${Badge} kind="warn">older<//>`}</span>`) },
  ];
  const finalize = mayFinalize && found?.can_finalize && html`<button type="button" class="danger small"
    onClick=${() => openDialog(html`<${Finalize} found=${found} reload=${load.reload} />`)}>Finalize the upgrade…</button>`;
  return html`<${Card} title="Versions and level" aside=${finalize}>
    <${Loaded} of=${load} rows=${2}>${(one) => html`<div class="stack">
      <p>The cluster is at level ${one.level}${named(one.release)}. <${Sentence} text=${`${begun(one.next_step)}.`} /></p>
      <${Table} label="Versions by node" columns=${columns} rows=${one.nodes} keyOf=${(node) => node.node_id} />
      <p class="dim">Nodes write the formats of the cluster's level only. Until an upgrade is finalized, each of them can be taken back to the release before.</p></div>`}<//>
  <//>`;
}

function Finalize({ found, reload }) {
  const level = found.highest;
  const possible = useLoad(() => post("/admin/upgrade/finalize", { level, dry_run: true }), [level]);
  const run = async () => {
    await post("/admin/upgrade/finalize", { level });
    toast(`The cluster is at level ${level} now`);
    reload();
  };
  return html`<${Confirm} title=${`Raise the cluster from level ${found.level} to ${level}?`} action="Finalize" typed=${String(level)} what="new level" run=${run}>
    <div class="stack"><p>There is no way back: nodes of the release before cannot join any more, and no node can be taken back to it. Do it when you have seen the new release work.</p>
    ${possible.error ? html`<div class="error" role="alert">${possible.error.message}</div>`
      : html`<div class="preview" aria-label="Preview">${possible.value ? `Every node knows level ${level}.` : "Asking all nodes…"}</div>`}</div><//>`;
}
