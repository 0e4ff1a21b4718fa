// Charts over time: arrival skew by group, and operations a second.

import uPlot from "./uPlot.esm.js";
import { formatSeconds, make } from "./text.js";

const HEIGHT = 170;
const LINES = ["--line-1", "--line-2", "--line-3", "--line-4"];

/** One chart, made anew where its lines or the colours change, and else given new data. */
export class Chart {
  constructor(box, format) {
    this.box = box;
    this.format = format;
    this.data = [[]];
    this.key = "";
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.key = "";
      this.show(this.names ?? [], this.data);
    });
    new ResizeObserver(() => {
      const width = this.box.clientWidth;
      if (this.plot && width) this.plot.setSize({ width, height: HEIGHT });
    }).observe(box);
  }

  /** Show lines by name; `data` has the times, then the values of each line. */
  show(names, data) {
    this.names = names;
    this.data = data;
    if (data[0].length < 2) {
      this.plot?.destroy();
      this.plot = null;
      this.box.replaceChildren(make("p", { class: "quiet none" }, "Nothing is known yet."));
      return;
    }
    const key = JSON.stringify(names);
    if (this.key === key && this.plot) {
      this.plot.setData(data);
      return;
    }
    this.key = key;
    this.plot?.destroy();
    this.box.replaceChildren();
    this.plot = new uPlot(this.configure(names), data, this.box);
  }

  configure(names) {
    const style = getComputedStyle(this.box);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = {
      stroke: colour("--quiet"),
      grid: { stroke: colour("--grid"), width: 1 },
      ticks: { show: false },
      font: "12px system-ui, sans-serif",
    };
    return {
      width: this.box.clientWidth || 400,
      height: HEIGHT,
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false } },
      scales: { y: { range: (_, low, high) => [0, Math.max(high ?? 0, 1e-6) * 1.1] } },
      axes: [
        { ...axis, space: 80, size: 26, values: (_, times) => times.map(formatTick) },
        { ...axis, size: 64, values: (_, values) => values.map(this.format) },
      ],
      series: [
        {},
        ...names.map((label, index) => ({
          label,
          stroke: colour(LINES[index % LINES.length]),
          width: 1.5,
          spanGaps: true,
          points: { size: 4, show: (plot) => plot.data[0].length < 60 },
        })),
      ],
    };
  }
}

function formatTick(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });
}

/** Name the lines of a chart by their colours. */
export function listLines(names) {
  return names.map((name, index) =>
    make("li", {}, make("i", { class: `swatch line-${(index % LINES.length) + 1}` }), name),
  );
}

/** Return names and data of the arrival skew: a line for each group. */
export function collectSkew(calls) {
  const byGroup = new Map();
  for (const [group, , time, span] of calls) {
    if (!byGroup.has(group)) byGroup.set(group, []);
    byGroup.get(group).push([time, span]);
  }
  const names = [...byGroup.keys()].sort().slice(0, LINES.length);
  const tables = names.map((name) => {
    const points = byGroup.get(name).sort((a, b) => a[0] - b[0]);
    return [points.map(([time]) => time), points.map(([, span]) => span)];
  });
  return [names, tables.length ? uPlot.join(tables) : [[]]];
}

/** Return names and data of a rate over time: `at` 1 are operations, 2 bytes a second. */
export function collectRates(rates, name, at) {
  const points = [...rates].sort((a, b) => a[0] - b[0]);
  return [[name], [points.map(([time]) => time), points.map((one) => one[at])]];
}

export const formatSpan = (seconds) => (seconds ? formatSeconds(seconds) : "0");
export const formatBytes = (bytes) =>
  bytes >= 1e9 ? `${bytes / 1e9} GB` : bytes >= 1e6 ? `${bytes / 1e6} MB` : bytes >= 1e3 ? `${bytes / 1e3} kB` : `${bytes} B`;
export const formatRate = (rate) =>
  rate >= 1e6 ? `${rate / 1e6} M` : rate >= 1e3 ? `${rate / 1e3} k` : `${rate}`;
