// All topics with their rates; making a new one.

import { useState } from "/console/vendor/preact.js";
import { post } from "/console/api.js";
import { Spark } from "/console/chart.js";
import { Form, openDialog, toast } from "/console/dialogs.js";
import { bytes, count, short, topicHref } from "/console/format.js";
import { lastRate, live, refreshAgain } from "/console/live.js";
import { liveState, useLive, useMay } from "/console/load.js";
import { Badge, Command, Empty, Loaded, Page, html, stateOf } from "/console/parts.js";
import { Table } from "/console/table.js";

const COLUMNS = [
  { title: "Topic", by: (t) => t.name, show: (t) => html`<${Name} topic=${t} />` },
  { title: "Partitions", num: true, by: (t) => t.partition_count, show: (t) => count(t.partition_count) },
  { title: "Replicas", num: true, narrow: false, by: (t) => t.replication_factor, show: (t) => t.replication_factor },
  { title: "Records", num: true, by: (t) => t.message_count, show: (t) => count(t.message_count) },
  { title: "Size", num: true, narrow: false, by: (t) => t.size_bytes, show: (t) => bytes(t.size_bytes) },
  { title: "Rate", num: true, by: (t) => lastRate(t.name), show: (t) => `${short(lastRate(t.name))}/s` },
  { title: "Last minutes", narrow: false, show: (t) => html`<${Spark} points=${live.topicRates.get(t.name) ?? []} />` },
];

export function Topics() {
  const [text, setText] = useState("");
  const [internal, setInternal] = useState(false);
  useLive();
  const may = useMay(), state = liveState(), wanted = text.trim().toLowerCase();
  const shown = live.topics.filter((topic) => (internal || !topic.is_internal) && topic.name.toLowerCase().includes(wanted));
  const canCreate = may("topic", "CREATE") || may("cluster", "CREATE");
  return html`<${Page} title="Topics" state=${stateOf(state, () => shown.length === 0)} actions=${html`
      <input type="search" placeholder="Filter topics  ( / )" aria-label="Filter topics" data-focus value=${text} onInput=${(event) => setText(event.target.value)} />
      <label class="check"><input type="checkbox" checked=${internal} onChange=${(event) => setInternal(event.target.checked)} />internal</label>
      ${canCreate && html`<button type="button" class="primary" title="n" onClick=${askForTopic}>New topic</button>`}`}>
    <${Loaded} of=${state} isEmpty=${() => shown.length === 0} empty=${wanted ? html`<${Empty} title="No topic matches" />`
      : html`<${Empty} title="No topics yet">Make one here, or let any Kafka client write to a new name:<${Command}>echo hello | chronik produce greetings<//><//>`}>
      ${() => html`<div class="card flush live"><${Table} label="Topics" columns=${COLUMNS} rows=${shown} keyOf=${(t) => t.name} hrefOf=${(t) => topicHref(t.name)} sortBy=${0} /></div>`}<//>
  <//>`;
}

function Name({ topic }) {
  const gone = topic.partitions.filter((one) => one.leader < 0).length, few = topic.partitions.filter((one) => one.is_under_replicated).length;
  return html`<div class="row"><a class="name" href=${topicHref(topic.name)}>${topic.name}</a>
    ${topic.is_internal && html`<${Badge}>internal<//>`}${topic.is_searchable && html`<${Badge} kind="accent">searchable<//>`}
    ${gone > 0 ? html`<${Badge} kind="bad">${gone} without leader<//>` : few > 0 && html`<${Badge} kind="warn">${few} under-replicated<//>`}</div>`;
}

export const askForTopic = () => openDialog(html`<${NewTopic} />`);

function NewTopic() {
  const alive = Math.max(1, live.cluster?.nodes.filter((node) => node.is_alive).length ?? 1);
  const run = async (form) => {
    const { name, partitions, replicas, searchable } = form.elements;
    const made = await post("/admin/create-topic", {
      name: name.value.trim(), partitions: Number(partitions.value), replication_factor: Number(replicas.value),
      config: searchable.checked ? { searchable: true } : {},
    });
    toast(`Topic ${made.name} created`);
    await refreshAgain();
    location.hash = topicHref(made.name);
  };
  return html`<${Form} title="New topic" action="Create" run=${run}>
    <label>Name<input name="name" required autocomplete="off" pattern="[a-zA-Z0-9._\\-]{1,249}" placeholder="orders" title="letters, digits, dot, underscore, hyphen" /></label>
    <div class="row fields"><label>Partitions<input name="partitions" type="number" min="1" max="100000" value="3" /></label>
      <label>Replicas<input name="replicas" type="number" min="1" max=${alive} value=${Math.min(3, alive)} /></label></div>
    <label class="check"><input type="checkbox" name="searchable" />searchable: index its records as they arrive</label>
  <//>`;
}
