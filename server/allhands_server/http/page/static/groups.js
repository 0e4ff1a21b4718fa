// Groups as rings of ranks, as grids where there are more, and on a canvas where there are very many.

import { countRanks, draw, listRanks, make, setText } from "./text.js";

const RING = 24; // ranks of a ring, at most
const CELLS = 200; // ranks of a grid of elements, at most
const ARROWS = 24; // waiting ranks that get an arrow each
const MOST_GROUPS = 12;

/** Words for the states of a rank, in the order of the legend. */
export const STATES = {
  inside: "in a call",
  outside: "between calls",
  long: "in a call, all are there",
  waiting: "waits for others",
  missing: "is waited for",
  stalled: "stalled",
  paused: "paused",
  unreachable: "unreachable",
  failed: "failed first",
  aborted: "left because of that",
  lost: "lost",
  left: "left",
};

/** The groups of a job, drawn once and then coloured anew. */
export class Groups {
  constructor(box, link) {
    this.box = box;
    this.link = link; // from a rank to the address of its panel
    this.cards = new Map();
  }

  /** Show groups ([name, spans]), with the states of ranks and the waits. */
  show(groups, ranks, waits, selected) {
    const shown = [...groups].sort(compareGroups).slice(0, MOST_GROUPS);
    const key = JSON.stringify([shown, groups.length]);
    if (this.key !== key) {
      this.key = key;
      this.cards = new Map(shown.map(([name, spans]) => [name, new Card(name, spans, this.link)]));
      const more = groups.length - shown.length;
      this.box.replaceChildren(
        ...[...this.cards.values()].map((card) => card.element),
        ...(more > 0 ? [make("p", { class: "quiet" }, `and ${more} more groups`)] : []),
        ...(groups.length ? [] : [make("p", { class: "quiet" }, "No group is open.")]),
      );
    }
    for (const [name, card] of this.cards) {
      card.show(ranks, waits.filter(([group]) => group === name), selected);
    }
  }
}

function compareGroups([a, spansOfA], [b, spansOfB]) {
  return countRanks(spansOfB) - countRanks(spansOfA) || (a < b ? -1 : a > b ? 1 : 0);
}

class Card {
  constructor(name, spans, link) {
    this.ranks = listRanks(spans);
    const Drawing = this.ranks.length <= RING ? Ring : this.ranks.length <= CELLS ? Grid : Field;
    this.name = name;
    this.drawing = new Drawing(this.ranks, link);
    this.text = make("p", { class: "quiet where" });
    this.element = make(
      "figure",
      { class: "group" },
      make("figcaption", {}, make("strong", {}, name), ` ${countRanks(spans)} ranks`),
      this.drawing.element,
      this.text,
    );
  }

  show(ranks, waits, selected) {
    const missing = new Set(waits.flatMap(([, , , , , spans]) => listRanks(spans)));
    const states = new Map();
    for (const rank of this.ranks) {
      states.set(rank, findState(this.name, ranks.get(rank), missing.has(rank)));
    }
    setText(this.text, describePositions(this.name, this.ranks, ranks));
    this.drawing.show(ranks, states, waits, selected);
  }
}

/** Return the state of a rank as one group sees it: in calls of other groups it is between calls. */
function findState(group, row, isMissing) {
  const [state, , at] = row ?? ["outside"];
  if (isMissing) return ["lost", "stalled", "paused", "unreachable"].includes(state) ? state : "missing";
  const isElsewhere = at !== group && ["inside", "long", "waiting"].includes(state);
  return isElsewhere || state === "missing" ? "outside" : state;
}

/** Say in which call the ranks of a group are. */
function describePositions(group, members, ranks) {
  const calls = new Map();
  for (const rank of members) {
    const [state, , at, sequence, operation] = ranks.get(rank) ?? [];
    if (!state || ["left", "lost", "failed", "aborted"].includes(state)) continue;
    const call = at === group && operation ? `${operation} #${sequence}` : "between calls";
    calls.set(call, (calls.get(call) ?? 0) + 1);
  }
  const sorted = [...calls].sort(([, a], [, b]) => b - a);
  if (!sorted.length) return "nobody is there any more";
  const [first, ...rest] = sorted;
  return rest.length > 2 ? `${first[0]} and others` : sorted.map(([call]) => call).join(", ");
}

/** Describe a rank, for a tooltip and for those who do not see the picture. */
export function describeRank(rank, row) {
  const [state, text, group, sequence, operation] = row ?? ["outside", ""];
  const call = !sequence ? "" : operation ? `, ${operation} #${sequence} of ${group}` : "";
  return `rank ${rank}: ${STATES[state] ?? state}${call}${text ? `: ${text}` : ""}`;
}

