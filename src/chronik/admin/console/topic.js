// One topic: its partitions, its records, a place to write one, its configs.

import { get, post, topicPath } from "/console/api.js";
import { chart } from "/console/charts.js";
import { badge, bytes, count, fill, h, nodeColor, short, toast } from "/console/dom.js";
import { lastRate, live, onLive } from "/console/live.js";
import { browser } from "/console/messages.js";
import { askDelete } from "/console/topics.js";

const TABS = [["messages", "Messages"], ["partitions", "Partitions"], ["produce", "Produce"], ["config", "Config"]];

export function topic(main, name, tab = "messages") {
  const facts = h("span.sub"), flags = h("span.row"), promise = h("p.dim"), body = h("div");
  const base = `#/topics/${encodeURIComponent(name)}`;
  fill(main,
    h("div.page-head", null, h("h1", null, h("a.crumb", { href: "#/topics" }, "Topics"), h("span.crumb", null, " / "), name), flags, facts, h("span.grow"),
      h("button.danger.small", { type: "button", onclick: () => askDelete(name) }, "Delete")),
    promise, h("div.tabs", { role: "navigation", "aria-label": "Parts of the topic" },
      TABS.map(([id, title]) => h("a", { href: `${base}/${id}`, "aria-current": id === tab && "page" }, title))),
    body);
  const stop = { messages: browser, partitions, produce, config }[tab]?.(body, name);
  draw();
  const unlisten = onLive(draw);
  return () => { unlisten(); stop?.(); };

  function draw() {
    const found = live.topics.find((one) => one.name === name);
    if (!found) {
      if (live.cluster) fill(facts, badge("not there", "bad"));
      return;
    }
    fill(flags, found.is_searchable && badge("searchable", "accent"), found.is_internal && badge("internal"));
    promise.textContent = found.durability;
    fill(facts, `${count(found.message_count)} records, ${bytes(found.size_bytes)}, ${short(lastRate(name))}/s`);
  }
}

function partitions(body, name) {
  const rows = h("tbody");
  const rate = chart("Records in", (n) => `${short(n)}/s`);
  const head = ["Partition", "Leader", "Epoch", "Replicas", "First offset", "High watermark", "End offset", "Size"];
  const kinds = ["num", "", "num hide-narrow", "", "num hide-narrow", "num", "num", "num hide-narrow"];
  fill(body, h("div.stack.live", null, h("div.card.flush", null, h("div.scroll", null, h("table", null,
    h("thead", null, h("tr", null, head.map((title, i) => h("th", { class: kinds[i], scope: "col" }, title)))), rows))), rate.box));
  draw();
  return onLive(draw);

  function draw() {
    const found = live.topics.find((one) => one.name === name);
    if (!found) return;
    fill(rows, found.partitions.map((one) => h("tr", null,
      h("td.num", null, one.partition), h("td", null, one.leader < 0 ? badge("none", "bad") : node(one.leader)), h("td.num.hide-narrow", null, one.leader_epoch),
      h("td", null, h("span.row", null, one.replicas.map((id) => (one.isr.includes(id) ? node(id) : badge(`${id} out of sync`, "warn"))))),
      h("td.num.hide-narrow", null, count(one.log_start_offset)), h("td.num", null, count(one.high_watermark)), h("td.num", null, count(one.log_end_offset)), h("td.num.hide-narrow", null, bytes(one.size_bytes)))));
    rate.draw([{ name: "in", color: "var(--n0)", points: live.topicRates.get(name) ?? [] }]);
  }
}

const node = (id) => h("span.badge", null, h("i.dot", { style: { background: nodeColor(id) } }), id);

function produce(body, name) {
  const key = h("input", { placeholder: "none", autocomplete: "off" });
  const partition = h("input", { type: "number", min: 0, placeholder: "by key" });
  const value = h("textarea", { rows: 9, spellcheck: "false", placeholder: '{"customer": "ada", "total": 12.5}', oninput: check, "data-focus": true });
  const headers = h("input", { placeholder: "name=value, name=value", autocomplete: "off" });
  const note = h("span.field-note"), sent = h("tbody"), problem = h("div.error", { hidden: true, role: "alert" });
  const send = h("button.primary", { type: "submit" }, "Send");
  const form = h("form.stack", { onsubmit: submit, onkeydown: (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event); } },
    h("div.row", null, h("label.grow", null, "Key", key), h("label", null, "Partition", partition)),
    h("label", null, "Value", value), note, h("label", null, "Headers", headers), problem,
    h("div.row", null, send, h("span.dim", null, "Ctrl+Enter sends; acks=all")));
  fill(body, h("div.grid.two", null, h("div.card", null, form),
    h("div.card.flush", null, h("div.head", null, h("h2", null, "Sent from here")), h("table", null, h("thead", null, h("tr", null, h("th.num", null, "Partition"), h("th.num", null, "Offset"), h("th", null, "Value"))), sent))));
  const found = live.topics.find((one) => one.name === name);
  if (found) partition.max = found.partition_count - 1;

  function check() {
    const text = value.value.trim();
    note.className = "field-note";
    if (!/^[[{]/.test(text)) { note.textContent = text ? "text" : ""; return; }
    try { JSON.parse(text); note.textContent = "valid JSON"; } catch (error) { note.textContent = `not valid JSON: ${error.message}`; note.classList.add("bad"); }
  }

  async function submit(event) {
    event.preventDefault();
    send.disabled = true;
    problem.hidden = true;
    const pairs = headers.value.split(",").map((one) => one.trim()).filter(Boolean).map((one) => { const at = one.indexOf("="); return at < 0 ? [one, ""] : [one.slice(0, at), one.slice(at + 1)]; });
    try {
      const done = await post(topicPath(name, "/messages"), {
        value: value.value, key: key.value === "" ? null : key.value, partition: partition.value === "" ? null : Number(partition.value), headers: Object.fromEntries(pairs),
      });
      sent.prepend(h("tr.fresh", null, h("td.num", null, done.partition), h("td.num", null, done.offset), h("td.clip.mono", null, value.value)));
      toast(`Written to ${name}-${done.partition} at offset ${done.offset}`);
    } catch (error) {
      problem.hidden = false;
      problem.textContent = error.message;
    } finally {
      send.disabled = false;
    }
  }
}

async function config(body, name) {
  fill(body, h("p.dim", null, "Loading…"));
  try {
    draw(await get(topicPath(name, "/config")));
  } catch (error) {
    fill(body, h("div.error", null, error.message));
  }

  function draw(answer) {
    fill(body, h("div.card.flush", null, h("div.scroll", null, h("table", null,
      h("thead", null, h("tr", null, h("th", null, "Config"), h("th", null, "Value"), h("th.hide-narrow", null, "What it does"), h("th"))),
      h("tbody", null, answer.configs.map((one) => {
        const input = h("input", { value: one.value, "aria-label": one.name, size: 22, onchange: () => save(one.name, input.value) });
        return h("tr", null, h("td", null, h("span.mono", null, one.name), " ", one.is_set && badge("set here", "accent")), h("td", null, input), h("td.dim.hide-narrow", null, one.doc),
          h("td", null, one.is_set && h("button.small", { type: "button", onclick: () => save(one.name, null) }, "Default")));
      }))))));
  }

  async function save(key, value) {
    try {
      draw(await post(topicPath(name, "/config"), { config: { [key]: value } }));
      toast(value === null ? `${key} is back to its default` : `${key} is ${value} now`);
    } catch (error) {
      toast(error.message, "bad");
    }
  }
}
