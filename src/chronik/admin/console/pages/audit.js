// The audit log: who did what from where, the newest first.

import { useState } from "/console/vendor/preact.js";
import { get } from "/console/api.js";
import { count, time } from "/console/format.js";
import { useLoad } from "/console/load.js";
import { Badge, Empty, Loaded, Note, Page, html, stateOf } from "/console/parts.js";
import { Table } from "/console/table.js";

const PERIOD_MS = 5000;
const COLUMNS = [
  { title: "Time", by: (one) => one.time_ms, show: (one) => html`<span class="mono nowrap">${time(one.time_ms)}</span>` },
  { title: "Who", by: (one) => one.principal, show: (one) => html`<b class="wrap">${one.principal || "?"}</b><div class="show-narrow wrap dim">${one.action} ${one.resource}</div>` },
  { title: "From", narrow: false, by: (one) => one.host, show: (one) => `${one.host}, ${one.door}` },
  { title: "Action", narrow: false, by: (one) => one.action, show: (one) => one.action },
  { title: "Resource", narrow: false, by: (one) => one.resource, show: (one) => html`<span class="mono wrap">${one.resource}</span>` },
  { title: "Decision", by: (one) => one.allowed, show: (one) => html`<${Badge} kind=${one.allowed ? "ok" : "bad"}>${one.allowed ? "allowed" : "denied"}<//>${one.count > 1 && ` × ${count(one.count)}`}` },
];

export function Audit() {
  const [text, setText] = useState("");
  const load = useLoad(() => get("/admin/audit?limit=500"), [], PERIOD_MS);
  const wanted = text.trim().toLowerCase();
  const shown = (load.value?.entries ?? []).map((one, index) => ({ ...one, index }))
    .filter((one) => [one.principal, one.host, one.action, one.resource].join(" ").toLowerCase().includes(wanted));
  return html`<${Page} title="Audit" state=${stateOf(load, () => shown.length === 0)}
    actions=${html`<input type="search" placeholder="Filter  ( / )" aria-label="Filter entries" data-focus value=${text} onInput=${(event) => setText(event.target.value)} />`}>
    ${load.value?.dropped > 0 && html`<${Note} kind="warn">${count(load.value.dropped)} entries of this node found no room and are lost.<//>`}
    <${Loaded} of=${load} isEmpty=${() => shown.length === 0} empty=${html`<${Empty} title=${wanted ? "No entry matches" : "No entries"}>
      ${load.value?.is_on ? "Refusals and changes appear here." : "The audit log is written where clients log in or ACLs decide."}<//>`}>
      ${() => html`<div class="card flush live"><${Table} label="Audit log" columns=${COLUMNS} rows=${shown} keyOf=${(one) => `${one.time_ms} ${one.principal} ${one.action} ${one.resource} ${one.index}`} /></div>`}<//>
  <//>`;
}
