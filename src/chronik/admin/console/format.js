// Numbers, sizes and times as people read them. No DOM.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
export const count = (n) => (n === null || n === undefined ? "–" : whole.format(n));
export const counted = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

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

const two = (n, width = 2) => String(n).padStart(width, "0");

export function clock(milliseconds) {
  const date = new Date(milliseconds);
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export function time(milliseconds) {
  if (milliseconds === null || milliseconds === undefined || milliseconds < 0) return "–";
  const date = new Date(milliseconds);
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${clock(milliseconds)}.${two(date.getMilliseconds(), 3)}`;
}

export const ago = (milliseconds) => `${duration(Math.max(0, (Date.now() - milliseconds) / 1000))} ago`;

export const nodeColor = (id) => `var(--n${((id % 8) + 7) % 8})`;

// An argument of a shell command.
export const quote = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

export const topicHref = (name, rest = "") => `#/topics/${encodeURIComponent(name)}${rest}`;
export const groupHref = (id) => `#/groups/${encodeURIComponent(id)}`;
