// The last operations of some ranks, each a bar from its begin to its end, and a table of one rank's.

import { draw, formatBytes, formatSeconds, formatTime, make } from "./text.js";

const ROW = 20;
const LEFT = 64;
const LONGEST = 60; // seconds that a timeline goes back before the first of the last ends

/** Draw reports of ranks, so many pixels wide; `now` is the coordinator's time. */
export function drawTimeline(reports, now, link, width) {
  const calls = reports.flatMap((report) => report.calls.filter((call) => call.begun));
  if (!calls.length) return make("p", { class: "quiet" }, "No call is on record.");
  const open = calls.some((call) => !call.ended && call.outcome === "running");
  const end = open ? now : Math.max(...calls.map((call) => call.ended ?? call.begun));
  const first = Math.min(...calls.map((call) => call.begun));
  const begin = Math.max(first, end - LONGEST);
  const scale = (width - LEFT - 8) / Math.max(end - begin, 1e-6);
  const place = (time) => LEFT + (Math.max(time, begin) - begin) * scale;
  const height = ROW * reports.length + 22;
  const size = { width, height, viewBox: `0 0 ${width} ${height}` };
  const picture = draw("svg", { ...size, role: "group", class: "bars" });
  for (let part = 0; part <= 4; part += 1) {
    const x = LEFT + ((width - LEFT - 8) * part) / 4;
    const ago = ((end - begin) * (4 - part)) / 4;
    const anchor = part === 0 ? "start" : part === 4 ? "end" : "middle";
    picture.append(
      draw("line", { class: "grid", x1: x, x2: x, y1: 0, y2: height - 20 }),
      draw(
        "text",
        { class: "tick", x, y: height - 6, "text-anchor": anchor },
        ago ? `-${formatSeconds(ago)}` : open ? "now" : formatTime(end),
      ),
    );
  }
  reports.forEach((report, index) => picture.append(drawRow(report, index * ROW, place, end, link)));
  return picture;
}

function drawRow(report, top, place, end, link) {
  const row = draw(
    "g",
    {},
    draw(
      "a",
      { href: link(report.rank) },
      draw("text", { class: "name", x: 0, y: top + 14 }, `rank ${report.rank}`),
    ),
  );
  for (const call of report.calls) {
    if (!call.begun) continue;
    const until = call.ended ?? (call.outcome === "running" ? end : call.begun);
    if (until < end - LONGEST) continue;
    const [x, right] = [place(call.begun), place(until)];
    const name = call.ended ? (call.outcome === "ok" ? "ended" : "broken") : "open";
    const box = { x, y: top + 3, width: Math.max(right - x, 1.5), height: ROW - 6, rx: 2 };
    const title = draw("title", {}, describeCall(report.rank, call, until));
    row.append(draw("rect", { ...box, class: `bar is-${name}` }, title));
  }
  if (!report.calls.length && report.missing) {
    row.append(draw("text", { class: "tick", x: place(0), y: top + 14 }, report.missing));
  }
  return row;
}

function describeCall(rank, call, until) {
  const parts = [
    `rank ${rank}: ${call.operation}${call.sequence ? ` #${call.sequence}` : ""} of ${call.group}`,
    call.signature,
    formatBytes(call.nbytes),
    formatSeconds(until - call.begun),
    call.outcome === "ok" ? "" : call.outcome,
    call.source,
    call.label,
  ];
  return parts.filter(Boolean).join(", ");
}

/** Say how many operations and bytes a rank has done in a second, over what is on record. */
export function describeSpeed(reports) {
  const ended = reports.flatMap((report) => report.calls.filter((call) => call.begun && call.ended));
  if (ended.length < 2) return "";
  const begin = Math.min(...ended.map((call) => call.begun));
  const seconds = Math.max(...ended.map((call) => call.ended)) - begin;
  const active = reports.filter((report) => report.calls.some((call) => call.ended)).length;
  if (seconds <= 0) return "";
  const count = ended.length / seconds / active;
  const nbytes = ended.reduce((sum, call) => sum + call.nbytes, 0) / seconds / active;
  const size = nbytes >= 1 ? ` and ${formatBytes(nbytes)}` : "";
  return `${count.toPrecision(3)} operations${size} a second on each rank`;
}

/** Return a table of the last calls of a rank, the latest first. */
export function listCalls(calls, now) {
  const heads = ["Call", "Took", "Size", "Group", "Outcome", "Waits for", "Line"];
  const rows = [...calls].reverse().map((call) => {
    const seconds = call.begun ? (call.ended ?? now) - call.begun : 0;
    return make(
      "tr",
      { class: call.ended ? null : "is-open" },
      make("td", {}, `${call.operation}${call.sequence ? ` #${call.sequence}` : ""}`),
      make("td", {}, call.begun ? formatSeconds(seconds) : ""),
      make("td", {}, formatBytes(call.nbytes)),
      make("td", {}, call.label ? `${call.group} (${call.label})` : call.group),
      make("td", {}, call.outcome),
      make("td", {}, call.waitsFor.join(", ")),
      make("td", {}, call.source),
    );
  });
  if (!rows.length) return make("p", { class: "quiet" }, "No call is on record.");
  return make(
    "table",
    {},
    make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))),
    make("tbody", {}, ...rows),
  );
}

