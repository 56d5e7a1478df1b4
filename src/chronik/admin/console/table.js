// Tables: headings that sort, rows that can be opened, and more rows on demand.

import { html, useState } from "/console/vendor/preact.js";
import { Scroll } from "/console/parts.js";

const ROWS = 200;

// columns: [{title, show(row), by(row)?, num?, narrow?: false to hide on phones, width?}]
// Rows are links if `hrefOf` is given: the first link in a row is the one that a click anywhere follows.
export function Table({ label, columns, rows, keyOf, hrefOf = null, sortBy = null, down = false, kind = "" }) {
  const [order, setOrder] = useState({ at: sortBy, down });
  const [limit, setLimit] = useState(ROWS);
  const by = order.at === null ? null : columns[order.at].by;
  const sorted = by ? [...rows].sort((a, b) => compare(by(a), by(b)) * (order.down ? -1 : 1)) : rows;
  const open = (event, href) => {
    if (!event.target.closest("a, button, input, label, select")) location.hash = href;
  };
  return html`<${Scroll} label=${label}>
    <table class=${kind} aria-label=${label}>
      <thead><tr>${columns.map((column, index) => html`<th key=${index} scope="col" class=${classOf(column)}
        aria-sort=${order.at === index ? (order.down ? "descending" : "ascending") : undefined}>
        ${column.by ? html`<button type="button" onClick=${() => setOrder({ at: index, down: order.at === index ? !order.down : Boolean(column.num) })}>
          ${column.title}<span class="sort" aria-hidden="true">${order.at === index ? (order.down ? "↓" : "↑") : ""}</span></button>`
        : column.title || html`<span class="hidden-text">Actions</span>`}</th>`)}</tr></thead>
      <tbody>${sorted.slice(0, limit).map((row) => html`<tr key=${keyOf(row)} class=${hrefOf ? "link" : ""}
        onClick=${hrefOf ? (event) => open(event, hrefOf(row)) : undefined}>
        ${columns.map((column, index) => html`<td key=${index} class=${classOf(column)}>${column.show(row)}</td>`)}</tr>`)}</tbody>
    </table>
  <//>
  ${sorted.length > limit && html`<div class="more"><button type="button" onClick=${() => setLimit(limit + ROWS)}>
    Show more: ${sorted.length - limit} left</button></div>`}`;
}

const classOf = (column) => `${column.num ? "num" : ""} ${column.narrow === false ? "hide-narrow" : ""} ${column.kind ?? ""}`.trim();

export function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return typeof a === "string" ? a.localeCompare(String(b)) : a < b ? -1 : 1;
}
