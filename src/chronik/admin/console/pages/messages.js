// The message browser: by offset, time or key; live; each record decoded, as a command to copy, and its way.

import { useEffect, useReducer, useRef, useState } from "/console/vendor/preact.js";
import { get, topicPath } from "/console/api.js";
import { bytes, count, quote, time, topicHref } from "/console/format.js";
import { live, onLive } from "/console/live.js";
import { Badge, Command, Empty, Json, Loading, Scroll, copy, html } from "/console/parts.js";

const WAIT_MS = 10000;
const PAUSE_MS = 250;  // between two looks at a topic that never rests
const FRESH_MAX = 12;  // more new records than that at once are not marked one by one
const STARTS = [["newest", "newest"], ["oldest", "oldest"], ["offset", "from offset"], ["time", "from time"]];

const idOf = (one) => `${one.partition}-${one.offset}`;
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

function change(state, given) {
  const next = { ...state, ...given };
  if (given.from && given.from !== "newest") next.follow = false;
  if (given.from === "newest") next.follow = true;
  if (["offset", "oldest"].includes(given.from) && next.partition === "") next.partition = "0";
  return next;
}

function queryOf({ partition, from, offset, since, key, limit }) {
  const query = new URLSearchParams({ limit });
  if (partition !== "") query.set("partition", partition);
  if (key) query.set("key", key);
  if (from === "offset") query.set("offset", offset || "0");
  if (from === "oldest") query.set("timestamp", "0");
  if (from === "time" && since) query.set("timestamp", String(new Date(since).getTime()));
  return String(query);
}

// The records for a choice; asked again when records are committed, while they are followed.
function useMessages(name, choice) {
  const [state, set] = useState({ answer: null, error: null });
  const query = queryOf(choice), follows = choice.follow && choice.from === "newest";
  const wanted = useRef({ query, follows });
  const reload = useRef(() => {});
  wanted.current = { query, follows };
  useEffect(() => {
    const left = new AbortController();
    let busy = false, again = false, isTold = false, lastEnd = -1;
    const load = async () => {
      if (busy) { again = true; return; }
      busy = true;
      const asked = wanted.current.query, isFollowing = wanted.current.follows;
      try {
        const answer = await get(`${topicPath(name, "/messages")}?${asked}`, { signal: left.signal });
        if (asked === wanted.current.query && (!isFollowing || wanted.current.follows)) set({ answer, error: null });
      } catch (error) {
        if (!left.signal.aborted) set((old) => ({ ...old, error }));
      }
      busy = false;
      if (again && !left.signal.aborted) { again = false; await load(); }
    };
    // The node answers when records were committed.
    const watch = async () => {
      for (let seen = ""; !left.signal.aborted;) {
        if (document.hidden) { await pause(4 * PAUSE_MS); continue; }
        try {
          const answer = await get(`${topicPath(name, "/watermarks")}?wait_ms=${WAIT_MS}${seen}`, { timeout: 2 * WAIT_MS, signal: left.signal });
          if (answer.is_deleted) return;
          isTold = answer.is_complete;
          const moved = seen !== `&seen=${answer.total}`;
          seen = `&seen=${answer.total}`;
          if (moved && wanted.current.follows) await load();
        } catch {
          isTold = false;
          seen = "";
          await pause(4 * PAUSE_MS);
        }
        await pause(PAUSE_MS);
      }
    };
    // What the node cannot tell (partitions of other nodes, and all while it is away) is seen by looking again.
    const stop = onLive(() => {
      const end = live.topics.find((one) => one.name === name)?.partitions.reduce((sum, one) => sum + (one.high_watermark ?? 0), 0) ?? -1;
      if (!isTold && wanted.current.follows && end !== lastEnd) { lastEnd = end; load(); }
    });
    reload.current = load;
    watch();
    return () => { left.abort(); stop(); };
  }, [name]);
  // What is shown stays as it is when following ends, so that it can be read.
  const asked = useRef(null);
  useEffect(() => {
    if (follows || asked.current !== query) reload.current();
    asked.current = query;
  }, [name, query, follows]);
  return state;
}

export function Messages({ name }) {
  const [choice, set] = useReducer(change, { partition: "", from: "newest", offset: "0", since: "", key: "", limit: "50", follow: true });
  const [open, setOpen] = useState(() => new Set());
  const known = useRef(new Set());
  const { answer, error } = useMessages(name, choice);
  const messages = answer?.messages ?? [];
  const isQuiet = known.current.size === 0 || messages.filter((one) => !known.current.has(idOf(one))).length > FRESH_MAX;
  const isFresh = (one) => !isQuiet && !known.current.has(idOf(one));
  const rows = messages.flatMap((one) => {
    const isOpen = open.has(idOf(one));
    const line = html`<${Row} key=${idOf(one)} one=${one} isFresh=${isFresh(one)} isOpen=${isOpen} toggle=${() => setOpen((old) => toggled(old, idOf(one)))} />`;
    return isOpen ? [line, html`<${Detail} key=${`${idOf(one)} detail`} name=${name} one=${one} />`] : [line];
  });
  useEffect(() => { if (answer) known.current = new Set(messages.map(idOf)); }, [answer]);
  const next = () => {
    const partition = choice.partition === "" ? Object.keys(answer.ends)[0] : choice.partition;
    set({ from: "offset", partition, offset: String(answer.ends[partition]) });
  };
  const hasNext = choice.from !== "newest" && messages.length > 0 && choice.partition !== "";
  return html`<${Choices} name=${name} choice=${choice} set=${set} status=${answer && `${count(messages.length)} shown${answer.is_complete ? "" : `, looked at ${count(answer.scanned)} only`}`} next=${hasNext ? next : null} />
    ${error && html`<div class="error" role="alert">${error.message}</div>`}
    <div class="card flush" data-part=${!answer ? (error ? "error" : "loading") : messages.length ? "ready" : "empty"}>
      ${!answer ? !error && html`<${Loading} />` : messages.length === 0 ? html`<${Nothing} name=${name} choice=${choice} />` : html`
      <${Scroll} label="Records"><table aria-label="Records"><thead><tr><th class="num">Partition</th><th class="num">Offset</th><th class="hide-narrow">Time</th><th>Key</th><th>Value</th><th class="num hide-narrow">Size</th></tr></thead>
        <tbody>${rows}</tbody></table><//>`}</div>`;
}

