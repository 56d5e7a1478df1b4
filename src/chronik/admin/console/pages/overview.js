// The cluster at a glance: nodes, who leads what, what is in trouble, how much moves.

import { Chart, Spark } from "/console/chart.js";
import { bytes, count, duration, ms, nodeColor, short, topicHref } from "/console/format.js";
import { liveState, useLive } from "/console/load.js";
import { Badge, Card, Dot, Empty, Fact, Loaded, Page, Tile, html, stateOf } from "/console/parts.js";

const SHOWN_TOPICS = 40;

export function Overview() {
  const { cluster } = useLive();
  const state = liveState();
  return html`<${Page} title="Overview" sub=${cluster && html`<span class="mono">cluster ${cluster.cluster_id}</span>`} state=${stateOf(state, (live) => live.topics.length === 0)}>
    <${Loaded} of=${state}>${(live) => html`<div class="stack">
      <${Trouble} live=${live} />
      <${Tiles} live=${live} />
      <section aria-label="Nodes" class="nodes live">${live.cluster.nodes.map((node) => html`<${NodeCard} key=${node.node_id} node=${node} live=${live} />`)}</section>
      <div class="grid two live">
        <${Chart} title="Records in" format=${(n) => `${short(n)}/s`} series=${[{ name: "in", color: "--n0", points: live.series.records }]} />
        <${Chart} title="Traffic" format=${(n) => `${bytes(n)}/s`} least=${1000}
          series=${[{ name: "in", color: "--n0", points: live.series.received }, { name: "out", color: "--n1", points: live.series.sent }]} />
        <${Chart} title="Requests" format=${(n) => `${short(n)}/s`} series=${[{ name: "all", color: "--n4", points: live.series.requests }]} />
        <${Chart} title="p99 latency" format=${ms}
          series=${[{ name: "produce", color: "--n2", points: live.series.produce }, { name: "WAL round", color: "--n6", points: live.series.wal }]} />
      </div>
      <${Leaders} live=${live} />
    </div>`}<//>
  <//>`;
}

function Tiles({ live }) {
  const { cluster } = live;
  const up = cluster.nodes.filter((node) => isUp(live, node)).length;
  const shown = live.topics.filter((topic) => !topic.is_internal);
  const total = shown.reduce((sum, topic) => sum + (topic.message_count ?? 0), 0);
  return html`<div class="tiles live">
    <${Tile} value=${`${up} / ${cluster.nodes.length}`} label="nodes up" kind=${up < cluster.nodes.length ? "bad" : ""} />
    <${Tile} value=${count(shown.length)} label="topics" />
    <${Tile} value=${count(cluster.partition_count)} label="partitions" />
    <${Tile} value=${short(total)} label="records kept" />
    <${Tile} value=${count(cluster.under_replicated_count)} label="under-replicated" kind=${cluster.under_replicated_count ? "warn" : ""} />
    <${Tile} value=${count(cluster.offline_count)} label="without a leader" kind=${cluster.offline_count ? "bad" : ""} />
  </div>`;
}

function Trouble({ live }) {
  const down = live.nodes.filter((node) => !node.reachable);
  if (!down.length) return null;
  return html`<div class="error" role="alert">${down.map((node) => `Node ${node.node_id} is down. ${node.problem ?? ""}`).join("\n")} <a href="#/doctor">What to do</a></div>`;
}

const reportOf = (live, node) => live.nodes.find((one) => one.node_id === node.node_id);
export const isUp = (live, node) => node.is_alive && reportOf(live, node)?.reachable !== false;

// Nodes of the same rack and host are shards of one machine.
function shardOf(live, node) {
  const machine = (one) => `${one.rack} ${one.endpoints.kafka?.split(":")[0]}`;
  const shards = node.rack ? live.cluster.nodes.filter((one) => machine(one) === machine(node)) : [];
  return shards.length > 1 ? `, shard ${shards.findIndex((one) => one.node_id === node.node_id) + 1} of ${shards.length}` : "";
}

