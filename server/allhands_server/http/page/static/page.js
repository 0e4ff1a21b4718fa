// The page: a session, a stream of changes, and views of what they say.

import { Chart, collectRates, collectSkew, formatBytes, formatRate, formatSpan, listLines } from "./charts.js";
import { describeRank, Groups, STATES } from "./groups.js";
import { countRanks, formatSeconds, formatTime, listRanks, make, nameRanks, setFacts, setText } from "./text.js";
import { describeSpeed, drawTimeline, listCalls } from "./timeline.js";

const RETRY_SECONDS = 3;
const REPORT_SECONDS = 5; // between two collections of reports, while somebody looks
const TIMELINE_RANKS = 32;
const MOST_EVENTS = 200; // shown; the newest of them
const MOST_POINTS = 600;

const find = (id) => document.getElementById(id);
const parts = new Map();
const shown = { job: "", rank: null };
let stream = null;
let ahead = 0; // seconds of the coordinator's clock beyond the browser's
let dirty = new Set();
let reportTimer = 0;

const linkTo = (rank) => `#/${encodeURIComponent(shown.job)}/${rank}`;
const getNow = () => Date.now() / 1000 + ahead;
const groups = new Groups(find("groups"), linkTo);
const skew = new Chart(find("skew"), formatSpan);
const rates = new Chart(find("rate"), formatRate);
const bandwidths = new Chart(find("bandwidth"), formatBytes);

// ---------------------------------------------------------------- session

/** Exchange the link's code for a session, and take it out of the address and the history. */
async function useLink() {
  const link = new URLSearchParams(location.hash.slice(1));
  const code = link.get("link");
  if (!code) return "";
  const job = link.get("job");
  history.replaceState(null, "", job ? `/#/${encodeURIComponent(job)}` : "/");
  const answer = await fetch("/session", { method: "POST", body: code });
  return answer.ok ? "" : (await answer.json()).error;
}

async function start() {
  let problem = "";
  let session = null;
  try {
    problem = await useLink();
    const answer = await fetch("/session");
    if (answer.ok) session = await answer.json();
    else if (answer.status !== 401) problem ||= (await answer.json()).error;
  } catch {
    problem = "The coordinator does not answer.";
  }
  if (session === null) {
    showDoor(problem);
    return;
  }
  ahead = session.now - Date.now() / 1000;
  find("door").hidden = true;
  find("app").hidden = find("sign-out").hidden = false;
  if (session.job !== "*" && !readAddress().job) location.hash = `#/${encodeURIComponent(session.job)}`;
  readRoute();
}

function showDoor(problem) {
  closeStream();
  find("app").hidden = find("sign-out").hidden = true;
  find("door").hidden = false;
  setText(find("live"), "");
  if (problem) setText(find("reason"), `${problem[0].toUpperCase()}${problem.slice(1)}.`);
}

find("sign-out").addEventListener("click", async () => {
  closeStream();
  await fetch("/session", { method: "DELETE" });
  showDoor("The session is closed: ask for another link");
});

// ---------------------------------------------------------------- address

function readAddress() {
  const [, job = "", rank = ""] = location.hash.split("/");
  return { job: decodeURIComponent(job), rank: /^\d+$/.test(rank) ? Number(rank) : null };
}

function readRoute() {
  if (find("app").hidden) return;
  const { job, rank } = readAddress();
  if (job !== shown.job || !stream) openStream(job);
  if (rank !== shown.rank) openRank(rank);
  markDirty("*");
}

addEventListener("hashchange", () => {
  if (location.hash.startsWith("#link=")) start();
  else readRoute();
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && shown.rank !== null) closeRank();
});
find("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const rank = find("find-rank").value;
  if (parts.has(`rank/${rank}`)) location.hash = linkTo(rank);
});

// ---------------------------------------------------------------- stream

function openStream(job) {
  closeStream();
  shown.job = job;
  parts.clear();
  find("job").hidden = !job;
  find("nothing").hidden = Boolean(job);
  find("calls").replaceChildren();
  stream = new EventSource(`/stream?job=${encodeURIComponent(job)}`);
  stream.addEventListener("open", () => setLive("live", "is-live"));
  stream.addEventListener("error", () => retry());
  stream.addEventListener("jobs", (event) => showJobs(JSON.parse(event.data)));
  stream.addEventListener("job", (event) => takeChanges(JSON.parse(event.data)));
  stream.addEventListener("over", (event) => showDoor(JSON.parse(event.data)));
  collectSoon(0.3);
}

