// Line charts and sparklines in SVG, drawn anew with every answer.

import { fill, h, svg } from "/console/dom.js";

const WIDTH = 560, HEIGHT = 150, LEFT = 46, BOTTOM = 18, TOP = 8;
const SPAN_MS = 300_000;

// series: [{name, color, points: [[ms, value], ...]}]
export function chart(title, format, least = 1) {
  const plot = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": title });
  const tip = h("div.tip", { hidden: true });
  const keys = h("span.row");
  const box = h("div.card", null, h("div.head", null, h("h2", null, title), h("span.grow"), keys), h("div.chart", null, plot, tip));
  let shown = [];
  const draw = (series) => {
    shown = series;
    const now = series.flatMap((one) => one.points).reduce((last, [at]) => Math.max(last, at), 0) || Date.now();
    const from = Math.max(now - SPAN_MS, Math.min(now - 30_000, ...series.flatMap((one) => one.points.slice(0, 1).map(([at]) => at))));
    const high = nice(Math.max(least, ...series.flatMap((one) => one.points.map(([, value]) => value))));
    const width = plot.clientWidth || WIDTH;
    plot.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const x = (at) => LEFT + ((at - from) / (now - from)) * (width - LEFT - 4);
    const y = (value) => TOP + (1 - value / high) * (HEIGHT - TOP - BOTTOM);
    plot.scales = { x, y, from, now };
    fill(plot,
      [0, 0.5, 1].map((share) => [
        svg("line", { class: share ? "grid-line" : "axis", x1: LEFT, x2: width - 4, y1: y(high * share), y2: y(high * share) }),
        svg("text", { x: LEFT - 6, y: y(high * share) + 4, "text-anchor": "end" }, format(high * share)),
      ]),
      svg("text", { x: LEFT, y: HEIGHT - 3 }, `${Math.round((now - from) / 1000)} s ago`),
      svg("text", { x: width - 4, y: HEIGHT - 3, "text-anchor": "end" }, "now"),
      series.map((one) => lines(one, x, y)),
    );
    fill(keys, series.map((one) => h("span.key", null, h("i", { style: { background: one.color } }),
      one.name, h("b.num", null, one.points.length ? format(one.points.at(-1)[1]) : "–"))));
  };
  plot.addEventListener("pointermove", (event) => point(event, plot, tip, shown, format));
  plot.addEventListener("pointerleave", () => { tip.hidden = true; plot.querySelector(".cross")?.remove(); });
  return { box, draw };
}

function lines(one, x, y) {
  const kept = one.points.filter(([at]) => x(at) >= LEFT - 1);
  if (!kept.length) return [];
  const path = kept.map(([at, value], index) => `${index ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const area = `${path}L${x(kept.at(-1)[0]).toFixed(1)} ${y(0)}L${x(kept[0][0]).toFixed(1)} ${y(0)}Z`;
  return [svg("path", { class: "area", d: area, fill: one.color }), svg("path", { class: "line", d: path, stroke: one.color })];
}

function point(event, plot, tip, series, format) {
  const frame = plot.getBoundingClientRect();
  const { x, from, now } = plot.scales ?? {};
  if (!x) return;
  const at = from + ((event.clientX - frame.left - LEFT) / (frame.width - LEFT - 4)) * (now - from);
  const near = series.map((one) => [one, one.points.reduce((best, p) => (!best || Math.abs(p[0] - at) < Math.abs(best[0] - at) ? p : best), null)]);
  const first = near.find(([, p]) => p)?.[1];
  if (!first) return;
  plot.querySelector(".cross")?.remove();
  plot.append(svg("line", { class: "cross", x1: x(first[0]), x2: x(first[0]), y1: TOP, y2: HEIGHT - BOTTOM }));
  tip.hidden = false;
  tip.style.left = `${Math.min(frame.width - 70, Math.max(70, x(first[0])))}px`;
  tip.textContent = `${new Date(first[0]).toLocaleTimeString()}  ${near.filter(([, p]) => p).map(([one, p]) => `${one.name} ${format(p[1])}`).join("  ")}`;
}

function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999) ?? value;
}

export function spark(points) {
  const box = svg("svg", { class: "spark", viewBox: "0 0 96 22", preserveAspectRatio: "none", "aria-hidden": "true" });
  const kept = points.slice(-60);
  if (kept.length > 1) {
    const high = Math.max(1e-9, ...kept.map((p) => p[1]));
    const step = 96 / (kept.length - 1);
    box.append(svg("path", { d: kept.map((p, i) => `${i ? "L" : "M"}${(i * step).toFixed(1)} ${(20 - (p[1] / high) * 18).toFixed(1)}`).join("") }));
  }
  return box;
}
