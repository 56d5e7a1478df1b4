// Consumer groups: who reads, how far behind, how that went lately; and where a group goes on reading.

import { useEffect, useState } from "/console/vendor/preact.js";
import { groupPath, post, remove } from "/console/api.js";
import { Chart, Spark } from "/console/chart.js";
import { Confirm, Form, openDialog, toast } from "/console/dialogs.js";
import { count, counted, groupHref, short, topicHref } from "/console/format.js";
import { live, refreshAgain } from "/console/live.js";
import { liveState, useGroups } from "/console/load.js";
import { Badge, Card, Empty, Loaded, Page, html, stateOf } from "/console/parts.js";
import { Table } from "/console/table.js";

const kindOf = (state) => ({ Stable: "ok", Empty: "", Dead: "bad" })[state] ?? "warn";

// Groups are asked for beside the live picture, and may fail on their own.
function groupsState() {
  const of = liveState();
  if (live.groups?.problem) return { value: null, error: new Error(live.groups.problem) };
  return live.groups ? of : { ...of, value: null };
}

const COLUMNS = [
  { title: "Group", by: (one) => one.group_id, show: (one) => html`<a class="name" href=${groupHref(one.group_id)}>${one.group_id}</a>` },
  { title: "State", by: (one) => one.state, show: (one) => html`<${Badge} kind=${kindOf(one.state)}>${one.state}<//>` },
  { title: "Members", num: true, by: (one) => one.members.length, show: (one) => one.members.length },
  { title: "Partitions", num: true, narrow: false, by: (one) => one.partitions.length, show: (one) => one.partitions.length },
  { title: "Lag", num: true, by: (one) => one.lag, show: (one) => count(one.lag) },
  { title: "Lag over time", narrow: false, show: (one) => html`<${Spark} points=${live.groupLag.get(one.group_id) ?? []} color="--n2" />` },
  { title: "Coordinator", num: true, narrow: false, by: (one) => one.coordinator, show: (one) => one.coordinator },
];

export function Groups() {
  const [text, setText] = useState("");
  useGroups();
  const wanted = text.trim().toLowerCase(), state = groupsState();
  const shown = (live.groups?.groups ?? []).filter((one) => one.group_id.toLowerCase().includes(wanted));
  const missing = live.groups?.incomplete?.length ?? 0;
  return html`<${Page} title="Groups" state=${stateOf(state, () => shown.length === 0)}
    actions=${html`<input type="search" placeholder="Filter groups  ( / )" aria-label="Filter groups" data-focus value=${text} onInput=${(event) => setText(event.target.value)} />`}>
    ${missing > 0 && html`<div class="note warn">${counted(missing, "group")} could not be asked for: the coordinator does not answer.</div>`}
    <${Loaded} of=${state} isEmpty=${() => shown.length === 0} empty=${html`<${Empty} title=${wanted ? "No group matches" : "No groups"}>${!wanted && "A group is there as soon as a consumer joins it or commits an offset."}<//>`}>
      ${() => html`<div class="card flush live"><${Table} label="Groups" columns=${COLUMNS} rows=${shown} keyOf=${(one) => one.group_id} hrefOf=${(one) => groupHref(one.group_id)} sortBy=${0} /></div>`}<//>
  <//>`;
}

export function Group({ id }) {
  useGroups();
  const state = groupsState();
  const found = live.groups?.groups?.find((one) => one.group_id === id);
  const actions = found && html`<${Actions} group=${found} />`;
  return html`<${Page} title=${id} crumb=${{ name: "Groups", href: "#/groups" }} actions=${actions} state=${stateOf(state, () => !found)}
    sub=${found && html`<span class="row"><${Badge} kind=${kindOf(found.state)}>${found.state}<//><${Badge}>${found.group_type}${found.assignor ? `, ${found.assignor}` : ""}<//><${Badge}>coordinator ${found.coordinator}<//></span>`}>
    <${Loaded} of=${state} isEmpty=${() => !found} empty=${html`<${Empty} title="This group is not there">It is gone, or its coordinator does not answer: <a href="#/groups">all groups</a>.<//>`}>
      ${() => html`<div class="stack live">
        <${Chart} title="Lag" format=${short} series=${[{ name: "records", color: "--n2", points: live.groupLag.get(id) ?? [] }]} />
        <${Partitions} group=${found} /><${Members} group=${found} /></div>`}<//>
  <//>`;
}

// What needs a group that nobody is in says so, rather than be away.
function Actions({ group }) {
  const may = (operation) => group.allowed.includes(operation);
  const isBusy = group.members.length > 0;
  if (!may("READ") && !may("DELETE")) return null;
  return html`
    ${isBusy && html`<span class="dim">Stop its ${group.members.length === 1 ? "member" : "members"} to change it.</span>`}
    ${may("READ") && html`<button type="button" class="small" disabled=${isBusy} onClick=${() => openDialog(html`<${Reset} group=${group} />`)}>Reset offsets…</button>`}
    ${may("DELETE") && html`<button type="button" class="danger small" disabled=${isBusy} onClick=${() => openDialog(html`<${Delete} group=${group} />`)}>Delete…</button>`}`;
}

function Delete({ group }) {
  const id = group.group_id;
  const run = async () => {
    await remove(groupPath(id));
    toast(`Group ${id} deleted`);
    location.hash = "#/groups";
    await refreshAgain();
  };
  return html`<${Confirm} title=${`Delete group ${id}?`} action="Delete" typed=${id} what="group's name" run=${run}>
    The offsets that it committed in ${counted(group.partitions.length, "partition")} are forgotten, and this cannot be undone. No record is deleted:
    consumers that join under this name begin where their <code>auto.offset.reset</code> says.<//>`;
}