function closeStream() {
  stream?.close();
  stream = null;
  clearTimeout(reportTimer);
}

/** Begin anew after an error; a session that is over leads to the door. */
async function retry() {
  if (!stream) return;
  const job = shown.job;
  closeStream();
  setLive("connecting again", "is-away");
  await new Promise((resolve) => setTimeout(resolve, RETRY_SECONDS * 1000));
  if (stream || document.hidden) return;
  try {
    const answer = await fetch("/session");
    if (answer.status === 401) {
      showDoor((await answer.json()).error);
      return;
    }
  } catch {
    // away: the stream finds out, and comes back here
  }
  openStream(job);
}

// Where nobody looks nothing is sent, and the few connections that a browser has are free.
document.addEventListener("visibilitychange", () => {
  if (find("app").hidden) return;
  if (document.hidden) closeStream();
  else if (!stream) openStream(shown.job);
});

function setLive(text, name) {
  setText(find("live"), text);
  find("live").className = `live ${name}`;
}

function takeChanges(changes) {
  if (changes.reset) parts.clear();
  for (const [key, value] of Object.entries(changes.parts)) {
    parts.set(key, value);
    dirty.add(key.split("/")[0]);
  }
  if (changes.reset) dirty.add("*");
  requestRender();
}

function markDirty(name) {
  dirty.add(name);
  requestRender();
}

let isRequested = false;
function requestRender() {
  if (isRequested) return;
  isRequested = true;
  requestAnimationFrame(() => {
    isRequested = false;
    const changed = dirty;
    dirty = new Set();
    render((...names) => changed.has("*") || names.some((name) => changed.has(name)));
  });
}

/** Return the values of parts whose key begins so; the oldest beyond `most` are forgotten. */
function collect(prefix, most) {
  const keys = [...parts.keys()].filter((key) => key.startsWith(prefix));
  for (const key of keys.splice(0, Math.max(0, keys.length - most))) parts.delete(key);
  return keys.map((key) => [key, parts.get(key)]);
}

function getRanks() {
  const found = new Map();
  for (const [key, row] of parts) {
    if (key.startsWith("rank/")) found.set(Number(key.slice(5)), row);
  }
  return found;
}

// ---------------------------------------------------------------- views

function showJobs(jobs) {
  const order = ["running", "degraded", "forming", "empty", "ended"];
  jobs.sort((a, b) => order.indexOf(a[1]) - order.indexOf(b[1]) || (a[0] < b[0] ? -1 : 1));
  find("no-jobs").hidden = jobs.length > 0;
  find("jobs").replaceChildren(
    ...jobs.map(([name, state, members, size, silent]) => {
      const whole = size || members;
      const count = state === "ended" ? `${whole}` : size ? `${members} of ${size}` : `${members}`;
      const link = make(
        "a",
        { href: `#/${encodeURIComponent(name)}` },
        make("span", { class: "name" }, name),
        make("span", { class: `state is-${silent ? "silent" : state}` }, `${state}, ${count} ranks`),
      );
      if (name === shown.job) link.setAttribute("aria-current", "page");
      return make("li", {}, link);
    }),
  );
}

