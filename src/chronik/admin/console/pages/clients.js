// What clients tell about themselves (KIP-714): who is asked for what, who pushed, and the last values.

import { useState } from "/console/vendor/preact.js";
import { call, get, post } from "/console/api.js";
import { Confirm, Form, openDialog, toast } from "/console/dialogs.js";
import { ago, bytes, count, counted, ms, short } from "/console/format.js";
import { useLoad, useMay } from "/console/load.js";
import { Badge, Card, Dotted, Empty, Loaded, NodeBadge, Note, Page, html, stateOf } from "/console/parts.js";
import { Table } from "/console/table.js";

const PERIOD_MS = 3000;
const path = (name) => `/admin/client-metrics/${encodeURIComponent(name)}`;

export function Clients() {
  const load = useLoad(() => get("/admin/client-metrics"), [], PERIOD_MS);
  const may = useMay()("cluster", "ALTER_CONFIGS");
  const isEmpty = (answer) => answer.subscriptions.length === 0 && answer.clients.length === 0;
  const ask = (old = null) => openDialog(html`<${Subscribe} old=${old} reload=${load.reload} />`);
  return html`<${Page} title="Client metrics" sub="what clients tell about themselves (KIP-714)" state=${stateOf(load, isEmpty)}
    actions=${may && html`<button type="button" class="primary" onClick=${() => ask()}>Ask for metrics…</button>`}>
    <${Loaded} of=${load} isEmpty=${isEmpty} empty=${html`<${Empty} title="No client is asked for metrics">A subscription asks clients for theirs: latencies, rates and errors as they see them, without a change in any application.
      ${may && html`<p><button type="button" onClick=${() => ask({ name: "all", metrics: ["*"], interval_ms: 30000, match: "" })}>Ask all clients…</button></p>`}<//>`}>
      ${(answer) => html`<div class="stack live">
        ${Object.entries(answer.silent_nodes).map(([id, why]) => html`<${Note} key=${id} kind="warn">What was pushed to node ${id} is missing: ${why}.<//>`)}
        ${answer.left_out > 0 && html`<${Note}>The ${counted(answer.clients.length, "client")} that pushed last are shown; ${counted(answer.left_out, "more client")} pushed and ${answer.left_out === 1 ? "is" : "are"} left out.<//>`}
        <${Subscriptions} answer=${answer} may=${may} ask=${ask} reload=${load.reload} />
        <${Pushes} answer=${answer} /></div>`}<//>
  <//>`;
}

function Subscriptions({ answer, may, ask, reload }) {
  const end = (one) => openDialog(html`<${Confirm} title=${`Ask no longer: ${one.name}?`} action="Ask no longer" run=${async () => {
    await call("DELETE", path(one.name));
    reload();
  }}>Clients stop pushing when they next ask what is wanted.<//>`);
  const columns = [
    { title: "Subscription", by: (one) => one.name, show: (one) => html`<span class="name">${one.name}</span>` },
    { title: "Metrics", show: (one) => html`<span class="mono">${one.metrics.join(", ") || "none"}</span>` },
    { title: "Every", num: true, by: (one) => one.interval_ms, show: (one) => ms(one.interval_ms) },
    { title: "Which clients", narrow: false, show: (one) => html`<span class="mono">${one.match || "all"}</span>` },
    ...(may ? [{ title: "", show: (one) => html`<span class="row nowrap end"><button type="button" class="small" onClick=${() => ask(one)}>Change…</button><button type="button" class="small danger" onClick=${() => end(one)}>End…</button></span>` }] : []),
  ];
  return html`<${Card} title="Subscriptions" flush>${answer.subscriptions.length ? html`<${Table} label="Subscriptions" columns=${columns} rows=${answer.subscriptions} keyOf=${(one) => one.name} sortBy=${0} />`
    : html`<p class="pad dim">None: no client is asked.</p>`}<//>`;
}

function Subscribe({ old, reload }) {
  const run = async (form) => {
    const { name, metrics, interval, match } = form.elements;
    await post(path(name.value.trim()), { metrics: metrics.value, interval_ms: Math.round(Number(interval.value) * 1000), match: match.value });
    toast(`Clients are asked for ${name.value}`);
    reload();
  };
  return html`<${Form} title=${old?.metrics && old.name !== "all" ? `Change ${old.name}` : "Ask clients for metrics"} action="Ask" run=${run}>
    <label>Name<input name="name" required value=${old?.name ?? ""} placeholder="producers" autocomplete="off" /></label>
    <label>Metrics, by the start of their names<input name="metrics" class="mono" value=${old?.metrics.join(",") ?? "*"} placeholder="org.apache.kafka.producer., org.apache.kafka.consumer." /></label>
    <div class="row fields"><label>Every (seconds)<input name="interval" type="number" min="0.1" step="0.1" value=${(old?.interval_ms ?? 30000) / 1000} /></label>
      <label>Which clients<input name="match" class="mono" value=${old?.match ?? ""} placeholder="client_id=app.* (empty: all)" /></label></div>
  <//>`;
}

function Pushes({ answer }) {
  const [chosen, setChosen] = useState(null);
  const client = answer.clients.find((one) => one.instance_id === chosen) ?? answer.clients[0];
  const columns = [
    { title: "Client", by: (one) => one.client_id, show: (one) => html`<button type="button" class="link-button name" aria-pressed=${one === client} onClick=${() => setChosen(one.instance_id)}>${one.client_id || "(no client id)"}</button>` },
    { title: "Software", narrow: false, by: (one) => one.software, show: (one) => one.software || "–" },
    { title: "Address", narrow: false, by: (one) => one.address, show: (one) => html`<span class="mono">${one.address}</span>` },
    { title: "Node", num: true, narrow: false, by: (one) => one.node_id, show: (one) => html`<${NodeBadge} id=${one.node_id} />` },
    { title: "Last push", num: true, by: (one) => one.pushed_ms, show: (one) => html`<span class="row nowrap end">${Date.now() - one.pushed_ms > 2 * one.interval_ms + 5000 && html`<${Badge} kind="warn">silent<//>`}${ago(one.pushed_ms)}</span>` },
    { title: "Values", num: true, by: (one) => one.values_kept + one.values_dropped, show: (one) => (one.is_readable ? count(one.values_kept + one.values_dropped) : html`<${Badge} kind="warn">unreadable<//>`) },
    { title: "Size", num: true, narrow: false, by: (one) => one.size_bytes, show: (one) => bytes(one.size_bytes) },
  ];
  return html`<${Card} title="Clients" flush aside=${html`<span class="dim">${counted(answer.known, "client")} known; the last push of some is kept</span>`}>
      ${answer.clients.length ? html`<${Table} label="Clients" columns=${columns} rows=${answer.clients} keyOf=${(one) => one.instance_id} />`
      : html`<${Empty} title="Nobody has pushed yet">Clients ask every few minutes what is wanted of them; new ones ask when they start.<//>`}<//>
    ${client && (client.values.length < client.values_kept ? html`<${LeftOut} key=${client.instance_id} client=${client} />` : html`<${Values} client=${client} />`)}`;
}

// The list has room for the values of few clients; those of the chosen one are asked for by themselves.
function LeftOut({ client }) {
  const load = useLoad(() => get(`/admin/client-metrics?instance_id=${client.instance_id}`), [client.instance_id], PERIOD_MS);
  return html`<${Loaded} of=${load} isEmpty=${(answer) => answer.clients.length === 0} empty=${html`<${Empty} title="Not kept any more">Others pushed since; this client shows again with its next push.<//>`}>
    ${(answer) => html`<${Values} client=${answer.clients[0]} />`}<//>`;
}

const PREFIX = "org.apache.kafka.";
const VALUES = [
  { title: "Metric", by: (one) => one.name, show: (one) => html`${one.name.startsWith(PREFIX) && html`<span class="faint"><${Dotted} text=${PREFIX} /></span>`}<${Dotted} text=${one.name.startsWith(PREFIX) ? one.name.slice(PREFIX.length) : one.name} />` },
  { title: "Of", narrow: false, show: (one) => html`<span class="mono dim wrap">${one.attributes.map(([key, value]) => `${key}=${value}`).join(", ")}</span>` },
  { title: "Value", num: true, by: (one) => one.value, show: (one) => html`<b>${one.count ? short(one.value / one.count) : short(one.value)}</b> <span class="dim">${one.unit}</span>` },
  { title: "Kind", narrow: false, by: (one) => one.kind, show: (one) => html`<span class="dim">${one.kind === "histogram" ? `mean of ${count(one.count)}` : one.is_delta ? "since the push before" : one.kind}</span>` },
];

function Values({ client }) {
  const [text, setText] = useState("");
  const rows = client.values.map((one, index) => ({ ...one, index })).filter((one) => `${one.name} ${one.attributes.flat().join(" ")}`.toLowerCase().includes(text.trim().toLowerCase()));
  return html`<${Card} title=${`Last values of ${client.client_id || client.instance_id}`} flush
    aside=${html`<input type="search" placeholder="Filter metrics  ( / )" aria-label="Filter metrics" data-focus value=${text} onInput=${(event) => setText(event.target.value)} />`}>
    ${rows.length ? html`<${Table} label="Last values" columns=${VALUES} rows=${rows} keyOf=${(one) => one.index} sortBy=${0} />` : html`<p class="pad dim">No values.</p>`}
    ${client.values_dropped > 0 && html`<p class="pad dim">And ${counted(client.values_dropped, "more value")} that the node did not keep: of one push it keeps the first ones.</p>`}<//>`;
}
