// The live page: what the agent streams, laid out as it comes.

import { put, say, write } from "./dom.js";
import { compare } from "./compare.js";
import { followDay } from "./day.js";
import { showEvents } from "./events.js";
import { Evidence } from "./evidence.js";
import { dateAndTime, gpuHours, span, timeOfDay } from "./figures.js";
import { showAbsences, showFindings, showHeadline } from "./findings.js";
import { showGpus } from "./gpus.js";
import { showGraph } from "./graph.js";
import { History } from "./history.js";
import { pointOut, showEnded, showJobs } from "./jobs.js";
import { showPaths } from "./paths.js";
import { followPointer, pinTime } from "./pointer.js";
import { follow } from "./stream.js";
import { learn } from "./states.js";
import { showShares } from "./strip.js";

const PACE = 250; // ms between two drawings: a simulation may tick faster
const at = (id) => document.getElementById(id);

const history = new History();
const evidence = new Evidence(at("evidence"));
let status = null;
let drawnAt = -Infinity;
let due = null;
let link = location.hash; // `#gpu=3` (or its UUID), `#job=ID`, `#compare=ID,ID`, `#t=14:03`, until shown

const now = () => (status ? Date.parse(status.at) : Date.now());

/** Draw soon, but not while the page is hidden. */
function draw() {
  if (due !== null || document.hidden || !status) return;
  const wait = Math.max(0, drawnAt + PACE - performance.now());
  due = setTimeout(() => {
    due = null;
    drawnAt = performance.now();
    show();
  }, wait);
}

function show() {
  showHeader(status);
  showHeadline(at("headline"), status);
  showGpus(at("gpus"), status, history, openGpu);
  showShares(at("legend"), history.totals(), (seconds, share) => `${gpuHours(seconds)} (${share})`);
  write(at("divided"), status.divided && `last 10 s: ${status.divided}`);
  showGraph(at("graph"), status);
  showJobs(at("jobs"), status);
  showEnded(at("ended"), status);
  showEvents(at("events"), at("marks"), status);
  showPaths(at("paths"), status);
  write(at("host"), status.host.text);
  showAbsences(at("absent"), at("absent-count"), status);
  evidence.show(status, history);
  at("findings-section").hidden = !showFindings(at("findings"), status);
  at("gpus-section").hidden = !status.gpus.length;
  at("jobs-section").hidden = !status.jobs.length && !status.ended.length;
  at("events").hidden = !status.events.length;
  at("day-section").hidden = at("day").hidden && !status.events.length;
  at("paths-section").hidden = !status.paths.length && !status.links.length;
  at("absent-section").hidden = !status.unknown;
  write(at("unmeasured"), status.unknown);
  if (link.length > 1) showLinked();
}

function showHeader({ machine, headline, groups, sound, level, at: moment }) {
  const words = headline.map(({ text }) => text).join("; ");
  say(at("title"), machine.host);
  write(at("facts"), [machine.text, machine.uptime_seconds !== null && `up ${span(machine.uptime_seconds)}`].filter(Boolean).join(" · "));
  write(at("sound"), sound);
  put(at("headline"), "data-level", level ?? "unknown");
  put(at("updated"), "datetime", moment);
  say(at("updated"), dateAndTime(moment));
  say(at("version"), `dgx-telemetry ${machine.version}`);
  document.title = `${machine.host}: ${words}`;
  speak(words, JSON.stringify([
    headline.map((one) => [one.level, one.findings, one.gpus]),
    groups.map(({ state, cause, gpus }) => [state, cause, gpus]),
  ]));
}

let spoken = "";

/** Announce the headline to a screen reader when its meaning changes, not when its figures do. */
function speak(words, meaning) {
  if (meaning === spoken) return;
  spoken = meaning;
  say(at("spoken"), words);
}

function openGpu(uuid) {
  evidence.open(uuid, status, history);
  address(`#gpu=${status.gpus.find((one) => one.uuid === uuid).gpu}`);
}

function address(hash) {
  window.history.replaceState(null, "", hash || location.pathname + location.search);
}

function showLinked() {
  const wanted = new URLSearchParams(link.slice(1));
  link = "";
  const [gpu, job, when, pair] = ["gpu", "job", "t", "compare"].map((name) => wanted.get(name));
  const opened = status.gpus.find((one) => [String(one.gpu), one.uuid].includes(gpu));
  if (opened) evidence.open(opened.uuid, status, history);
  if (pair) compareRuns(...pair.split(","));
  if (when) pinTime(at("gpus"), at("tip"), history, when, now());
  if (job && !pointOut(at("jobs"), status.jobs, job) && !pointOut(at("ended"), status.ended, job)) {
    write(at("link"), `No job ${job} is known here.`);
  }
}

/** Two runs, or one with its run before. */
function compareRuns(first, then) {
  const { before } = [...status.jobs, ...status.ended].find(({ ids }) => ids.includes(first)) ?? {};
  compare(at("compare"), ...(then ? [first, then] : [before, first]));
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

followPointer(at("gpus"), at("tip"), history, now);
followDay(at("day"), now);
document.addEventListener("visibilitychange", draw);
document.addEventListener("resized", draw);
for (const dialog of [evidence.dialog, at("compare")]) dialog.addEventListener("close", () => address(""));
at("unmeasured").addEventListener("click", () => {
  at("absent-section").firstElementChild.open = true;
});
window.addEventListener("hashchange", () => {
  link = location.hash;
  draw();
});

const hear = {
  history: (data) => {
    learn(data);
    history.remember(data);
  },
  status: (data) => {
    if (status && status.machine.version !== data.machine.version) window.location.reload();
    status = data;
    history.take(status);
    draw();
  },
};

// The page comes with what the stream would send first: a picture of it is right without waiting.
// With `?still` it stays so: an open stream keeps a browser's virtual time from passing.
const first = JSON.parse(at("first")?.textContent || "[]");
for (const [name, data] of first) hear[name]?.(data);
if (status) {
  show();
  showFeed("still", now());
}
if (!new URLSearchParams(location.search).has("still")) follow("api/v1/stream", hear, showFeed);