function render(hasChanged) {
  for (const link of find("jobs").querySelectorAll("a")) {
    const isCurrent = link.getAttribute("href") === `#/${encodeURIComponent(shown.job)}`;
    if (isCurrent) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = shown.job ? `${shown.job} - allhands` : "allhands";
  setText(find("job-name"), shown.job);
  if (!shown.job) return;
  const ranks = getRanks();
  const waits = parts.get("waits") ?? [];
  if (hasChanged("job", "rate", "waits")) showHead();
  if (hasChanged("job", "waits", "failures")) showTrouble(waits);
  if (hasChanged("groups", "rank", "waits")) {
    groups.show(parts.get("groups") ?? [], ranks, waits, shown.rank);
    showLegend(ranks);
  }
  if (hasChanged("call")) {
    const calls = collect("call/", MOST_POINTS).map(([, call]) => call);
    const [names, data] = collectSkew(calls);
    skew.show(names, data);
    find("skew-lines").replaceChildren(...listLines(names));
  }
  if (hasChanged("rate")) {
    const points = collect("rate/", MOST_POINTS).map(([, one]) => one);
    rates.show(...collectRates(points, "operations a second", 1));
    bandwidths.show(...collectRates(points, "bytes a second", 2));
  }
  if (hasChanged("event")) showEvents();
  if (hasChanged("rank", "who")) showRankState(ranks);
}

function showHead() {
  const job = parts.get("job");
  if (!job) {
    setFacts(find("facts"), []);
    setText(find("job-state"), "no such job");
    find("job-state").className = "badge";
    return;
  }
  const isFailed = job.failed && job.ended !== null;
  const isWaiting = job.ended === null && !job.failed && (parts.get("waits") ?? []).length > 0;
  setText(find("job-state"), isFailed ? "failed" : isWaiting ? `${job.state}, ranks wait` : job.state);
  find("job-state").className = `badge is-${job.failed ? "failed" : isWaiting ? "waiting" : job.state}`;
  const rate = [...collect("rate/", MOST_POINTS)].at(-1)?.[1];
  setFacts(find("facts"), [
    ["ranks", job.ended !== null ? `${job.size}` : `${job.members} of ${job.size || "?"}`],
    ["epoch", `${job.epoch}`],
    ["operations a second", rate && job.ended === null ? formatRate(Math.round(rate[1])) : "-"],
    ["bytes a second", rate && job.ended === null ? formatBytes(Number(rate[2].toPrecision(3))) : "-"],
    ...(job.ended === null ? [] : [["ended", formatTime(job.ended)]]),
  ]);
}

/** Say in sentences who waits for whom, and what has failed. */
function showTrouble(waits) {
  const failures = parts.get("failures") ?? [];
  const job = parts.get("job");
  const lines = [];
  const [first, ...later] = failures.map(([, , text, time]) =>
    make("p", { class: "is-bad" }, make("time", {}, formatTime(time)), ` ${text}`),
  );
  if (first) lines.push(first);
  const traceback = failures[0]?.[4];
  if (traceback) lines.push(make("pre", { class: "stack", tabindex: "0" }, traceback));
  if (later.length) {
    const text = `and ${later.length} more after the first failure`;
    const isOpen = find("trouble").querySelector("details")?.open ? "" : null;
    lines.push(make("details", { open: isOpen }, make("summary", {}, text), ...later));
  }
  for (const [group, sequence, operation, since, waiting, missing] of waits.slice(0, 4)) {
    const verb = countRanks(waiting) === 1 ? "waits" : "wait";
    lines.push(
      make(
        "p",
        { class: "is-waiting" },
        `${nameRanks(waiting)} ${verb} for `.replace(/^r/, "R"),
        make("a", { href: linkTo(missing[0][0]) }, nameRanks(missing)),
        ` in ${operation} #${sequence} of group ${group}, for `,
        make("span", { "data-since": since }, formatSeconds(getNow() - since)),
      ),
    );
  }
  if (!lines.length) {
    const text = !job ? "" : job.ended !== null ? "The job ended well." : "No rank is waited for.";
    lines.push(make("p", { class: "quiet" }, text));
  }
  find("trouble").replaceChildren(...lines);
}

function showLegend(ranks) {
  const counts = new Map();
  for (const [state] of ranks.values()) counts.set(state, (counts.get(state) ?? 0) + 1);
  const always = ["inside", "outside", "waiting", "missing"];
  const key = JSON.stringify([...counts]);
  const list = find("legend");
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(
    ...Object.entries(STATES)
      .filter(([state]) => counts.has(state) || always.includes(state))
      .map(([state, text]) =>
        make("li", {}, make("i", { class: `swatch is-${state}` }), `${text} `, make("b", {}, `${counts.get(state) ?? 0}`)),
      ),
  );
}

function showEvents() {
  const events = collect("event/", 600).map(([key, event]) => [Number(key.slice(6)), ...event]);
  events.sort((a, b) => b[0] - a[0]);
  find("events").replaceChildren(
    ...events.slice(0, MOST_EVENTS).map(([, time, kind, text, , state, by]) =>
      make(
        "li",
        { class: `kind-${kind}${state ? " has-state" : ""}` },
        make("time", {}, formatTime(time)),
        make("b", {}, state ? `${kind} (${state})` : kind),
        make("span", {}, by ? `${text}, by ${by}` : text),
      ),
    ),
  );
  if (!events.length) find("events").append(make("li", { class: "quiet" }, "Nothing has happened yet."));
}

// ---------------------------------------------------------------- reports of ranks

function openRank(rank) {
  shown.rank = rank;
  find("rank").hidden = rank === null;
  find("app").classList.toggle("has-rank", rank !== null);
  if (rank === null) return;
  find("close-rank").setAttribute("href", `#/${encodeURIComponent(shown.job)}`);
  setText(find("rank-title"), `Rank ${rank}`);
  setText(find("rank-stack"), "asking ...");
  find("rank-calls").replaceChildren();
  find("rank-title").focus({ preventScroll: true });
  collectSoon(0);
}

function closeRank() {
  location.hash = `#/${encodeURIComponent(shown.job)}`;
}

function showRankState(ranks) {
  if (shown.rank === null) return;
  const row = ranks.get(shown.rank);
  setText(find("rank-state"), row ? describeRank(shown.rank, row) : "There is no such rank.");
  const [host = "", pid = "", address = "", label = ""] = parts.get(`who/${shown.rank}`) ?? [];
  const late = (parts.get(`late/${shown.rank}`) ?? []).map(
    ([group, calls, median, worst, last]) =>
      `${group}: median ${formatSeconds(median)}, at most ${formatSeconds(worst)}, last in ${last} of ${calls}`,
  );
  setFacts(find("rank-facts"), [
    ["host", host],
    ["pid", `${pid}`],
    ["address", address],
    ...(label ? [["label", label]] : []),
    ...(late.length ? [["lateness", late.join("; ")]] : []),
  ]);
}

function collectSoon(seconds) {
  clearTimeout(reportTimer);
  reportTimer = setTimeout(collectReports, seconds * 1000);
}

/** Ask ranks for their latest calls and stacks: those of the timeline, and the one looked at. */
async function collectReports() {
  const [job, rank] = [shown.job, shown.rank];
  const known = [...getRanks().keys()].sort((a, b) => a - b);
  if (!job || !known.length) {
    if (job && stream) collectSoon(1);
    return;
  }
  const first = chooseRanks(known);
  const asked = rank !== null && known.includes(rank) ? [...new Set([...first, rank])] : first;
  let reports = null;
  try {
    const answer = await fetch(`/reports?job=${encodeURIComponent(job)}&ranks=${asked.join(",")}`);
    if (answer.ok) reports = await answer.json();
  } catch {
    // the stream tells that the coordinator is away
  }
  if (job !== shown.job || !stream) return;
  if (reports !== null) {
    showTimeline(reports.filter((one) => first.includes(one.rank)), known.length);
    const one = reports.find((report) => report.rank === shown.rank);
    if (one) showRankReport(one);
  }
  if (parts.get("job")?.ended === null) collectSoon(REPORT_SECONDS);
}

/** Return the ranks of the timeline: those that are waited for first, of many ranks. */
function chooseRanks(known) {
  const missing = (parts.get("waits") ?? []).flatMap(([, , , , , spans]) => listRanks(spans, 8));
  const chosen = [...new Set([...missing.filter((one) => known.includes(one)), ...known])];
  return chosen.slice(0, TIMELINE_RANKS).sort((a, b) => a - b);
}

function showTimeline(reports, count) {
  const more = count > reports.length ? `, of ${reports.length} of ${count} ranks` : "";
  const text = `As the ranks have recorded them${more}, at ${formatTime(getNow())}`;
  const speed = describeSpeed(reports);
  setText(find("calls-text"), speed ? `${text}: ${speed}` : text);
  const box = find("calls");
  box.replaceChildren(drawTimeline(reports, getNow(), linkTo, box.clientWidth - 32));
}

function showRankReport(report) {
  const why = report.missing ? `not known: ${report.missing}` : "it was not told";
  setText(find("rank-stack"), report.stack || why);
  find("rank-calls").replaceChildren(listCalls(report.calls, getNow()));
}

find("update-calls").addEventListener("click", () => collectSoon(0));

setInterval(() => {
  for (const one of document.querySelectorAll("[data-since]")) {
    setText(one, formatSeconds(getNow() - Number(one.dataset.since)));
  }
}, 1000);

start();
