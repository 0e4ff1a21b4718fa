// Elements and texts: all that comes from users becomes text, never HTML.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element with attributes; children are elements or texts. */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Make an element of SVG. */
export function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Set a text, and leave the document alone where it is the same. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Replace the terms and values of a description list. */
export function setFacts(list, facts) {
  const key = JSON.stringify(facts);
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(
    ...facts.map(([term, value]) => make("div", {}, make("dt", {}, term), make("dd", {}, value))),
  );
}

/** Return seconds as people say them: `0.3 ms`, `4.2 s`, `3 min 5 s`, `2 h 10 min`. */
export function formatSeconds(seconds) {
  const size = Math.max(0, seconds);
  if (size === 0) return "0 s";
  if (size < 1e-3) return `${(size * 1e6).toFixed(0)} µs`;
  if (size < 1) return `${(size * 1e3).toPrecision(3)} ms`;
  if (size < 60) return `${size.toFixed(size < 10 ? 1 : 0)} s`;
  if (size < 3600) return `${Math.floor(size / 60)} min ${Math.floor(size % 60)} s`;
  return `${Math.floor(size / 3600)} h ${Math.floor((size % 3600) / 60)} min`;
}

/** Return a number of bytes with a unit. */
export function formatBytes(nbytes) {
  if (!nbytes) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const unit = Math.min(Math.floor(Math.log2(nbytes) / 10), units.length - 1);
  const value = nbytes / 2 ** (10 * unit);
  return `${unit === 0 || value >= 100 ? value.toFixed(0) : value.toPrecision(3)} ${units[unit]}`;
}

/** Return a time of the wall clock. */
export function formatTime(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });
}

/** Return ranks in words: `rank 5`, `ranks 0-4, 6`. */
export function nameRanks(spans) {
  const count = countRanks(spans);
  const shown = spans.slice(0, 8).map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`));
  const more = spans.length > 8 ? " and more" : "";
  return `rank${count === 1 ? "" : "s"} ${shown.join(", ")}${more}`;
}

/** Return the number of ranks in spans. */
export function countRanks(spans) {
  return spans.reduce((sum, [a, b]) => sum + b - a + 1, 0);
}

/** Return the ranks of spans, the first of them where there are many. */
export function listRanks(spans, most = Infinity) {
  const ranks = [];
  for (const [a, b] of spans) {
    for (let rank = a; rank <= b && ranks.length < most; rank += 1) ranks.push(rank);
  }
  return ranks;
}
