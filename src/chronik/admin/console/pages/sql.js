// SQL over topics: an editor that knows the tables, and results to look at, to copy, to chart or to save.

import { useEffect, useRef, useState } from "/console/vendor/preact.js";
import { SQL_HISTORY, get, post } from "/console/api.js";
import { Editor } from "/console/editor.js";
import { count, ms } from "/console/format.js";
import { live } from "/console/live.js";
import { useLive, useLoad } from "/console/load.js";
import { NeedsQuery } from "/console/needs_query.js";
import { Empty, Page, Problem, html, save } from "/console/parts.js";
import { Result } from "/console/pages/result.js";

const KEPT = 30;
const NONE = [];

const past = () => {
  try {
    return JSON.parse(localStorage.getItem(SQL_HISTORY)) ?? [];
  } catch {
    return [];
  }
};

export const Sql = () => html`<${NeedsQuery} title="SQL"><${Body} /><//>`;

function Body() {
  useLive();
  const tables = useLoad(() => get("/_sql/tables", { timeout: 30000 }), []);
  const editor = useRef(null);
  const [queries, setQueries] = useState(past);
  const [out, setOut] = useState({ kind: "none" });
  const [isBusy, setBusy] = useState(false);
  const known = tables.value?.tables ?? NONE;
  const work = async (task) => {
    const text = editor.current?.text().trim();
    if (!text || isBusy) return;
    setBusy(true);
    try {
      await task(text);
    } catch (error) {
      setOut({ kind: "error", error });
    } finally {
      setBusy(false);
    }
  };
  const run = () => work(async (text) => {
    const answer = await post("/_sql", { query: text }, { timeout: 70000 });
    const kept = [text, ...past().filter((one) => one !== text)].slice(0, KEPT);
    localStorage.setItem(SQL_HISTORY, JSON.stringify(kept));
    setQueries(kept);
    setOut({ kind: "rows", answer });
  });
  const explain = () => work(async (text) => setOut({ kind: "plan", plan: (await post("/_sql/explain", { query: text }, { timeout: 30000 })).plan }));
  const csv = () => work(async (text) => save(await (await post("/_sql", { query: text, format: "csv" }, { timeout: 70000, raw: true })).blob(), "result.csv"));
  const show = (table) => {
    editor.current?.set(`SELECT * FROM "${table.name}" ORDER BY "timestamp" DESC LIMIT 20`);
    run();
  };
  useEffect(() => {
    const slash = document.querySelector(".editor");
    if (slash) slash.dataset.focus = "";
    if (slash) slash.focus = () => editor.current?.focus();
  }, []);
  const state = isBusy ? "loading" : out.kind === "error" || (out.kind === "none" && tables.error && !tables.value) ? "error"
    : out.kind === "none" && !tables.value ? "loading" : live.failedSince ? "stale" : out.kind === "none" && known.length === 0 ? "empty" : "ready";
  return html`<${Page} title="SQL" sub="every topic is a table" state=${state}>
    <div class="split"><${Tables} load=${tables} known=${known} insert=${(name) => editor.current?.insert(name)} show=${show} />
      <div class="stack"><${Editor} initial=${queries[0] ?? ""} tables=${known} onRun=${run} handle=${editor} />
        <div class="row"><button type="button" class="primary" disabled=${isBusy} onClick=${run}>Run</button>
          <button type="button" disabled=${isBusy} onClick=${explain}>Explain</button><button type="button" disabled=${isBusy} onClick=${csv}>Save as CSV</button>
          ${queries.length > 0 && html`<select class="earlier" aria-label="Earlier queries" value="" onChange=${(event) => { editor.current?.set(event.target.value); event.target.value = ""; }}><option value="">Earlier…</option>
            ${queries.map((one) => html`<option key=${one} value=${one}>${one.replaceAll(/\s+/g, " ").slice(0, 60)}</option>`)}</select>`}
          <span class="grow"></span><span class="dim hide-narrow">Ctrl+Enter runs, Ctrl+Space completes</span><span class="dim" role="status">${isBusy ? "Running…" : status(out)}</span></div>
        <${Output} out=${out} isEmpty=${tables.value !== null && known.length === 0} /></div></div>
  <//>`;
}

const status = ({ answer }) => answer && `${count(answer.row_count)} ${answer.row_count === 1 ? "row" : "rows"}${answer.is_cut ? " (cut at the limit)" : ""} in ${ms(answer.took)}`;

function Output({ out, isEmpty }) {
  if (out.kind === "error") return html`<${Problem} error=${out.error} />`;
  if (out.kind === "plan") return html`<div class="card"><pre class="plan" tabindex="0">${out.plan}</pre></div>`;
  if (out.kind === "rows") return html`<${Result} answer=${out.answer} />`;
  return html`<div class="card"><${Empty} title=${isEmpty ? "No topics yet" : "Ask something"}>${isEmpty ? "Every topic is a table as soon as it is there."
    : html`Fields of JSON values are columns. Conditions on <code>offset</code>, <code>partition</code> and <code>timestamp</code> decide what is read at all.`}<//></div>`;
}

const named = (name) => (/^[a-z_]\w*$/.test(name) ? name : `"${name}"`);

function Tables({ load, known, insert, show }) {
  return html`<section class="card tree" aria-label="Tables"><h2>Tables</h2>
    ${load.error && !load.value ? html`<${Problem} error=${load.error} /><p><button type="button" class="small" onClick=${load.reload}>Try again</button></p>` : !load.value ? html`<p class="dim">Loading…</p>` : known.length === 0 && html`<p class="dim">No topics yet.</p>`}
    ${known.map((table) => html`<details key=${table.name}><summary>${table.name}</summary>
      ${table.columns.map((column) => html`<button type="button" class="column" key=${column.name} title="Put it into the query" onClick=${() => insert(named(column.name))}><span class="mono">${column.name}</span><span class="faint">${column.type.toLowerCase()}</span></button>`)}
      <div class="row"><button class="small" type="button" onClick=${() => insert(named(table.name))}>Insert</button><button class="small" type="button" onClick=${() => show(table)}>Newest 20</button></div></details>`)}
  </section>`;
}