function toggled(old, id) {
  const next = new Set(old);
  if (!next.delete(id)) next.add(id);
  return next;
}

function Nothing({ name, choice }) {
  if (choice.key || choice.from !== "newest") return html`<${Empty} title="No records here">Nothing matches; look further back or take the filter off.<//>`;
  return html`<${Empty} title="No records here">Write one under Produce, or with<${Command}>echo hello | chronik produce ${quote(name)}<//><//>`;
}

function Choices({ name, choice, set, status, next }) {
  const partitions = live.topics.find((one) => one.name === name)?.partitions ?? [];
  const put = (field) => (event) => set({ [field]: event.target.type === "checkbox" ? event.target.checked : event.target.value });
  return html`<div class="row choices">
    <select aria-label="Partition" value=${choice.partition} onChange=${put("partition")}><option value="">all partitions</option>
      ${partitions.map((one) => html`<option key=${one.partition} value=${String(one.partition)}>partition ${one.partition}</option>`)}</select>
    <select aria-label="Start" value=${choice.from} onChange=${put("from")}>${STARTS.map(([value, title]) => html`<option key=${value} value=${value}>${title}</option>`)}</select>
    ${choice.from === "offset" && html`<input type="number" min="0" aria-label="Offset" value=${choice.offset} onChange=${put("offset")} />`}
    ${choice.from === "time" && html`<input type="datetime-local" step="1" aria-label="Time" value=${choice.since} onChange=${put("since")} />`}
    <input type="search" placeholder="key  ( / )" aria-label="Only this key" size="14" data-focus value=${choice.key} onChange=${put("key")} />
    <select aria-label="How many" value=${choice.limit} onChange=${put("limit")}>${["25", "50", "100", "500"].map((n) => html`<option key=${n} value=${n}>${n} rows</option>`)}</select>
    <label class="check"><input type="checkbox" checked=${choice.follow} onChange=${put("follow")} />live</label>
    <span class="grow"></span><span class="dim" role="status">${status}</span>
    ${next && html`<button type="button" onClick=${next}>Next</button>`}
  </div>`;
}

function Row({ one, isFresh, isOpen, toggle }) {
  const value = one.error ? html`<${Badge} kind="warn">unreadable<//>` : one.value === null ? html`<${Badge}>tombstone<//>` : one.value.slice(0, 400);
  return html`<tr class="link ${isFresh ? "fresh" : ""} ${isOpen ? "open" : ""}" onClick=${toggle}>
    <td class="num">${one.partition}</td><td class="num"><button type="button" class="disclose" aria-expanded=${isOpen} title="Look into the record">${one.offset}</button></td><td class="nowrap hide-narrow mono">${time(one.timestamp_ms)}</td>
    <td class="mono key-cell">${one.key ?? html`<span class="faint">null</span>`}</td><td class="clip mono">${value}</td><td class="num hide-narrow">${bytes(one.size_bytes)}</td></tr>`;
}

function Detail({ name, one }) {
  const command = `chronik consume ${quote(name)} --partition ${one.partition} --offset ${one.offset} --max-messages 1 --json`;
  return html`<tr><td class="detail" colspan="6"><div class="stack">
    <div class="row"><${Badge}>${name}-${one.partition} @ ${one.offset}<//><${Badge}>${time(one.timestamp_ms)}<//>
      ${one.encoding !== "utf-8" && html`<${Badge} kind="warn">base64<//>`}${one.is_cut && html`<${Badge} kind="warn">cut, ${bytes(one.size_bytes)} in all<//>`}<span class="grow"></span>
      <button class="small" type="button" onClick=${() => copy(one.value ?? "", "Value")}>Copy value</button>
      <button class="small" type="button" onClick=${() => copy(command, "Command")}>Copy as command</button>
      <a class="button small" href=${topicHref(name, `/record/${one.partition}/${one.offset}`)}>Its way</a></div>
    ${one.headers.length > 0 && html`<div class="row">${one.headers.map(([key, value], index) => html`<${Badge} key=${index}>${key}: ${value}<//>`)}</div>`}
    <pre>${one.is_json ? html`<${Json} value=${one.json} />` : one.error ?? one.value ?? "null"}</pre></div></td></tr>`;
}
