// SQL over topics: an editor, the tables, results to look at or to save.

import { get, post } from "/console/api.js";
import { count, fill, h, ms } from "/console/dom.js";

const HISTORY = "chronik-sql";
const history = () => { try { return JSON.parse(localStorage.getItem(HISTORY)) ?? []; } catch { return []; } };

export function sql(main) {
  const editor = h("textarea", { rows: 7, spellcheck: "false", "aria-label": "SQL", placeholder: "SELECT * FROM orders ORDER BY timestamp DESC LIMIT 20", value: history()[0] ?? "", "data-focus": true,
    onkeydown: (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); } } });
  const go = h("button.primary", { type: "button", onclick: run }, "Run");
  const explain = h("button", { type: "button", onclick: plan }, "Explain");
  const csv = h("button", { type: "button", onclick: save }, "Save as CSV");
  const past = h("select", { "aria-label": "Earlier queries", onchange: () => { if (past.value) editor.value = past.value; past.value = ""; } });
  const status = h("span.dim"), out = h("div"), problem = h("div.error", { hidden: true, role: "alert" }), tree = h("div.card.tree");
  fill(main, h("div.page-head", null, h("h1", null, "SQL"), h("span.sub", null, "every topic is a table")),
    h("div.split", null, tree, h("div.stack", null, editor, h("div.row", null, go, explain, csv, past, h("span.grow"), h("span.dim.hide-narrow", null, "Ctrl+Enter runs"), status), problem, out)));
  remember();
  tables();

  function remember(text) {
    const kept = text ? [text, ...history().filter((one) => one !== text)].slice(0, 30) : history();
    if (text) localStorage.setItem(HISTORY, JSON.stringify(kept));
    fill(past, h("option", { value: "" }, "Earlier…"), kept.map((one) => h("option", { value: one }, one.replaceAll(/\s+/g, " ").slice(0, 60))));
    past.hidden = kept.length === 0;
  }

  async function tables() {
    fill(tree, h("h3", null, "Tables"), h("p.dim", null, "Loading…"));
    try {
      const answer = await get("/_sql/tables", { timeout: 30000 });
      fill(tree, h("h3", null, "Tables"), answer.tables.length === 0 && h("p.dim", null, "No topics yet."), answer.tables.map((table) => h("details", null,
        h("summary", { ondblclick: () => insert(table.name) }, table.name), table.columns.map((column) => h("div", null, h("span.mono", null, column.name), h("span.faint", null, column.type.toLowerCase()))),
        h("div", null, h("button.small", { type: "button", onclick: () => { editor.value = `SELECT * FROM "${table.name}" ORDER BY "timestamp" DESC LIMIT 20`; run(); } }, "Newest 20")))));
    } catch (error) {
      fill(tree, h("h3", null, "Tables"), h("p.dim", null, error.message));
    }
  }

  function insert(name) {
    editor.setRangeText(/^[a-z_]\w*$/.test(name) ? name : `"${name}"`, editor.selectionStart, editor.selectionEnd, "end");
    editor.focus();
  }

  async function work(task) {
    const text = editor.value.trim();
    if (!text) return;
    problem.hidden = true;
    for (const button of [go, explain, csv]) button.disabled = true;
    status.textContent = "Running…";
    try {
      await task(text);
    } catch (error) {
      status.textContent = "";
      problem.hidden = false;
      problem.textContent = error.message;
    } finally {
      for (const button of [go, explain, csv]) button.disabled = false;
    }
  }

  function run() {
    return work(async (text) => {
      const answer = await post("/_sql", { query: text }, { timeout: 70000 });
      remember(text);
      status.textContent = `${count(answer.row_count)} ${answer.row_count === 1 ? "row" : "rows"}${answer.is_cut ? " (cut at the limit)" : ""} in ${ms(answer.took)}`;
      fill(out, h("div.card.flush", null, h("div.scroll", { style: { "max-height": "62vh", overflow: "auto" } }, h("table.results", null,
        h("thead", null, h("tr", null, answer.columns.map((one) => h("th", { title: one.type, class: numeric(one.type) ? "num" : "" }, one.name)))),
        h("tbody", null, answer.rows.map((row) => h("tr", null, row.map((value, index) => h("td", { class: numeric(answer.columns[index].type) ? "num" : "", title: typeof value === "string" && value.length > 40 ? value : undefined }, shown(value))))))))));
    });
  }

  function plan() {
    return work(async (text) => {
      const answer = await post("/_sql/explain", { query: text }, { timeout: 30000 });
      status.textContent = "";
      fill(out, h("div.card", null, h("pre", { style: { overflow: "auto", margin: 0 } }, answer.plan)));
    });
  }

  function save() {
    return work(async (text) => {
      const response = await post("/_sql", { query: text, format: "csv" }, { timeout: 70000, raw: true });
      const link = h("a", { href: URL.createObjectURL(await response.blob()), download: "result.csv" });
      link.click();
      URL.revokeObjectURL(link.href);
      status.textContent = "Saved";
    });
  }
}

const numeric = (type) => /INT|DOUBLE|FLOAT|DECIMAL|REAL/.test(type.toUpperCase()) && !type.includes("[");
const shown = (value) => (value === null ? h("span.null", null, "null") : typeof value === "object" ? JSON.stringify(value) : String(value));
