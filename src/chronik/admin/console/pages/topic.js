// One topic: its records, its partitions, a place to write one, its configs; and what changes all of it.

import { useState } from "/console/vendor/preact.js";
import { call, get, post, topicPath } from "/console/api.js";
import { Chart } from "/console/chart.js";
import { Confirm, Form, openDialog, toast } from "/console/dialogs.js";
import { bytes, count, counted, short, topicHref } from "/console/format.js";
import { lastRate, live, refreshAgain } from "/console/live.js";
import { liveState, useLive, useLoad, useMay } from "/console/load.js";
import { Badge, Dotted, Empty, Loaded, NodeBadge, Page, Tabs, html } from "/console/parts.js";
import { Messages } from "/console/pages/messages.js";
import { Produce } from "/console/pages/produce.js";
import { Table } from "/console/table.js";

const DETAILS_MS = 10000;

export function Topic({ name, tab = "messages" }) {
  useLive();
  const details = useLoad(() => get(topicPath(name)), [name], DETAILS_MS);
  const found = live.topics.find((one) => one.name === name) ?? details.value;
  const isMissing = !found && details.error?.status === 404;
  const state = isMissing ? "empty" : found ? (live.failedSince ? "stale" : "ready") : details.error ? "error" : "loading";
  const allowed = details.value?.allowed;
  const may = (operation) => allowed?.includes(operation) ?? false;
  const durability = found?.durability ?? details.value?.durability;
  const base = topicHref(name);
  const tabs = [["messages", "Messages", "READ"], ["partitions", "Partitions"], ["produce", "Produce", "WRITE"], ["config", "Config", "DESCRIBE_CONFIGS"]]
    .filter(([id, , needs]) => !needs || !allowed || may(needs) || id === tab);
  const Body = { messages: Messages, partitions: Partitions, produce: Produce, config: Config }[tab] ?? Messages;
  return html`<${Page} title=${name} crumb=${{ name: "Topics", href: "#/topics" }} state=${state}
    sub=${found && html`<span class="row">${found.is_searchable && html`<${Badge} kind="accent">searchable<//>`}${found.is_internal && html`<${Badge}>internal<//>`}
      <span>${counted(found.message_count, "record")}, ${bytes(found.size_bytes)}, ${short(lastRate(name))}/s</span></span>`}
    actions=${found && html`<${Actions} name=${name} found=${found} may=${may} />`}>
    ${durability && html`<p class="durability">${durability}</p>`}
    ${isMissing ? html`<div class="card"><${Empty} title="There is no such topic">It was deleted, or never made: <a href="#/topics">all topics</a>.<//></div>`
    : html`<${Tabs} label="Parts of the topic" chosen=${tab} tabs=${tabs.map(([id, title]) => [id, title, `${base}/${id}`])} />
      <${Loaded} of=${found ? { value: found } : details}>${() => html`<${Body} key=${tab} name=${name} may=${may} />`}<//>`}
  <//>`;
}

function Actions({ name, found, may }) {
  const mayOn = useMay();
  return html`
    ${may("ALTER") && !found.is_internal && html`<button type="button" class="small" onClick=${() => openDialog(html`<${MorePartitions} name=${name} before=${found.partition_count} />`)}>More partitions…</button>`}
    ${mayOn("cluster", "ALTER") && live.cluster?.nodes.length > 1 && html`<a class="button small" href=${`#/nodes/moves/${encodeURIComponent(name)}`}>Move replicas…</a>`}
    ${may("DELETE") && !found.is_internal && html`<button type="button" class="danger small" onClick=${() => openDialog(html`<${Delete} name=${name} />`)}>Delete…</button>`}`;
}

function Delete({ name }) {
  const run = async () => {
    await call("DELETE", topicPath(name));
    toast(`Topic ${name} deleted`);
    location.hash = "#/topics";
    await refreshAgain();
  };
  return html`<${Confirm} title=${`Delete ${name}?`} action="Delete" typed=${name} what="topic's name" run=${run}>
    All its records are deleted on every node. This cannot be undone.<//>`;
}