function Partitions({ group }) {
  const most = Math.max(1, ...group.partitions.map((one) => one.lag ?? 0));
  const columns = [
    { title: "Topic", by: (one) => one.topic, show: (one) => html`<a href=${topicHref(one.topic)}>${one.topic}</a>` },
    { title: "Partition", num: true, by: (one) => one.partition, show: (one) => one.partition },
    { title: "Committed", num: true, by: (one) => one.committed_offset, show: (one) => count(one.committed_offset) },
    { title: "End", num: true, narrow: false, by: (one) => one.end_offset, show: (one) => count(one.end_offset) },
    { title: "Lag", num: true, by: (one) => one.lag, show: (one) => count(one.lag) },
    { title: "Share", narrow: false, kind: "bar-cell", show: (one) => html`<div class="bar"><i style=${{ width: `${((one.lag ?? 0) / most) * 100}%`, background: "var(--n2)" }}></i></div>` },
    { title: "Read by", narrow: false, by: (one) => one.member_id, show: (one) => html`<span class="mono">${one.member_id ?? "–"}</span>` },
  ];
  return html`<${Card} title="Partitions" flush><${Table} label="Partitions of the group" columns=${columns} rows=${group.partitions} keyOf=${(one) => `${one.topic}-${one.partition}`} /><//>`;
}

const MEMBERS = [
  { title: "Client", by: (one) => one.client_id, show: (one) => one.client_id },
  { title: "Member", narrow: false, show: (one) => html`<span class="mono">${one.member_id}</span>` },
  { title: "Host", by: (one) => one.host, show: (one) => html`<span class="mono">${one.host.replace(/^\//, "")}</span>` },
  { title: "Partitions", num: true, by: (one) => one.partition_count, show: (one) => one.partition_count },
];
const Members = ({ group }) => html`<${Card} title="Members" flush>${group.members.length
  ? html`<${Table} label="Members" columns=${MEMBERS} rows=${group.members} keyOf=${(one) => one.member_id} />` : html`<p class="pad dim">Nobody is reading.</p>`}<//>`;

const TARGETS = [["earliest", "to where the logs begin"], ["latest", "to where the logs end"], ["offset", "to an offset"], ["time", "to a time"], ["shift", "by a number of records"]];

// What to send, or null while the field that the choice needs is empty.
function resetBody({ to, value, topic }) {
  if (!["earliest", "latest"].includes(to) && value === "") return null;
  const number = to === "time" ? new Date(value).getTime() : Number(value);
  return { to, value: ["earliest", "latest"].includes(to) ? null : number, topics: topic ? [{ topic }] : null };
}

function Reset({ group }) {
  const [choice, setChoice] = useState({ to: "earliest", value: "", topic: "" });
  const [preview, setPreview] = useState({ rows: null, error: null });
  const body = resetBody(choice), path = groupPath(group.group_id, "/offsets");
  useEffect(() => {
    let isOld = false;
    setPreview({ rows: null, error: null });
    if (body) post(path, { ...body, dry_run: true }).then((answer) => !isOld && setPreview({ rows: answer.offsets, error: null }), (error) => !isOld && setPreview({ rows: null, error }));
    return () => { isOld = true; };
  }, [JSON.stringify(body)]);
  const run = async () => {
    const moved = await post(path, body);
    toast(`Offsets of ${counted(moved.offsets.length, "partition")} moved`);
    await refreshAgain();
  };
  const put = (field) => (event) => setChoice({ ...choice, [field]: event.target.value, ...(field === "to" && { value: "" }) });
  const topics = [...new Set(group.partitions.map((one) => one.topic))];
  const columns = [
    { title: "Partition", show: (one) => html`<span class="mono">${one.topic}-${one.partition}</span>` }, { title: "Now", num: true, show: (one) => count(one.before) },
    { title: "Then", num: true, show: (one) => html`<b>${count(one.after)}</b>` },
    { title: "Change", num: true, show: (one) => { const by = one.after - (one.before ?? 0); return html`<span class=${by < 0 ? "warn-text" : ""}>${by > 0 ? "+" : ""}${count(by)}</span>`; } },
  ];
  return html`<${Form} title=${`Reset offsets of ${group.group_id}`} action="Move the offsets" danger run=${run} ready=${Boolean(preview.rows?.length)} wide>
    <div class="row fields"><label>Where to<select value=${choice.to} onChange=${put("to")}>${TARGETS.map(([id, title]) => html`<option key=${id} value=${id}>${title}</option>`)}</select></label>
      ${choice.to === "time" ? html`<label>Time<input type="datetime-local" step="1" value=${choice.value} onInput=${put("value")} /></label>`
      : ["offset", "shift"].includes(choice.to) && html`<label>${choice.to === "shift" ? "Records (negative: back)" : "Offset"}<input type="number" value=${choice.value} min=${choice.to === "offset" ? 0 : undefined} onInput=${put("value")} /></label>`}
      <label>Topic<select value=${choice.topic} onChange=${put("topic")}><option value="">all it committed</option>${topics.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label></div>
    ${preview.error ? html`<div class="error" role="alert">${preview.error.message}</div>` : preview.rows && html`<div class="preview table" aria-label="Preview">
      <${Table} label="What would change" columns=${columns} rows=${preview.rows} keyOf=${(one) => `${one.topic}-${one.partition}`} /></div>`}
    <p class="dim">Members that start afterwards read again, or skip, what lies between. Offsets stay inside the logs.</p>
  <//>`;
}