function NodeCard({ node, live }) {
  const report = reportOf(live, node), status = report?.status, up = isUp(live, node);
  const rates = live.nodeRates.get(node.node_id) ?? [], last = rates.at(-1);
  const most = Math.max(1, ...live.cluster.nodes.map((one) => one.leader_count));
  return html`<article class="node ${up ? "" : "down"}" style=${{ "--node": nodeColor(node.node_id) }} data-node=${node.node_id} aria-label=${`Node ${node.node_id}`}>
    <div class="title"><${Dot} kind=${up ? "ok" : "bad"} />Node ${node.node_id}<span class="grow"></span>
      ${node.is_controller && html`<${Badge} kind="accent" title="Leads the metadata log">controller<//>`}
      ${node.is_this && html`<${Badge}>this one<//>`}${!up && html`<${Badge} kind="bad">down<//>`}</div>
    <div class="row"><span class="mono dim">${node.endpoints.kafka ?? ""}${node.rack ? `, rack ${node.rack}${shardOf(live, node)}` : ""}</span>
      <span class="grow"></span>${up && html`<span title="bytes in"><${Spark} points=${rates} color=${nodeColor(node.node_id)} /></span>`}</div>
    ${up && status ? html`
      <dl class="facts">
        <${Fact} label="in">${last ? `${bytes(last[1])}/s` : "–"}<//><${Fact} label="out">${last ? `${bytes(last[2])}/s` : "–"}<//><${Fact} label="requests">${last ? `${short(last[3])}/s` : "–"}<//>
        <${Fact} label="produce p99">${ms(last?.[4])}<//><${Fact} label="WAL p99">${ms(last?.[5])}<//><${Fact} label="memory">${bytes(status.resident_bytes)}<//>
        <${Fact} label="term">${status.raft.term}<//><${Fact} label="applied">${count(status.raft.last_applied_index)}<//><${Fact} label="up">${duration(status.up_seconds)}<//>
      </dl>
      <div class="row"><span class="dim">leads ${node.leader_count} of ${node.replica_count}</span>
        <div class="bar grow" title="leaders, against the node that leads most"><i style=${{ width: `${(node.leader_count / most) * 100}%`, background: nodeColor(node.node_id) }}></i></div>
        ${node.isr_count < node.replica_count ? html`<${Badge} kind="warn">${node.replica_count - node.isr_count} out of sync<//>` : html`<${Badge} kind="ok">in sync<//>`}</div>`
    : html`<div>${report?.problem ?? "The cluster does not hear from this node."}</div>`}
  </article>`;
}

function Leaders({ live }) {
  const topics = live.topics.slice().sort((a, b) => a.is_internal - b.is_internal || a.name.localeCompare(b.name));
  const rest = topics.length - SHOWN_TOPICS;
  const legend = html`<div class="legend">
    ${live.cluster.nodes.map((node) => html`<span key=${node.node_id}><i style=${{ background: nodeColor(node.node_id) }}></i>node ${node.node_id}</span>`)}
    <span><i class="short"></i>ISR not complete</span><span><i style=${{ background: "var(--bad)" }}></i>no leader</span></div>`;
  return html`<${Card} title="Who leads what" aside=${legend} kind="live">
    ${topics.length === 0 ? html`<${Empty} title="No topics yet">They appear here as soon as a client names one.<//>` : html`
      <div class="map">${topics.slice(0, SHOWN_TOPICS).map((topic) => html`
        <a class="t" key=${topic.name} href=${topicHref(topic.name)} title=${topic.name}>${topic.name}</a>
        <div class="cells" key=${`${topic.name} cells`}>${topic.partitions.map((one) => html`<span key=${one.partition} class="cell ${one.leader < 0 ? "gone" : one.is_under_replicated ? "short" : ""}"
          style=${{ "--node": nodeColor(one.leader) }} title=${cellTitle(topic, one)}>${one.leader < 0 ? "!" : one.leader}</span>`)}</div>`)}</div>`}
    ${rest > 0 && html`<p class="dim">and ${rest} more in <a href="#/topics">Topics</a></p>`}
  <//>`;
}

const cellTitle = (topic, one) => `${topic.name}-${one.partition}: leader ${one.leader < 0 ? "none" : one.leader} (epoch ${one.leader_epoch}), ISR ${one.isr.join(", ")} of ${one.replicas.join(", ")}`;
