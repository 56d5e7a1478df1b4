// Small helpers: elements without markup strings (so no record can become markup), and numbers for people.

export function h(tag, attributes, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name || "div");
  if (classes.length) element.className = classes.join(" ");
  apply(element, attributes);
  append(element, children);
  return element;
}

export function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  append(element, children);
  return element;
}

function apply(element, attributes) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = `${element.className} ${value}`.trim();
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
export const count = (n) => (n === null || n === undefined ? "–" : whole.format(n));

export function short(n) {
  if (n === null || n === undefined || Number.isNaN(n)) return "–";
  const size = Math.abs(n);
  for (const [limit, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= limit * 10) return `${(n / limit).toFixed(size >= limit * 100 ? 0 : 1)}${unit}`;
    if (size >= limit) return `${(n / limit).toFixed(2)}${unit}`;
  }
  return size >= 100 || Number.isInteger(n) ? n.toFixed(0) : n.toFixed(1);
}

export function bytes(n) {
  if (n === null || n === undefined || Number.isNaN(n)) return "–";
  let unit = 0;
  for (; n >= 1000 && unit < 4; unit += 1) n /= 1000;
  return `${n >= 100 || unit === 0 ? n.toFixed(0) : n.toFixed(1)} ${["B", "kB", "MB", "GB", "TB"][unit]}`;
}

export function ms(n) {
  if (n === null || n === undefined) return "–";
  return n >= 1000 ? `${(n / 1000).toFixed(1)} s` : `${n >= 10 ? n.toFixed(0) : Number(n.toFixed(2))} ms`;
}

export function duration(seconds) {
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const at = parts.findIndex(([size]) => seconds >= size);
  if (at < 0) return "0 s";
  const [size, unit] = parts[at];
  const first = Math.floor(seconds / size);
  const next = parts[at + 1];
  const rest = next ? Math.floor((seconds % size) / next[0]) : 0;
  return rest ? `${first} ${unit} ${rest} ${next[1]}` : `${first} ${unit}`;
}

export function time(milliseconds) {
  if (milliseconds < 0) return "–";
  const date = new Date(milliseconds);
  const two = (n, width = 2) => String(n).padStart(width, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${two(date.getMilliseconds(), 3)}`;
  return `${day} ${clock}`;
}

export function badge(text, kind = "", title) {
  return h(`span.badge${kind ? `.${kind}` : ""}`, { title }, text);
}

export const nodeColor = (id) => `var(--n${((id % 8) + 7) % 8})`;

// JSON as coloured text, built from nodes.
export function json(value) {
  const text = JSON.stringify(value, null, 2) ?? "null";
  const out = h("code.json");
  const token = /("(?:\\.|[^"\\])*")(\s*:)?|\b(true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
  let at = 0;
  for (const match of text.matchAll(token)) {
    out.append(text.slice(at, match.index));
    const kind = match[2] ? "k" : match[1] ? "s" : match[3] ? "b" : "n";
    out.append(h(`span.${kind}`, null, match[1] ?? match[0]), match[2] ?? "");
    at = match.index + match[0].length;
  }
  out.append(text.slice(at));
  return out;
}

export function quote(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

export function toast(text, kind = "") {
  const box = h(`div.toast${kind ? `.${kind}` : ""}`, null, text);
  document.getElementById("toasts").append(box);
  setTimeout(() => box.remove(), kind === "bad" ? 7000 : 3500);
}

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    toast(`${what} copied`);
  } catch {
    showDialog(h("h2", null, what), h("pre", null, text));
  }
}

export function showDialog(...content) {
  const dialog = document.getElementById("dialog");
  const close = h("div.actions", null, h("button", { type: "button", onclick: () => dialog.close() }, "Close"));
  fill(dialog, h("div.stack", null, ...content, close));
  if (!dialog.open) dialog.showModal();
  return dialog;
}

// A dialog with a form; `submit` gets the form and may throw: its message is shown and the dialog stays.
export function formDialog(title, fields, action, submit) {
  const dialog = document.getElementById("dialog");
  const problem = h("div.error", { hidden: true, role: "alert" });
  const go = h("button.primary", { type: "submit" }, action);
  const form = h("form", null, h("h1", null, title), ...fields, problem,
    h("div.actions", null, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), go));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    try {
      await submit(form);
      dialog.close();
    } catch (error) {
      problem.hidden = false;
      problem.textContent = error.message;
    } finally {
      go.disabled = false;
    }
  });
  fill(dialog, form);
  if (!dialog.open) dialog.showModal();
  form.querySelector("input, textarea, select")?.focus();
}
