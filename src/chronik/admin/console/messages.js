// The message browser: by offset, time or key; live; each record decoded and as a command to copy.

import { get, topicPath } from "/console/api.js";
import { badge, bytes, copy, count, fill, h, json, quote, time } from "/console/dom.js";
import { live, onLive } from "/console/live.js";

const WAIT_MS = 10000;
const PAUSE_MS = 250;  // between two looks at a topic that never rests

export function browser(body, name) {
  const found = live.topics.find((one) => one.name === name);
  const partition = h("select", { "aria-label": "Partition", onchange: load }, h("option", { value: "" }, "all partitions"),
    (found?.partitions ?? []).map((one) => h("option", { value: one.partition }, `partition ${one.partition}`)));
  const from = h("select", { "aria-label": "Start", onchange: change }, [["newest", "newest"], ["oldest", "oldest"], ["offset", "from offset"], ["time", "from time"]].map(([value, title]) => h("option", { value }, title)));
  const offset = h("input", { type: "number", min: 0, value: 0, hidden: true, "aria-label": "Offset", onchange: load });
  const since = h("input", { type: "datetime-local", step: 1, hidden: true, "aria-label": "Time", onchange: load });
  const key = h("input", { type: "search", placeholder: "key  ( / )", "aria-label": "Only this key", size: 14, "data-focus": true, onchange: load });
  const limit = h("select", { "aria-label": "How many", onchange: load }, [25, 50, 100, 500].map((n) => h("option", { value: n, selected: n === 50 }, `${n} rows`)));
  const follow = h("input", { type: "checkbox", checked: true, onchange: load });
  const rows = h("tbody"), status = h("span.dim"), problem = h("div.error", { hidden: true, role: "alert" }), none = h("div.empty", { hidden: true });
  const next = h("button", { type: "button", hidden: true, onclick: more }, "Next");
  let known = new Set(), open = new Set(), ends = {}, busy = false, again = false, lastEnd = -1, isTold = false;
  const left = new AbortController();
  fill(body,
    h("div.row", { style: { "margin-bottom": "12px" } }, partition, from, offset, since, key, limit, h("label.check", null, follow, "live"), h("span.grow"), status, next),
    problem,
    h("div.card.flush", null, h("div.scroll", null, h("table", null, h("thead", null, h("tr", null, h("th.num", null, "Partition"), h("th.num", null, "Offset"), h("th.hide-narrow", null, "Time"), h("th", null, "Key"), h("th", null, "Value"), h("th.num.hide-narrow", null, "Size"))), rows)), none));
  load();
  watch();
  // What the node cannot tell (partitions of other nodes, and all while it is away) is seen by looking again.
  const stop = onLive(() => {
    if (isTold) return;
    const topic = live.topics.find((one) => one.name === name);
    const end = topic?.partitions.reduce((sum, one) => sum + (one.high_watermark ?? 0), 0) ?? -1;
    if (follows() && end !== lastEnd) { lastEnd = end; load(); }
  });
  return () => { left.abort(); stop(); };

  function follows() { return follow.checked && from.value === "newest"; }

  // The node answers when records were committed.
  async function watch() {
    for (let seen = ""; !left.signal.aborted;) {
      if (document.hidden) { await pause(4 * PAUSE_MS); continue; }
      try {
        const answer = await get(`${topicPath(name, "/watermarks")}?wait_ms=${WAIT_MS}${seen}`, { timeout: 2 * WAIT_MS, signal: left.signal });
        if (answer.is_deleted) return;
        isTold = answer.is_complete;
        const moved = seen !== `&seen=${answer.total}`;
        seen = `&seen=${answer.total}`;
        if (moved && follows()) await load();
      } catch {
        isTold = false;
        seen = "";
        await pause(4 * PAUSE_MS);
      }
      await pause(PAUSE_MS);
    }
  }

  function change() {
    offset.hidden = from.value !== "offset";
    since.hidden = from.value !== "time";
    if (from.value === "offset" || from.value === "oldest") if (partition.value === "") partition.value = "0";
    follow.checked = from.value === "newest";
    if (from.value !== "time" || since.value) load();
  }

  function query() {
    const q = new URLSearchParams({ limit: limit.value });
    if (partition.value !== "") q.set("partition", partition.value);
    if (key.value) q.set("key", key.value);
    if (from.value === "offset") q.set("offset", offset.value || "0");
    if (from.value === "oldest") q.set("timestamp", "0");
    if (from.value === "time" && since.value) q.set("timestamp", String(new Date(since.value).getTime()));
    return q;
  }

  async function load() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const answer = await get(`${topicPath(name, "/messages")}?${query()}`);
      problem.hidden = true;
      ends = answer.ends;
      draw(answer);
    } catch (error) {
      problem.hidden = false;
      problem.textContent = error.message;
    } finally {
      busy = false;
    }
    if (again) { again = false; await load(); }
  }

  function more() {
    from.value = "offset";
    if (partition.value === "") partition.value = Object.keys(ends)[0];
    offset.value = ends[partition.value];
    change();
  }

  function draw(answer) {
    const seen = new Set(answer.messages.map(id));
    const quiet = known.size === 0 || answer.messages.filter((one) => !known.has(id(one))).length > 12;
    fill(rows, answer.messages.flatMap((one) => {
      const line = row(one, !quiet && !known.has(id(one)));
      return open.has(id(one)) ? [line, detail(one)] : [line];
    }));
    known = seen;
    none.hidden = answer.messages.length > 0;
    fill(none, h("b", null, "No records here"), key.value || from.value !== "newest" ? "Nothing matches; look further back or take the filter off." : ["Write one under Produce, or with", h("div", null, h("pre", null, `echo hello | chronik produce ${quote(name)}`))]);
    status.textContent = `${count(answer.messages.length)} shown${answer.is_complete ? "" : `, looked at ${count(answer.scanned)} only`}`;
    next.hidden = from.value === "newest" || answer.messages.length === 0 || partition.value === "";
  }

  function row(one, fresh) {
    const toggle = () => { if (!open.delete(id(one))) open.add(id(one)); if (open.has(id(one))) line.after(detail(one)); else line.nextSibling?.remove(); line.setAttribute("aria-expanded", open.has(id(one))); };
    const line = h(`tr.link${fresh ? ".fresh" : ""}`, { tabindex: 0, "aria-expanded": open.has(id(one)), onclick: toggle, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(); } } },
      h("td.num", null, one.partition), h("td.num", null, one.offset), h("td.nowrap.hide-narrow.mono", null, time(one.timestamp_ms)), h("td.mono", { style: { "max-width": "160px", overflow: "hidden", "text-overflow": "ellipsis", "white-space": "nowrap" } }, one.key ?? h("span.faint", null, "null")),
      h("td.clip.mono", null, one.error ? badge("unreadable", "warn") : one.value === null ? badge("tombstone") : one.value.slice(0, 400)), h("td.num.hide-narrow", null, bytes(one.size_bytes)));
    return line;
  }

  function detail(one) {
    const command = `chronik consume ${quote(name)} --partition ${one.partition} --offset ${one.offset} --max-messages 1 --json`;
    return h("tr", null, h("td.detail", { colspan: 6 }, h("div.stack", null,
      h("div.row", null, badge(`${name}-${one.partition} @ ${one.offset}`), badge(time(one.timestamp_ms)), one.encoding !== "utf-8" && badge("base64", "warn"), one.is_cut && badge(`cut, ${bytes(one.size_bytes)} in all`, "warn"), h("span.grow"),
        h("button.small", { type: "button", onclick: () => copy(one.value ?? "", "Value") }, "Copy value"), h("button.small", { type: "button", onclick: () => copy(command, "Command") }, "Copy as command")),
      one.headers.length > 0 && h("div.row", null, one.headers.map(([key_, value]) => badge(`${key_}: ${value}`))),
      h("pre", null, one.is_json ? json(one.json) : one.error ?? one.value ?? "null"))));
  }
}

const id = (one) => `${one.partition}-${one.offset}`;
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
