// The live page: what the agent streams, shown as it comes.

import { bound, point, put, say } from "./dom.js";
import { Evidence } from "./evidence.js";
import { count, span, timeOfDay } from "./figures.js";
import { whole } from "./frame.js";
import { showGraph } from "./graph.js";
import { History, entriesOf } from "./history.js";
import { showEnded, showJobs } from "./jobs.js";
import { showPaths } from "./paths.js";
import { followPointer } from "./pointer.js";
import { showAbsent, showFindings } from "./problems.js";
import { follow } from "./stream.js";
import { showLegend, showTiles } from "./tiles.js";

const PACE = 250; // ms between two drawings: a simulation may tick faster
const at = (id) => document.getElementById(id);

const history = new History();
const evidence = new Evidence(at("evidence"));
let machine = null;
let frame = null;
let drawnAt = -Infinity;
let due = null;
let spoken = "";

/** Draw soon, but not while nobody looks. */
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
  showTiles(at("gpus"), frame, history, (uuid) => evidence.open(uuid, frame, history));
  showLegend(at("legend"), history);
  showFindings(at("findings"), frame.findings);
  showGraph(at("graph"), frame);
  showJobs(at("jobs"), frame.jobs);
  showEnded(at("ended"), frame.ended);
  showPaths(at("paths"), frame);
  showAbsent(at("absent"), at("absent-count"), frame.absent);
  evidence.show(frame, history);
  at("gpus-section").hidden = !frame.gpus.length;
  at("jobs-section").hidden = !frame.jobs.length && !frame.ended.length;
  at("findings-section").hidden = !frame.findings.length;
  at("paths-section").hidden = !frame.paths.length && !frame.links.length;
  at("absent-section").hidden = !frame.absent.length;
}

function showHeader({ machine: box, headline, action, level, uptime_seconds: uptime, timestamp: told }) {
  const name = box.host || "this machine";
  say(at("title"), name);
  say(at("facts"), factsOf(box, uptime).join(" · "));
  say(at("headline"), bound(`${headline}.`));
  at("action").hidden = !action;
  say(at("action"), bound(action));
  speak(headline);
  put(at("told"), "datetime", new Date(1000 * told).toISOString());
  say(at("told"), timeOfDay(1000 * told));
  put(at("verdict"), "data-level", level);
  point(at("verdict").firstElementChild, level);
  say(at("version"), `dgx-telemetry ${box.version}`);
  document.title = `${name}: ${headline}`;
}

/** Tell a screen reader when the sentence says something else, not when its figures move. */
function speak(headline) {
  const gist = headline.replace(/\d+(\.\d+)?/g, "#");
  if (gist === spoken) return;
  spoken = gist;
  say(at("spoken"), headline);
}

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
  live: () => "live",
  stale: (since) => `stale since ${timeOfDay(since)}`,
  reconnecting: (since) => (since ? `reconnecting, stale since ${timeOfDay(since)}` : "connecting"),
  refused: (since, reason) => `not connected: ${reason}`,
};

function tell(feed, since, reason) {
  put(document.body, "data-feed", feed);
  say(at("feed-words"), FEEDS[feed](since, reason));
}

followPointer(at("gpus"), at("tip"), history, () => 1000 * (frame?.timestamp ?? 0));
document.addEventListener("visibilitychange", draw);
document.addEventListener("resized", draw);

follow("api/v1/stream", {
  machine: (told) => {
    if (machine && machine.machine.version !== told.machine.version) window.location.reload();
    machine = told;
  },
  history: (told) => history.remember(told),
  tick: (told) => {
    frame = whole(machine, told) ?? frame;
    if (frame.tick === told.tick) history.append(told.second, entriesOf(frame.gpus));
    draw();
  },
}, tell);
