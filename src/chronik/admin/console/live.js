// What the node says about the cluster, asked again and again; rates are differences between two answers.
// No DOM: components draw it through the hooks of load.js.

import { get } from "/console/api.js";

const PERIOD_MS = 1000;
const KEPT = 300;

export const live = {
  cluster: null, nodes: [], topics: [], groups: null,
  topicRates: new Map(), groupLag: new Map(), nodeRates: new Map(),
  series: { records: [], received: [], sent: [], requests: [], produce: [], wal: [] },
  answeredAt: 0, failedSince: 0, problem: "",
};
const listeners = new Set();
let previous = null;
let timer = 0;
let groupWatchers = 0;

export function onLive(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

// Whether the node that answers came without search and SQL; unknown before the first answer.
export function lacksQuery() {
  return live.nodes.find((node) => node.node_id === live.cluster?.node_id)?.status?.has_query === false;
}

export function watchGroups(on) {
  groupWatchers += on ? 1 : -1;
  if (on && groupWatchers === 1) refreshAgain();
}

export function start() {
  const turn = async () => {
    clearTimeout(timer);
    if (!document.hidden) await refresh();
    timer = setTimeout(turn, PERIOD_MS);
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden) turn(); });
  turn();
}

let underWay = null;
export function refresh() {
  underWay ??= load().finally(() => { underWay = null; });
  return underWay;
}

// After what is under way, which does not know of the change that calls for it.
export const refreshAgain = () => (underWay ?? Promise.resolve()).then(refresh);

// Figures of nodes need DESCRIBE on the cluster; whoever lacks it sees the rest.
function withoutRight(error) {
  if (error.status === 403) return { nodes: [] };
  throw error;
}

async function load() {
  try {
    const [cluster, nodes, topics, groups] = await Promise.all([
      get("/admin/cluster", { timeout: 4000 }), get("/admin/nodes", { timeout: 4000 }).catch(withoutRight),
      get("/admin/topics?internal=true", { timeout: 6000 }),
      groupWatchers ? get("/admin/groups", { timeout: 8000 }).catch((error) => ({ problem: error.message })) : null,
    ]);
    take(cluster, nodes.nodes, topics, groups);
    live.failedSince = 0;
    live.problem = "";
  } catch (error) {
    live.failedSince ||= Date.now();
    live.problem = error.message;
  }
  for (const listener of listeners) listener();
}

function take(cluster, nodes, topics, groups) {
  const now = performance.now() / 1000;
  const at = Date.now();
  Object.assign(live, { cluster, nodes, topics, answeredAt: at });
  if (groups) live.groups = groups;
  const current = { now, nodes: new Map(), topics: new Map() };
  for (const node of nodes) if (node.reachable) current.nodes.set(node.node_id, node.status);
  for (const topic of topics) current.topics.set(topic.name, ends(topic));
  if (previous) rates(previous, current, at);
  if (groups?.groups) for (const group of groups.groups) push(live.groupLag, group.group_id, [at, group.lag ?? 0]);
  previous = current;
}

const ends = (topic) => topic.partitions.reduce((sum, one) => sum + (one.log_end_offset ?? 0), 0);

function rates(old, current, at) {
  const seconds = Math.max(0.2, current.now - old.now);
  const total = { received: 0, sent: 0, requests: 0 };
  const slowest = { wal: null, produce: null };
  for (const [id, status] of current.nodes) {
    const was = old.nodes.get(id);
    if (!was || was.up_seconds > status.up_seconds) continue;
    const rate = {
      received: (status.received_bytes - was.received_bytes) / seconds,
      sent: (status.sent_bytes - was.sent_bytes) / seconds,
      requests: (status.request_count - was.request_count) / seconds,
    };
    const kept = live.nodeRates.get(id) ?? [];
    const slow = {
      produce: p99(status.latency.bounds_ms, status.latency.produce, was.latency.produce),
      wal: p99(status.latency.bounds_ms, status.latency.wal, was.latency.wal),
    };
    kept.push([at, rate.received, rate.sent, rate.requests, slow.produce, slow.wal]);
    live.nodeRates.set(id, kept.slice(-KEPT));
    for (const name of Object.keys(total)) total[name] += rate[name];
    for (const name of Object.keys(slowest)) if (slow[name] !== null) slowest[name] = Math.max(slowest[name] ?? 0, slow[name]);
  }
  let records = 0;
  for (const [name, end] of current.topics) {
    const was = old.topics.get(name);
    const rate = was === undefined ? 0 : Math.max(0, (end - was) / seconds);
    push(live.topicRates, name, [at, rate]);
    if (!name.startsWith("__")) records += rate;
  }
  for (const name of [...live.topicRates.keys()]) if (!current.topics.has(name)) live.topicRates.delete(name);
  for (const [name, value] of Object.entries({ ...total, records, ...slowest })) {
    if (value !== null) live.series[name] = [...live.series[name], [at, value]].slice(-KEPT);
  }
}

// 99 of 100 took at most so long, between two answers; null if there was nothing.
function p99(bounds, counts, before) {
  const fresh = counts.map((n, index) => n - (before[index] ?? 0));
  const total = fresh.reduce((sum, n) => sum + n, 0);
  if (total <= 0) return null;
  let seen = 0;
  for (const [index, n] of fresh.entries()) {
    if (n > 0 && seen + n >= total * 0.99) {
      const low = bounds[index - 1] ?? 0, high = bounds[index] ?? bounds.at(-1);
      return low + (high - low) * ((total * 0.99 - seen) / n);
    }
    seen += n;
  }
  return null;
}

function push(map, key, point) {
  map.set(key, [...(map.get(key) ?? []), point].slice(-KEPT));
}

export const lastRate = (name) => live.topicRates.get(name)?.at(-1)?.[1] ?? 0;
