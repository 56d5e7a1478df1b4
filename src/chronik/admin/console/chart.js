// Charts by uPlot: lines over time with a legend that follows the pointer, sparklines, bars.

import uPlot from "/console/vendor/uplot.js";
import { html, useEffect, useRef, useState } from "/console/vendor/preact.js";
import { clock } from "/console/format.js";

const HEIGHT = 168, SPAN_S = 300;

// A colour of style.css as the canvas needs it.
const resolved = (name) => getComputedStyle(document.documentElement).getPropertyValue(name.match(/--[\w-]+/)[0]).trim();
const faded = (color) => (color.startsWith("#") ? `${color}22` : color);

function axis(extra) {
  return {
    stroke: resolved("--faint"), font: "11px system-ui, sans-serif", gap: 4,
    grid: { stroke: resolved("--line-soft"), width: 1 }, ticks: { show: false }, ...extra,
  };
}

// [{name, color, points: [[ms, value], ...]}] as uPlot wants it: one list of times, one list of values for each.
function aligned(series, sinceMs) {
  const times = [...new Set(series.flatMap((one) => one.points.map(([at]) => at)))].filter((at) => at >= sinceMs).sort((a, b) => a - b);
  const rows = series.map((one) => {
    const at = new Map(one.points);
    return times.map((t) => at.get(t) ?? null);
  });
  return [times.map((t) => t / 1000), ...rows];
}

// Keeps a uPlot in a box: made anew when theme or series change, resized with the box, fed with `data`.
function usePlot(box, make, data, key) {
  const plot = useRef(null);
  useEffect(() => {
    const element = box.current;
    plot.current = new uPlot(make(Math.max(80, element.clientWidth)), data, element);
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: Math.max(80, element.clientWidth), height: plot.current.height }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [key, document.documentElement.dataset.theme]);
  useEffect(() => plot.current?.setData(data), [data]);
}

export function Chart({ title, series, format, least = 1 }) {
  const box = useRef(null);
  const [at, setAt] = useState(null);
  const newest = Math.max(0, ...series.map((one) => one.points.at(-1)?.[0] ?? 0)) || Date.now();
  const data = aligned(series, newest - SPAN_S * 1000);
  usePlot(box, (width) => ({
    width, height: HEIGHT, legend: { show: false }, padding: [8, 24, 0, 0],
    cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
    scales: {
      x: { range: (_, low, high) => (low === high ? [low - 15, high + 15] : [Math.min(low, high - 30), high]) },
      y: { range: (_, low, high) => [0, Math.max(least, high ?? 0) * 1.08] },
    },
    axes: [axis({ values: (_, ticks) => ticks.map((tick) => clock(tick * 1000)), space: 90, size: 24 }), axis({ values: (_, ticks) => ticks.map(format), size: 62, space: 36 })],
    series: [{}, ...series.map((one) => ({ stroke: resolved(one.color), fill: faded(resolved(one.color)), width: 1.6, points: { show: false }, spanGaps: true }))],
    hooks: { setCursor: [(plot) => setAt(plot.cursor.idx ?? null)] },
  }), data, series.map((one) => one.name).join());
  const shown = (index) => {
    const value = at !== null && at < data[0].length ? data[index + 1][at] : series[index].points.at(-1)?.[1];
    return value === null || value === undefined ? "–" : format(value);
  };
  return html`<section class="card chart-card" aria-label=${title}>
    <div class="head"><h2>${title}</h2>
      <div class="aside keys">${at !== null && at < data[0].length && html`<span class="dim num">${clock(data[0][at] * 1000)}</span>`}
        ${series.map((one, index) => html`<span class="key" key=${one.name}><i style=${{ background: `var(${one.color})` }}></i>${one.name} <b class="num">${shown(index)}</b></span>`)}</div></div>
    <div class="plot" ref=${box} role="img" aria-label=${`${title}, the last five minutes: ${series.map((one, index) => `${one.name} ${shown(index)}`).join(", ")}`}></div>
  </section>`;
}

export function Spark({ points, color = "--accent" }) {
  const box = useRef(null);
  const kept = points.slice(-60);
  const data = [kept.map(([at]) => at / 1000), kept.map((one) => one[1])];
  usePlot(box, () => ({
    width: 96, height: 22, legend: { show: false }, cursor: { show: false }, padding: [2, 0, 2, 0],
    axes: [{ show: false }, { show: false }], scales: { y: { range: (_, low, high) => [0, Math.max(1e-9, high ?? 0)] } },
    series: [{}, { stroke: resolved(color), width: 1.4, points: { show: false } }],
  }), data, color);
  return html`<div class="spark" ref=${box} aria-hidden="true"></div>`;
}

// A result of SQL: lines over numbers or times, bars over anything else.
export function ResultChart({ labels, xs, series, format }) {
  const box = useRef(null);
  const isLine = xs !== null;
  const colors = series.map((_, index) => `--n${index % 8}`);
  const data = [isLine ? xs : labels.map((_, index) => index), ...series.map((one) => one.values)];
  const every = Math.max(1, Math.ceil(labels.length / 12));
  usePlot(box, (width) => ({
    width, height: 300, legend: { show: false }, padding: [10, 10, 0, 0], cursor: { y: false, drag: { x: false, y: false } },
    scales: {
      x: { time: false, range: (_, low, high) => (isLine ? [low, high === low ? low + 1 : high] : [-0.6, labels.length - 0.4]) },
      y: { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(1e-9, high ?? 0) * 1.08] },
    },
    axes: [
      axis(isLine ? { values: (_, ticks) => ticks.map(format), size: 28, space: 90 }
        : { splits: () => labels.map((_, index) => index).filter((index) => index % every === 0), values: (_, ticks) => ticks.map((tick) => String(labels[tick] ?? "").slice(0, 14)), size: 28 }),
      axis({ size: 64 }),
    ],
    series: [{}, ...series.map((one, index) => ({
      label: one.name, stroke: resolved(colors[index]), width: 1.6, fill: isLine ? undefined : `${resolved(colors[index])}cc`,
      paths: isLine ? undefined : uPlot.paths.bars({ size: [0.7, 64] }), points: { show: false },
    }))],
  }), data, JSON.stringify([isLine, labels.length, series.map((one) => one.name)]));
  return html`<div class="keys pad">${series.map((one, index) => html`<span class="key" key=${one.name}><i style=${{ background: `var(${colors[index]})` }}></i>${one.name}</span>`)}</div>
    <div class="plot tall" ref=${box} role="img" aria-label=${`Chart of ${series.map((one) => one.name).join(", ")}; the table has the numbers`}></div>`;
}