function MorePartitions({ name, before }) {
  const [wanted, setWanted] = useState(before + 1);
  const preview = useLoad(() => post(topicPath(name, "/partitions"), { count: wanted, dry_run: true }), [wanted]);
  const run = async () => {
    await post(topicPath(name, "/partitions"), { count: wanted });
    toast(`${name} has ${wanted} partitions now`);
    await refreshAgain();
  };
  return html`<${Form} title=${`More partitions for ${name}`} action="Add" run=${run} ready=${Boolean(preview.value)}>
    <label>Partitions afterwards<input type="number" min=${before + 1} value=${wanted} onInput=${(event) => setWanted(Number(event.target.value))} /></label>
    <div class="note warn">Records with a key go to another partition once there are more, so the order of each key holds only within what is there already. Partitions cannot be taken away.</div>
    ${preview.error ? html`<div class="error" role="alert">${preview.error.message}</div>` : preview.value && html`<div class="preview" aria-label="Preview">
      ${counted(preview.value.after - preview.value.before, "new partition")}:
      ${preview.value.replicas.slice(0, 12).map((nodes, index) => html`<div key=${index} class="row"><span class="mono">${name}-${before + index}</span> on ${nodes.map((id) => html`<${NodeBadge} key=${id} id=${id} />`)}</div>`)}
      ${preview.value.replicas.length > 12 && html`<div class="dim">and ${preview.value.replicas.length - 12} more</div>`}</div>`}
  <//>`;
}

const PARTITIONS = [
  { title: "Partition", num: true, by: (one) => one.partition, show: (one) => one.partition },
  { title: "Leader", by: (one) => one.leader, show: (one) => (one.leader < 0 ? html`<${Badge} kind="bad">none<//>` : html`<${NodeBadge} id=${one.leader} />`) },
  { title: "Epoch", num: true, narrow: false, by: (one) => one.leader_epoch, show: (one) => one.leader_epoch },
  { title: "Replicas", show: (one) => html`<span class="row">${one.replicas.map((id) => (one.isr.includes(id) ? html`<${NodeBadge} key=${id} id=${id} />` : html`<${Badge} key=${id} kind="warn">${id} out of sync<//>`))}</span>` },
  { title: "First offset", num: true, narrow: false, by: (one) => one.log_start_offset, show: (one) => count(one.log_start_offset) },
  { title: "High watermark", num: true, narrow: false, by: (one) => one.high_watermark, show: (one) => count(one.high_watermark) },
  { title: "End offset", num: true, by: (one) => one.log_end_offset, show: (one) => count(one.log_end_offset) },
  { title: "Size", num: true, narrow: false, by: (one) => one.size_bytes, show: (one) => bytes(one.size_bytes) },
];

function Partitions({ name }) {
  useLive();
  const found = live.topics.find((one) => one.name === name);
  return html`<${Loaded} of=${found ? { value: found } : liveState()}>${() => html`<div class="stack live">
    <div class="card flush"><${Table} label=${`Partitions of ${name}`} columns=${PARTITIONS} rows=${found?.partitions ?? []} keyOf=${(one) => one.partition} sortBy=${0} /></div>
    <${Chart} title="Records in" format=${(n) => `${short(n)}/s`} series=${[{ name: "in", color: "--n0", points: live.topicRates.get(name) ?? [] }]} /></div>`}<//>`;
}

function Config({ name, may }) {
  const [text, setText] = useState("");
  const load = useLoad(() => get(topicPath(name, "/config")), [name]);
  const wanted = text.trim().toLowerCase();
  const save = async (key, value) => {
    try {
      load.give(await post(topicPath(name, "/config"), { config: { [key]: value } }));
      toast(value === null ? `${key} is back to its default` : `${key} is ${value} now`);
    } catch (error) {
      toast(error.message, "bad");
      load.reload();
    }
  };
  const columns = [
    { title: "Config", by: (one) => one.name, show: (one) => html`<span class="row"><${Dotted} text=${one.name} />${one.is_set && html`<${Badge} kind="accent">set here<//>`}</span>` },
    { title: "Value", show: (one) => html`<input class="mono" value=${one.value} aria-label=${one.name} size="20" readonly=${!may("ALTER_CONFIGS")} onChange=${(event) => save(one.name, event.target.value)} />` },
    { title: "What it does", narrow: false, show: (one) => html`<span class="dim">${one.doc}</span>` },
    { title: "", show: (one) => one.is_set && may("ALTER_CONFIGS") && html`<button class="small" type="button" onClick=${() => save(one.name, null)}>Default</button>` },
  ];
  return html`<${Loaded} of=${load}>${(answer) => html`<div class="card flush">
    <div class="head"><h2>Configs</h2><div class="aside"><input type="search" placeholder="Filter configs  ( / )" aria-label="Filter configs" data-focus value=${text} onInput=${(event) => setText(event.target.value)} /></div></div>
    <${Table} label="Configs" columns=${columns} rows=${answer.configs.filter((one) => `${one.name} ${one.doc}`.toLowerCase().includes(wanted))} keyOf=${(one) => `${one.name} ${one.value}`} /></div>`}<//>`;
}