/** Ranks as links in a picture, each with a shape and its number. */
class Picture {
  constructor(ranks, link, width, height, place) {
    this.nodes = new Map();
    this.arrows = draw("g", { class: "arrows" });
    this.element = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "group" });
    const points = draw("g");
    ranks.forEach((rank, index) => {
      const { x, y, shape } = place(index);
      const title = draw("title");
      const number = draw("text", { x, y, dy: "0.35em" }, `${rank}`);
      const node = draw("a", { href: link(rank), class: "node" }, title, shape, number);
      this.nodes.set(rank, { node, title, x, y });
      points.append(node);
    });
    this.element.append(this.arrows, points);
  }

  show(ranks, states, waits, selected) {
    for (const [rank, { node, title }] of this.nodes) {
      const row = ranks.get(rank);
      const name = `node is-${states.get(rank)}${rank === selected ? " is-selected" : ""}`;
      if (node.getAttribute("class") !== name) node.setAttribute("class", name);
      setText(title, describeRank(rank, row));
    }
    this.showArrows(waits);
  }

  /** Draw an arrow from each waiting rank to each rank that it waits for, if there are few. */
  showArrows(waits) {
    const key = JSON.stringify(waits.map(([, , , , waiting, missing]) => [waiting, missing]));
    if (this.key === key) return;
    this.key = key;
    const lines = [];
    for (const [, , , , waiting, missing] of waits) {
      for (const to of listRanks(missing, 3)) {
        for (const from of listRanks(waiting, ARROWS)) {
          if (from !== to && this.nodes.has(from) && this.nodes.has(to)) {
            lines.push(this.drawArrow(this.nodes.get(from), this.nodes.get(to)));
          }
        }
      }
    }
    this.arrows.replaceChildren(...lines);
  }

  drawArrow(from, to) {
    const [dx, dy] = [to.x - from.x, to.y - from.y];
    const length = Math.hypot(dx, dy) || 1;
    const [ux, uy] = [dx / length, dy / length];
    const [x1, y1] = [from.x + ux * this.reach, from.y + uy * this.reach];
    const [x2, y2] = [to.x - ux * (this.reach + 3), to.y - uy * (this.reach + 3)];
    const wing = (turn) => {
      const [x, y] = [-ux * 6 + turn * uy * 3.5, -uy * 6 - turn * ux * 3.5];
      return `${(x2 + x).toFixed(1)} ${(y2 + y).toFixed(1)}`;
    };
    const tip = `${x2.toFixed(1)} ${y2.toFixed(1)}`;
    const head = `M${wing(1)} L${tip} L${wing(-1)}`;
    return draw("path", { d: `M${x1.toFixed(1)} ${y1.toFixed(1)} L${tip} ${head}` });
  }
}

class Ring extends Picture {
  constructor(ranks, link) {
    const around = Math.max(58, ranks.length * 5.6);
    const middle = around + 20;
    super(ranks, link, 2 * middle, 2 * middle, (index) => {
      const angle = (2 * Math.PI * index) / ranks.length - Math.PI / 2;
      const x = middle + (ranks.length > 1 ? around * Math.cos(angle) : 0);
      const y = middle + (ranks.length > 1 ? around * Math.sin(angle) : 0);
      return { x, y, shape: draw("circle", { cx: x, cy: y, r: 14 }) };
    });
    this.reach = 15;
    if (ranks.length > 1) {
      const ring = draw("circle", { class: "ring", cx: middle, cy: middle, r: around });
      this.element.prepend(ring);
    }
  }
}

class Grid extends Picture {
  constructor(ranks, link) {
    const columns = Math.ceil(Math.sqrt(ranks.length * 1.6));
    const rows = Math.ceil(ranks.length / columns);
    const size = 28;
    super(ranks, link, columns * size, rows * size, (index) => {
      const [left, top] = [(index % columns) * size, Math.floor(index / columns) * size];
      const box = { x: left + 2, y: top + 2, width: size - 4, height: size - 4, rx: 4 };
      return { x: left + size / 2, y: top + size / 2, shape: draw("rect", box) };
    });
    this.reach = 13;
  }
}

/** Very many ranks: a canvas, with a tooltip and a click for the rank under the pointer. */
class Field {
  constructor(ranks, link) {
    this.ranks = ranks;
    this.columns = Math.ceil(Math.sqrt(ranks.length * 1.6));
    this.rows = Math.ceil(ranks.length / this.columns);
    this.size = Math.max(3, Math.floor(560 / this.columns));
    this.element = make("canvas", {
      class: "field",
      width: this.columns * this.size,
      height: this.rows * this.size,
      role: "img",
    });
    this.element.addEventListener("mousemove", (event) => {
      const rank = this.find(event);
      this.element.title = rank === undefined ? "" : describeRank(rank, this.rows?.get(rank));
    });
    this.element.addEventListener("click", (event) => {
      const rank = this.find(event);
      if (rank !== undefined) location.hash = link(rank);
    });
  }

  find(event) {
    const scale = this.element.width / this.element.clientWidth;
    const column = Math.floor((event.offsetX * scale) / this.size);
    const row = Math.floor((event.offsetY * scale) / this.size);
    return column < this.columns ? this.ranks[row * this.columns + column] : undefined;
  }

  show(ranks, states, waits, selected) {
    this.rows = ranks;
    const style = getComputedStyle(this.element);
    const colours = new Map(
      Object.keys(STATES).map((state) => [state, style.getPropertyValue(`--${state}`).trim()]),
    );
    const paint = this.element.getContext("2d");
    paint.clearRect(0, 0, this.element.width, this.element.height);
    const gap = this.size > 5 ? 1 : 0;
    const counts = new Map();
    this.ranks.forEach((rank, index) => {
      const state = states.get(rank);
      counts.set(state, (counts.get(state) ?? 0) + 1);
      const [x, y] = [(index % this.columns) * this.size, Math.floor(index / this.columns) * this.size];
      paint.fillStyle = colours.get(state) ?? colours.get("outside");
      paint.fillRect(x, y, this.size - gap, this.size - gap);
      if (rank === selected) {
        paint.strokeStyle = style.color;
        paint.strokeRect(x + 0.5, y + 0.5, this.size - gap - 1, this.size - gap - 1);
      }
    });
    const words = [...counts].map(([state, count]) => `${count} ${STATES[state] ?? state}`);
    this.element.setAttribute("aria-label", words.join(", "));
  }
}
