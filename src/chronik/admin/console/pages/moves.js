// Moving replicas by a plan: choose, look at it, begin; and what is on the move.

import { useState } from "/console/vendor/preact.js";
import { get, post } from "/console/api.js";
import { Confirm, openDialog, toast } from "/console/dialogs.js";
import { bytes, counted, topicHref } from "/console/format.js";
import { live } from "/console/live.js";
import { useLive, useLoad, useMay } from "/console/load.js";
import { Badge, Card, Empty, Loaded, NodeBadge, Page, Problem, html, stateOf } from "/console/parts.js";
import { Table } from "/console/table.js";

const PERIOD_MS = 1000;
const nodes = (ids, others = []) => html`<span class="row nowrap">${ids.map((id) => html`<span key=${id} class=${others.includes(id) ? "" : "changed"}><${NodeBadge} id=${id} /></span>`)}</span>`;
const keyOf = (one) => `${one.topic}-${one.partition}`;

export function Moves({ topic = "" }) {
  useLive();
  const may = useMay()("cluster", "ALTER");
  const moving = useLoad(() => get("/admin/reassign"), [], PERIOD_MS);
  const [choice, setChoice] = useState({ topic, drain: [] });
  const [plan, setPlan] = useState({ moves: null, error: null });
  const choose = (given) => {
    setChoice({ ...choice, ...given });
    setPlan({ moves: null, error: null });
  };
  const make = async (event) => {
    event.preventDefault();
    try {
      const answer = await post("/admin/reassign/plan", { topics: choice.topic ? [choice.topic] : null, drain: choice.drain }, { timeout: 60000 });
      setPlan({ moves: answer.moves, error: null });
    } catch (error) {
      setPlan({ moves: null, error });
    }
  };
  const begin = async () => {
    const moves = plan.moves.map((one) => ({ topic: one.topic, partition: one.partition, replicas: one.after }));
    const done = await post("/admin/reassign", { moves });
    if (done.refused.length) throw new Error(done.refused.slice(0, 3).join("\n"));
    toast(`${counted(done.begun, "partition")} on the move`);
    setPlan({ moves: null, error: null });
    moving.reload();
  };
  const names = live.topics.map((one) => one.name);
  return html`<${Page} title="Move replicas" crumb=${{ name: "Nodes", href: "#/nodes" }} state=${stateOf(moving, (answer) => answer.moves.length === 0 && !plan.moves)}>
    <div class="stack">
      ${may && html`<form class="card stack" onSubmit=${make} aria-label="Plan">
        <div class="row fields"><label>Topics<select value=${choice.topic} onChange=${(event) => choose({ topic: event.target.value })}><option value="">all topics</option>${names.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>
          <fieldset><legend>Take all replicas away from</legend><div class="row">${(live.cluster?.nodes ?? []).map((node) => html`<label class="check" key=${node.node_id}>
            <input type="checkbox" checked=${choice.drain.includes(node.node_id)} onChange=${(event) => choose({ drain: event.target.checked ? [...choice.drain, node.node_id] : choice.drain.filter((id) => id !== node.node_id) })} />node ${node.node_id}</label>`)}</div></fieldset></div>
        <div class="row"><button type="submit" class="primary">Make a plan</button><span class="dim">${choice.drain.length ? "The others get them, as evenly as they can." : "Without a node, replicas are spread evenly. Nothing moves yet."}</span></div>
      </form>`}
      <${Problem} error=${plan.error} />
      ${plan.moves && html`<${Plan} moves=${plan.moves} begin=${begin} />`}
      ${!(plan.moves && moving.value?.moves.length === 0) && html`<${Loaded} of=${moving} isEmpty=${(answer) => answer.moves.length === 0} empty=${html`<${Empty} title="Nothing is on the move">${may ? "Make a plan above: it is shown before anything moves." : null}<//>`}>
        ${(answer) => html`<${UnderWay} moves=${answer.moves} may=${may} reload=${moving.reload} />`}<//>`}
    </div>
  <//>`;
}

function Plan({ moves, begin }) {
  if (moves.length === 0) return html`<div class="card"><${Empty} title="Nothing to move">Replicas lie where they should.<//></div>`;
  const size = moves.reduce((sum, one) => sum + (one.size_bytes ?? 0), 0);
  const columns = [
    { title: "Partition", by: keyOf, show: (one) => html`<a class="mono" href=${topicHref(one.topic, "/partitions")}>${keyOf(one)}</a>` },
    { title: "Replicas now", show: (one) => nodes(one.before, one.after) }, { title: "Replicas then", show: (one) => nodes(one.after, one.before) },
    { title: "Size", num: true, narrow: false, by: (one) => one.size_bytes, show: (one) => bytes(one.size_bytes) },
  ];
  const ask = () => openDialog(html`<${Confirm} title=${`Move ${counted(moves.length, "partition")}?`} action="Move" run=${begin}>
    <p>At least ${bytes(size)} are copied between nodes. No replica is dropped before its successor is in sync, and a move can be given up while it goes on.</p><//>`);
  return html`<${Card} title="The plan" flush aside=${html`<button type="button" class="primary small" onClick=${ask}>Move ${counted(moves.length, "partition")}…</button>`}>
    <${Table} label="The plan" columns=${columns} rows=${moves} keyOf=${keyOf} /><//>`;
}

function UnderWay({ moves, may, reload }) {
  const give = () => openDialog(html`<${Confirm} title=${`Give up ${counted(moves.length, "move")}?`} action="Give them up" run=${async () => {
    await post("/admin/reassign", { moves: moves.map((one) => ({ topic: one.topic, partition: one.partition, replicas: null })) });
    reload();
  }}><p>Replicas stay where they were. What was copied so far is deleted.</p><//>`);
  const columns = [
    { title: "Partition", by: keyOf, show: (one) => html`<span class="mono">${keyOf(one)}</span>` },
    { title: "Comes", show: (one) => html`<span class="row">${one.adding.map((id) => html`<span key=${id} class="row nowrap"><${NodeBadge} id=${id} />${one.in_sync.includes(id) ? html`<${Badge} kind="ok">in sync<//>` : html`<${Badge} kind="warn">copying<//>`}</span>`)}</span>` },
    { title: "Goes", show: (one) => nodes(one.removing, one.removing) },
  ];
  return html`<${Card} title="On the move" flush aside=${may && html`<button type="button" class="small" onClick=${give}>Give up…</button>`}>
    <${Table} label="On the move" columns=${columns} rows=${moves} keyOf=${keyOf} /><//>`;
}
