// The live page: what the agent streams, shown as it comes.

import { bound, element, keep, point, put, say, symbol } from "./dom.js";
import { compare } from "./compare.js";
import { followDay } from "./day.js";
import { showEvents } from "./events.js";
import { Evidence } from "./evidence.js";
import { count, span, timeOfDay } from "./figures.js";
import { whole } from "./frame.js";
import { showGraph } from "./graph.js";
import { History, entriesOf } from "./history.js";
import { makeJobTools, pointOut, showEnded, showJobs } from "./jobs.js";
import { showPaths } from "./paths.js";
import { followPointer, pinTime } from "./pointer.js";
import { WORST, doing, furtherOf, makeDo, showAbsent, showFindings } from "./problems.js";
import { follow } from "./stream.js";
import { useWords } from "./states.js";
import { showLegend, showTiles } from "./tiles.js";

const PACE = 250; // ms between two drawings: a simulation may tick faster
const at = (id) => document.getElementById(id);

const history = new History();
const evidence = new Evidence(at("evidence"));
const tools = makeJobTools(() => show());
at("jobs-title").after(tools);
let machine = null;
let frame = null;
let drawnAt = -Infinity;
let due = null;
let spoken = "";
let link = location.hash; // `#gpu=3` (or its UUID), `#job=ID`, `#compare=ID` (or ID,ID), `#t=14:03`, until shown

/** Draw soon, but not while the page is hidden. */
function draw() {
  if (due !== null || document.hidden || !frame) return;
  const wait = Math.max(0, drawnAt + PACE - performance.now());
  due = setTimeout(() => {
    due = null;
    drawnAt = performance.now();
    show();
  }, wait);
}

function show() {
  showHeader(frame);
  showTiles(at("gpus"), frame, history, openGpu);
  showLegend(at("legend"), history);
  const further = furtherOf(frame);
  showFindings(at("findings"), further, frame);
  showGraph(at("graph"), frame);
  showJobs(at("jobs"), frame.jobs, tools, frame.timestamp);
  showEnded(at("ended"), frame.ended);
  showEvents(at("events"), at("marks"), frame.events, frame.timestamp, frame.machine.started);
  showPaths(at("paths"), frame, at("paths-key"));
  keep(at("speeds"), frame.speeds, (text) => text, () => element("li"), (node, text) => say(node, bound(text)));
  at("in-order").hidden = frame.findings.length > 0;
  showAbsent(at("absent"), at("absent-count"), at("unmeasured"), frame);
  evidence.show(frame, history);
  at("gpus-section").hidden = !frame.gpus.length;
  at("jobs-section").hidden = !frame.jobs.length && !frame.ended.length;
  at("findings-section").hidden = !further.length;
  at("events").hidden = !frame.events.length;
  at("day-section").hidden = at("day").hidden && !frame.events.length;
  at("paths-section").hidden = !frame.paths.length && !frame.links.length;
  at("absent-section").hidden = !frame.absent.length;
  if (link.length > 1) showLinked();
}

function openGpu(uuid) {
  evidence.open(uuid, frame, history);
  const { gpu } = frame.gpus.find((one) => one.uuid === uuid);
  mark(`#gpu=${gpu}`);
}

function mark(hash) {
  window.history.replaceState(null, "", hash || location.pathname + location.search);
}

function showLinked() {
  const wanted = new URLSearchParams(link.slice(1));
  link = "";
  const gpu = frame.gpus.find((one) => [one.gpu, one.uuid].includes(wanted.get("gpu")));
  const job = wanted.get("job");
  if (wanted.get("compare")) compare(at("compare"), ...wanted.get("compare").split(","));
  const when = wanted.get("t");
  if (when) pinTime(at("gpus"), at("tip"), history, when, 1000 * frame.timestamp);
  if (gpu) evidence.open(gpu.uuid, frame, history);
  else if (job && !pointOut(at("jobs"), frame.jobs, job) && !pointOut(at("ended"), frame.ended, job)) {
    say(at("link"), `No job ${job} is known here.`);
    at("link").hidden = false;
  }
}

