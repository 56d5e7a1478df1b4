// What is wrong with the cluster and the machines of its nodes, and what to do about it: `chronik doctor`.

import { get } from "/console/api.js";
import { clock, counted } from "/console/format.js";
import { useLoad } from "/console/load.js";
import { Badge, Card, Loaded, NodeBadge, Page, Sentence, html, stateOf } from "/console/parts.js";
import { Table } from "/console/table.js";
import { FilesOnDisk } from "/console/pages/verify.js";

const PERIOD_MS = 15000;
const KINDS = { wrong: "bad", warning: "warn", unknown: "", ok: "ok" };
const whose = (one) => (one.node_id === null ? html`<${Badge}>cluster<//>` : html`<${NodeBadge} id=${one.node_id} />`);

const COLUMNS = [
  { title: "Check", by: (one) => one.check, show: (one) => html`<b>${one.check}</b><div class="show-narrow wrap dim"><${Sentence} text=${one.message} /></div>` },
  { title: "Of", by: (one) => one.node_id, show: whose },
  { title: "State", by: (one) => one.state, show: (one) => html`<${Badge} kind=${KINDS[one.state]}>${one.state}<//>` },
  { title: "What was seen", narrow: false, show: (one) => html`<span class="wrap"><${Sentence} text=${one.message} /></span>` },
];

export function Doctor() {
  const load = useLoad(() => get("/admin/doctor", { timeout: 65000 }), [], PERIOD_MS);
  return html`<${Page} title="Doctor" sub="what is wrong, and what to do" state=${stateOf(load)}
    actions=${html`${load.at > 0 && html`<span class="dim">looked at ${clock(load.at)}</span>`}<button type="button" onClick=${load.reload}>Look again</button>`}>
    <${Loaded} of=${load}>${({ findings }) => html`<div class="stack live"><${Troubles} findings=${findings} />
      <${Card} title="All that was looked at" flush><${Table} label="Findings" columns=${COLUMNS} rows=${findings} keyOf=${(one) => `${one.node_id} ${one.check} ${one.message}`} /><//>
      <${FilesOnDisk} /></div>`}<//>
  <//>`;
}

// What is the same on several nodes is told once.
function gathered(findings) {
  const found = new Map();
  for (const one of findings.filter((one) => one.fix)) {
    const key = [one.state, one.check, one.message, one.fix].join("\n");
    found.set(key, { ...one, key, nodes: [...(found.get(key)?.nodes ?? []), one.node_id] });
  }
  return [...found.values()];
}

function Troubles({ findings }) {
  const troubles = gathered(findings);
  if (troubles.length === 0) return html`<div class="verdict ok"><b>Nothing is wrong.</b> ${counted(findings.length, "thing")} were looked at.</div>`;
  return html`<div class="troubles">${troubles.map((one) => html`<article key=${one.key} class="trouble ${KINDS[one.state]}">
    <div class="row"><${Badge} kind=${KINDS[one.state]}>${one.state}<//><b>${one.check}</b>${one.nodes.map((id) => html`<span key=${id}>${whose({ node_id: id })}</span>`)}</div>
    <p><${Sentence} text=${one.message} /></p><p class="fix"><${Sentence} text=${one.fix} /></p></article>`)}</div>`;
}
