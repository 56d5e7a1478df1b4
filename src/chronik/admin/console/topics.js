// All topics with their rates; making a new one.

import { call, post } from "/console/api.js";
import { spark } from "/console/charts.js";
import { badge, bytes, count, fill, formDialog, h, short, toast } from "/console/dom.js";
import { lastRate, live, onLive, refresh } from "/console/live.js";

const columns = [
  ["Topic", (t) => t.name, ""], ["Partitions", (t) => t.partition_count, "num"], ["Replicas", (t) => t.replication_factor, "num hide-narrow"],
  ["Records", (t) => t.message_count ?? -1, "num"], ["Size", (t) => t.size_bytes ?? -1, "num hide-narrow"], ["Rate", (t) => lastRate(t.name), "num"], ["", null, "hide-narrow"],
];

export function topics(main) {
  const filter = h("input", { type: "search", placeholder: "Filter topics  ( / )", "aria-label": "Filter topics", "data-focus": true, oninput: () => draw() });
  const internal = h("input", { type: "checkbox", onchange: () => draw() });
  const body = h("tbody"), none = h("div.empty", { hidden: true });
  let order = 0, down = false;
  const head = h("tr", null, columns.map(([title, by, kind], index) => h("th", { class: kind, scope: "col" },
    by ? h("button", { type: "button", onclick: () => { down = order === index ? !down : index > 0; order = index; draw(); } }, title) : title)));
  fill(main,
    h("div.page-head", null, h("h1", null, "Topics"), h("span.grow"), filter,
      h("label.check", null, internal, "internal"), h("button.primary", { type: "button", id: "new-topic", onclick: create, title: "n" }, "New topic")),
    h("div.card.flush.live", null, h("div.scroll", null, h("table", null, h("thead", null, head), body)), none));
  draw();
  return onLive(draw);

  function draw() {
    const text = filter.value.trim().toLowerCase();
    const by = columns[order][1];
    const rows = live.topics
      .filter((topic) => (internal.checked || !topic.is_internal) && topic.name.toLowerCase().includes(text))
      .sort((a, b) => (by(a) < by(b) ? -1 : by(a) > by(b) ? 1 : a.name.localeCompare(b.name)) * (down ? -1 : 1));
    fill(body, rows.map(row));
    none.hidden = rows.length > 0 || !live.cluster;
    fill(none, text ? h("b", null, "No topic matches") : [h("b", null, "No topics yet"), "Make one here, or let any Kafka client write to a new name:",
      h("div", null, h("pre", null, "echo hello | chronik produce greetings"))]);
  }
}

function row(topic) {
  const href = `#/topics/${encodeURIComponent(topic.name)}`;
  const gone = topic.partitions.filter((one) => one.leader < 0).length, short_ = topic.partitions.filter((one) => one.is_under_replicated).length;
  return h("tr.link", { onclick: (event) => { if (event.target.tagName !== "A") location.hash = href; } },
    h("td", null, h("div.row", null, h("a.name", { href }, topic.name), topic.is_internal && badge("internal"), topic.is_searchable && badge("searchable", "accent"),
      gone > 0 && badge(`${gone} without leader`, "bad"), gone === 0 && short_ > 0 && badge(`${short_} under-replicated`, "warn"))),
    h("td.num", null, count(topic.partition_count)), h("td.num.hide-narrow", null, topic.replication_factor), h("td.num", null, count(topic.message_count)),
    h("td.num.hide-narrow", null, bytes(topic.size_bytes)), h("td.num", null, `${short(lastRate(topic.name))}/s`), h("td.hide-narrow", null, spark(live.topicRates.get(topic.name) ?? [])));
}

export function create() {
  const name = h("input", { name: "name", required: true, autocomplete: "off", pattern: "[a-zA-Z0-9._\\-]{1,249}", placeholder: "orders", title: "letters, digits, dot, underscore, hyphen" });
  const partitions = h("input", { name: "partitions", type: "number", min: 1, max: 100000, value: 3 });
  const alive = Math.max(1, live.cluster?.nodes.filter((node) => node.is_alive).length ?? 1);
  const replicas = h("input", { name: "replication_factor", type: "number", min: 1, max: alive, value: Math.min(3, alive) });
  const searchable = h("input", { type: "checkbox" });
  formDialog("New topic", [
    h("label", null, "Name", name),
    h("div.row", null, h("label.grow", null, "Partitions", partitions), h("label.grow", null, "Replicas", replicas)),
    h("label.check", null, searchable, "searchable: index its records as they arrive"),
  ], "Create", async () => {
    const made = await post("/admin/create-topic", {
      name: name.value.trim(), partitions: Number(partitions.value), replication_factor: Number(replicas.value),
      config: searchable.checked ? { searchable: true } : {},
    });
    toast(`Topic ${made.name} created`);
    await refresh();
    location.hash = `#/topics/${encodeURIComponent(made.name)}`;
  });
}

export function askDelete(name) {
  const typed = h("input", { required: true, autocomplete: "off", placeholder: name });
  formDialog(`Delete ${name}?`, [
    h("p", null, "All its records are deleted on every node. This cannot be undone."),
    h("label", null, "Type the topic's name to confirm", typed),
  ], "Delete", async () => {
    if (typed.value.trim() !== name) throw new Error("That is not the topic's name.");
    await call("DELETE", `/admin/topics/${encodeURIComponent(name)}`);
    toast(`Topic ${name} deleted`);
    location.hash = "#/topics";
    await refresh();
  });
}
