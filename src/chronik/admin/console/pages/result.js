// Rows of a query: sorted by a click, copied in several forms, drawn as a chart.

import { useState } from "/console/vendor/preact.js";
import { ResultChart } from "/console/chart.js";
import { count, short } from "/console/format.js";
import { Empty, copy, html } from "/console/parts.js";
import { Table, compare } from "/console/table.js";

const CHARTED_ROWS_MAX = 2000, SERIES_MAX = 6;

const isNumeric = (type) => /INT|DOUBLE|FLOAT|DECIMAL|REAL/.test(type.toUpperCase()) && !type.includes("[");
const isTime = (type) => /TIMESTAMP|DATE/.test(type.toUpperCase());
const text = (value) => (value === null ? "" : typeof value === "object" ? JSON.stringify(value) : String(value));

const tabbed = ({ columns, rows }) => [columns.map((one) => one.name), ...rows].map((row) => row.map((value) => text(value).replaceAll(/[\t\n]/g, " ")).join("\t")).join("\n");
const asJson = ({ columns, rows }) => JSON.stringify(rows.map((row) => Object.fromEntries(columns.map((one, index) => [one.name, row[index]]))), null, 2);
const asMarkdown = ({ columns, rows }) => [columns.map((one) => one.name), columns.map(() => "---"), ...rows].map((row) => `| ${row.map((value) => text(value).replaceAll("|", "\\|").replaceAll("\n", " ")).join(" | ")} |`).join("\n");
const FORMS = { "": null, text: tabbed, json: asJson, markdown: asMarkdown };

export function Result({ answer }) {
  const [view, setView] = useState("table");
  if (answer.rows.length === 0) return html`<div class="card"><${Empty} title="No rows" /></div>`;
  const columns = answer.columns.map((one, index) => ({
    title: one.name, num: isNumeric(one.type), by: (row) => row.cells[index], show: (row) => shown(row.cells[index]),
  }));
  const rows = answer.rows.map((cells, index) => ({ cells, index }));
  const give = (event) => {
    const make = FORMS[event.target.value];
    if (make) copy(make(answer), `${count(answer.rows.length)} rows`);
    event.target.value = "";
  };
  return html`<section class="card flush" aria-label="Result"><div class="head">
      <div class="switch" role="group" aria-label="View">${[["table", "Table"], ["chart", "Chart"]].map(([id, title]) => html`<button type="button" key=${id} aria-pressed=${view === id} onClick=${() => setView(id)}>${title}</button>`)}</div>
      <div class="aside"><select aria-label="Copy as" onChange=${give}><option value="">Copy…</option><option value="text">as text with tabs</option><option value="json">as JSON</option><option value="markdown">as Markdown</option></select></div></div>
    ${view === "table" ? html`<div class="results-box"><${Table} label="Result" kind="results" columns=${columns} rows=${rows} keyOf=${(row) => row.index} /></div>` : html`<${Drawn} answer=${answer} />`}
  </section>`;
}

function shown(value) {
  if (value === null) return html`<span class="null">null</span>`;
  const said = text(value);
  return html`<span title=${said.length > 40 ? said : undefined}>${said}</span>`;
}

// The first column that is no number is what is counted along; numbers are drawn. Times and numbers make lines.
export function chartOf({ columns, rows }) {
  const numeric = columns.map((one, index) => index).filter((index) => isNumeric(columns[index].type));
  const words = columns.map((one, index) => index).find((index) => !isNumeric(columns[index].type));
  const along = words ?? (numeric.length > 1 ? numeric[0] : -1);
  const drawn = numeric.filter((index) => index !== along).slice(0, SERIES_MAX);
  if (drawn.length === 0) return null;
  const isLine = along >= 0 && (isTime(columns[along].type) || isNumeric(columns[along].type));
  const at = (row, index) => (along < 0 ? index : isTime(columns[along].type) ? new Date(row[along]).getTime() : row[along]);
  const picked = rows.slice(0, CHARTED_ROWS_MAX).map((row, index) => [at(row, index), row]).filter(([x]) => x !== null && (typeof x !== "number" || !Number.isNaN(x)));
  if (isLine) picked.sort(([a], [b]) => compare(a, b));
  return {
    labels: picked.map(([x]) => text(x)), xs: isLine ? picked.map(([x]) => x) : null,
    format: along >= 0 && isTime(columns[along].type) ? (x) => new Date(x).toLocaleString() : short,
    series: drawn.map((index) => ({ name: columns[index].name, values: picked.map(([, row]) => (row[index] === null ? null : Number(row[index]))) })),
  };
}

function Drawn({ answer }) {
  const chart = chartOf(answer);
  if (!chart) return html`<${Empty} title="Nothing to draw">A chart needs a column of numbers.<//>`;
  return html`<${ResultChart} ...${chart} />`;
}
