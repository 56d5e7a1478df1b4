// The cluster at a glance: nodes, who leads what, what is in trouble, how much moves.

import { chart, spark } from "/console/charts.js";
import { badge, bytes, count, duration, fill, h, ms, nodeColor, short } from "/console/dom.js";
import { live, onLive } from "/console/live.js";

const SHOWN_TOPICS = 40;

export function overview(main) {
  const tiles = h("div.tiles.live"), nodes = h("div.nodes"), map = h("div.card.live");
  const trouble = h("div");
  const records = chart("Records in", (n) => `${short(n)}/s`);
  const traffic = chart("Traffic", (n) => `${bytes(n)}/s`);
  const requests = chart("Requests", (n) => `${short(n)}/s`);
  const latency = chart("p99 latency", ms);
  fill(main,
    h("div.page-head", null, h("h1", null, "Overview"), h("span.sub", { id: "cluster-name" })),
    h("div.stack", null, trouble, tiles, h("section", { "aria-label": "Nodes" }, nodes),
      h("div.grid.two.live", null, records.box, traffic.box, requests.box, latency.box), map));
  draw();
  return onLive(draw);

  function draw() {
    const { cluster } = live;
    if (!cluster) return;
    document.getElementById("cluster-name").textContent = `cluster ${cluster.cluster_id}`;
    drawTiles(tiles, cluster);
    drawTrouble(trouble, cluster);
    fill(nodes, cluster.nodes.map(nodeCard));
    drawMap(map);
    records.draw([{ name: "in", color: "var(--n0)", points: live.series.records }]);
    traffic.draw([{ name: "in", color: "var(--n0)", points: live.series.received }, { name: "out", color: "var(--n1)", points: live.series.sent }]);
    requests.draw([{ name: "all", color: "var(--n4)", points: live.series.requests }]);
    latency.draw([
      { name: "produce", color: "var(--n2)", points: live.series.produce },
      { name: "WAL round", color: "var(--n6)", points: live.series.wal },
    ]);
  }
}

function drawTiles(tiles, cluster) {
  const alive = cluster.nodes.filter((node) => reachable(node)).length;
  const shown = live.topics.filter((topic) => !topic.is_internal);
  const total = shown.reduce((sum, topic) => sum + (topic.message_count ?? 0), 0);
  const tile = (value, label, kind = "") => h(`div.tile${kind ? `.${kind}` : ""}`, null, h("b", null, value), h("span", null, label));
  fill(tiles,
    tile(`${alive} / ${cluster.nodes.length}`, "nodes up", alive < cluster.nodes.length ? "bad" : ""),
    tile(count(shown.length), "topics"), tile(count(cluster.partition_count), "partitions"), tile(short(total), "records kept"),
    tile(count(cluster.under_replicated_count), "under-replicated", cluster.under_replicated_count ? "warn" : ""),
    tile(count(cluster.offline_count), "without a leader", cluster.offline_count ? "bad" : ""));
}

function drawTrouble(box, cluster) {
  const down = live.nodes.filter((node) => !node.reachable);
  fill(box, down.length > 0 && h("div.error", { role: "alert" },
    down.map((node) => `Node ${node.node_id} is down. ${node.problem ?? ""}`).join("\n")));
  box.hidden = !down.length && !cluster.offline_count;
}

const report = (node) => live.nodes.find((one) => one.node_id === node.node_id);
const reachable = (node) => node.is_alive && report(node)?.reachable !== false;

/** Nodes of the same rack and host are shards of one machine. */
function shardOf(node) {
  const machine = (one) => `${one.rack} ${one.endpoints.kafka?.split(":")[0]}`;
  const shards = node.rack ? live.cluster.nodes.filter((one) => machine(one) === machine(node)) : [];
  return shards.length > 1 ? `, shard ${shards.findIndex((one) => one.node_id === node.node_id) + 1} of ${shards.length}` : "";
}

function nodeCard(node) {
  const found = report(node), status = found?.status, up = reachable(node);
  const rates = live.nodeRates.get(node.node_id) ?? [], last = rates.at(-1);
  const most = Math.max(1, ...live.cluster.nodes.map((one) => one.leader_count));
  const fact = (value, label) => h("div", null, h("b", null, value), label);
  return h(`article.node${up ? "" : ".down"}`, { style: { "--node": nodeColor(node.node_id) }, "data-node": node.node_id },
    h("div.title", null, h(`span.dot.${up ? "ok" : "bad"}`), `Node ${node.node_id}`, h("span.grow"),
      node.is_controller && badge("controller", "accent", "Leads the metadata log"), node.is_this && badge("this one"), !up && badge("down", "bad")),
    h("div.mono.dim", null, node.endpoints.kafka ?? "", node.rack ? `, rack ${node.rack}${shardOf(node)}` : ""),
    up && status ? [
      h("div.facts", null,
        fact(last ? `${bytes(last[1])}/s` : "–", "in"), fact(last ? `${bytes(last[2])}/s` : "–", "out"), fact(last ? `${short(last[3])}/s` : "–", "requests"),
        fact(ms(last?.[4]), "produce p99"), fact(ms(last?.[5]), "WAL p99"), fact(bytes(status.resident_bytes), "memory"),
        fact(`${status.raft.term}`, "term"), fact(count(status.raft.last_applied_index), "applied"), fact(duration(status.up_seconds), "up")),
      h("div.row", null, h("span.dim", null, `leads ${node.leader_count} of ${node.replica_count}`),
        h("div.bar.grow", { title: "leaders, against the node that leads most" }, h("i", { style: { width: `${(node.leader_count / most) * 100}%`, background: nodeColor(node.node_id) } })),
        node.isr_count < node.replica_count ? badge(`${node.replica_count - node.isr_count} out of sync`, "warn") : badge("in sync", "ok"), spark(rates)),
    ] : h("div", null, found?.problem ?? "The cluster does not hear from this node."));
}

function drawMap(box) {
  const topics = live.topics.slice().sort((a, b) => a.is_internal - b.is_internal || a.name.localeCompare(b.name));
  const rest = topics.length - SHOWN_TOPICS;
  fill(box,
    h("div.head", null, h("h2", null, "Who leads what"), h("span.grow"), h("div.legend", null,
      live.cluster.nodes.map((node) => h("span", null, h("i", { style: { background: nodeColor(node.node_id) } }), `node ${node.node_id}`)),
      h("span", null, h("i.short"), "ISR not complete"), h("span", null, h("i", { style: { background: "var(--bad)" } }), "no leader"))),
    topics.length === 0
      ? h("div.empty", null, h("b", null, "No topics yet"), "They appear here as soon as a client names one.")
      : h("div.map", null, topics.slice(0, SHOWN_TOPICS).map((topic) => [
        h("a.t", { href: `#/topics/${encodeURIComponent(topic.name)}`, title: topic.name }, topic.name),
        h("div.cells", null, topic.partitions.map((one) => h(`span.cell${one.leader < 0 ? ".gone" : one.is_under_replicated ? ".short" : ""}`, {
          style: { "--node": nodeColor(one.leader) },
          title: `${topic.name}-${one.partition}: leader ${one.leader < 0 ? "none" : one.leader} (epoch ${one.leader_epoch}), ISR ${one.isr.join(", ")} of ${one.replicas.join(", ")}`,
        }, one.leader < 0 ? "!" : one.leader)))])),
    rest > 0 && h("p.dim", null, `and ${rest} more in `, h("a", { href: "#/topics" }, "Topics")));
}
