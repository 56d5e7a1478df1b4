// The parts that pages are made of: frame of a page, states, badges, cards, JSON as coloured text.

import { html, useEffect, useRef, useState } from "/console/vendor/preact.js";
import { clock, nodeColor } from "/console/format.js";
import { toast, showText } from "/console/dialogs.js";

export { html };

export const Badge = ({ kind = "", title, children }) => html`<span class="badge ${kind}" title=${title}>${children}</span>`;
export const Dot = ({ kind = "" }) => html`<i class="dot ${kind}" aria-hidden="true"></i>`;
export const NodeBadge = ({ id }) => html`<span class="badge node-badge"><i class="dot" style=${{ background: nodeColor(id) }}></i>${id}</span>`;

export function Icon({ path }) {
  return html`<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="1.9" stroke-linecap="round"
    stroke-linejoin="round" aria-hidden="true"><path d=${path} /></svg>`;
}

// `state` is one of loading, error, empty, stale, ready: what the page shows now.
export function Page({ title, crumb, sub, actions, state = "ready", children }) {
  return html`<div class="page" data-state=${state}>
    <div class="page-head">
      <h1>${crumb && html`<a class="crumb" href=${crumb.href}>${crumb.name}</a><span class="crumb" aria-hidden="true"> / </span>`}${title}</h1>
      ${sub && html`<div class="sub">${sub}</div>`}
      ${actions && html`<div class="actions-row">${actions}</div>`}
    </div>
    ${children}
  </div>`;
}

export function Card({ title, aside, flush = false, kind = "", id, children }) {
  return html`<section class="card ${flush ? "flush" : ""} ${kind}" id=${id} aria-label=${title}>
    ${title && html`<div class="head"><h2>${title}</h2>${aside && html`<div class="aside">${aside}</div>`}</div>`}
    ${children}
  </section>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><b>${title}</b>${children && html`<div>${children}</div>`}</div>`;
}

export const Problem = ({ error }) => error && html`<div class="error" role="alert">${error.message ?? error}</div>`;
export const Note = ({ kind = "", children }) => html`<div class="note ${kind}">${children}</div>`;
// A sentence of the node's, with what stands between backticks as code.
export const Sentence = ({ text }) => text.split(/`([^`]+)`/).map((part, index) => (index % 2 ? html`<code key=${index}>${part}</code>` : part));
// A name with dots, which breaks after these and not inside a word.
export const Dotted = ({ text }) => html`<span class="mono dotted">${text.split(/(?<=[.])/).map((part, index) => html`${index > 0 && html`<wbr />`}${part}`)}</span>`;
export const Command = ({ children }) => html`<pre class="command" tabindex="0">${children}</pre>`;

export function Loading({ rows = 4 }) {
  return html`<div class="skeleton" role="status" aria-label="Loading">${Array.from({ length: rows }, (_, n) => html`<i key=${n}></i>`)}</div>`;
}

export function stateOf(load, isEmpty = () => false) {
  if (load.value === null) return load.error ? "error" : "loading";
  if (load.error) return "stale";
  return isEmpty(load.value) ? "empty" : "ready";
}

// Draws what the state of an answer calls for. `children` is a function of the value.
export function Loaded({ of, isEmpty = () => false, empty = null, rows, children }) {
  if (of.value === null && of.error) {
    return html`<div class="card"><${Problem} error=${of.error} />
      ${of.reload && html`<p><button type="button" onClick=${of.reload}>Try again</button></p>`}</div>`;
  }
  if (of.value === null) return html`<div class="card"><${Loading} rows=${rows} /></div>`;
  return html`
    ${of.error && of.reload && html`<${Note} kind="warn">What you see is from ${clock(of.at)}. ${of.error.message}<//>`}
    ${isEmpty(of.value) ? html`<div class="card">${empty}</div>` : children(of.value)}`;
}

// A region that scrolls sideways can be reached by keyboard while it has something to scroll.
export function Scroll({ label, children, kind = "" }) {
  const box = useRef(null);
  const [overflows, set] = useState(false);
  useEffect(() => {
    const look = () => box.current && set(box.current.scrollWidth > box.current.clientWidth + 1 || box.current.scrollHeight > box.current.clientHeight + 1);
    const observer = new ResizeObserver(look);
    observer.observe(box.current);
    if (box.current.firstElementChild) observer.observe(box.current.firstElementChild);
    return () => observer.disconnect();
  }, []);
  const reachable = overflows ? { tabIndex: 0, role: "region", "aria-label": label ?? "Table" } : {};
  return html`<div class="scroll ${kind}" ref=${box} ...${reachable}>${children}</div>`;
}

export function Tabs({ label, tabs, chosen }) {
  return html`<nav class="tabs" aria-label=${label}>${tabs.map(([id, title, href]) => html`
    <a key=${id} href=${href} aria-current=${id === chosen ? "page" : undefined}>${title}</a>`)}</nav>`;
}

export const Tile = ({ value, label, kind = "" }) => html`<div class="tile ${kind}"><b>${value}</b><span>${label}</span></div>`;
export const Fact = ({ label, children }) => html`<div><dt>${label}</dt><dd>${children}</dd></div>`;

// JSON as coloured text, built from nodes: no record can become markup.
export function Json({ value }) {
  const text = JSON.stringify(value, null, 2) ?? "null";
  const token = /("(?:\\.|[^"\\])*")(\s*:)?|\b(true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
  const out = [];
  let at = 0;
  for (const match of text.matchAll(token)) {
    out.push(text.slice(at, match.index));
    const kind = match[2] ? "k" : match[1] ? "s" : match[3] ? "b" : "n";
    out.push(html`<span class=${kind}>${match[1] ?? match[0]}</span>`, match[2] ?? "");
    at = match.index + match[0].length;
  }
  out.push(text.slice(at));
  return html`<code class="json">${out}</code>`;
}

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    toast(`${what} copied`);
  } catch {
    showText(what, text);
  }
}

export function save(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}