window.addEventListener("hashchange", () => {
  link = location.hash;
  draw();
});

function showHeader({ machine: box, banner, uptime_seconds: uptime, timestamp }) {
  const name = box.host || "this machine";
  const headline = capital(banner.map(({ sentence }) => sentence).join("; "));
  say(at("title"), name);
  say(at("facts"), factsOf(box, uptime).join(" · "));
  put(at("headline"), "data-level", WORST.find((level) => banner.some((one) => one.level === level)));
  keep(at("headline"), banner, (_, place) => place, makeVerdict, showVerdict);
  speak(headline);
  put(at("updated"), "datetime", new Date(1000 * timestamp).toISOString());
  say(at("updated"), timeOfDay(1000 * timestamp));
  say(at("version"), `dgx-telemetry ${box.version}`);
  document.title = `${name}: ${headline}`;
}

/** What is wrong with the hardware, or what the GPUs do: each with its own cure. */
function makeVerdict() {
  return element("li", { class: "verdict" }, symbol("unknown"),
    element("div", {}, element("p", { class: "headline" }), makeDo(), element("p", { class: "calls" })));
}

function showVerdict(node, { level, sentence, action, alert, notifies }) {
  put(node, "data-level", level);
  point(node.firstChild, level);
  const [headline, todo, calls] = node.lastChild.children;
  say(headline, bound(`${capital(sentence)}.`));
  doing(todo, action, alert);
  say(calls, bound(notifies));
}

/** Announce the sentence to a screen reader when its meaning changes, not when its figures do. */
function speak(headline) {
  const gist = headline.replace(/\d+(\.\d+)?/g, "#");
  if (gist === spoken) return;
  spoken = gist;
  say(at("spoken"), headline);
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

function factsOf(box, uptime) {
  const { gpus, gpus_expected: expected, driver_version: driver } = box;
  const short = expected !== null && expected !== gpus;
  return [
    box.title || box.product || "",
    gpus === null ? "" : short ? `${gpus} of ${count(expected, "GPU")}` : count(gpus, "GPU"),
    driver ? `driver ${driver}` : "no driver",
    uptime === null ? "" : `up ${span(uptime)}`,
    box.simulated ? "simulated, not this host's GPUs" : "",
  ].filter(Boolean);
}

const FEEDS = {
  still: (since) => `as of ${timeOfDay(since)}`,
  live: () => "live",
  stale: (since) => `stale since ${timeOfDay(since)}`,
  reconnecting: (since) => (since ? `reconnecting, stale since ${timeOfDay(since)}` : "connecting"),
  refused: (since, reason) => `not connected: ${reason}`,
};

function showFeed(feed, since, reason) {
  put(document.body, "data-feed", feed);
  say(at("feed-words"), FEEDS[feed](since, reason));
}

followPointer(at("gpus"), at("tip"), history, () => 1000 * (frame?.timestamp ?? 0));
document.addEventListener("visibilitychange", draw);
document.addEventListener("resized", draw);

for (const dialog of [evidence.dialog, at("compare")]) dialog.addEventListener("close", () => mark(""));

followDay(at("day"), () => frame?.timestamp ?? Date.now() / 1000);

at("unmeasured").addEventListener("click", () => {
  at("absent-section").firstElementChild.open = true;
});

const hear = {
  machine: (data) => {
    if (machine && machine.machine.version !== data.machine.version) window.location.reload();
    machine = data;
    useWords(machine.words);
  },
  history: (data) => history.remember(data),
  tick: (data) => {
    frame = whole(machine, data) ?? frame;
    if (frame.tick === data.tick) history.append(data.second, entriesOf(frame.gpus));
    draw();
  },
};

// The page comes with what the stream would say first: a picture of it is right without waiting.
// With `?still` it stays so: an open stream keeps a browser's virtual time from passing.
const first = JSON.parse(at("first")?.textContent || "[]");
for (const [name, data] of first) hear[name](data);
if (frame) {
  show();
  showFeed("still", 1000 * frame.timestamp);
}
if (!new URLSearchParams(location.search).has("still")) follow("api/v1/stream", hear, showFeed);
