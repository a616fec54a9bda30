// A row for each GPU. What GPUs below one another have in common is said once, above the first.

import { bound, element, keep, point, put, say, style, symbol } from "./dom.js";
import { clock, count, gpuHours, percent, reading, span } from "./figures.js";
import { cellList, showCells } from "./meters.js";
import { doing, findingsOf, makeDo } from "./problems.js";
import { wordsOf } from "./states.js";
import { canvas, drawSample, drawStates } from "./strip.js";

/** `open(uuid)` is called when somebody wants to know more. */
export function showTiles(list, frame, history, open) {
  const runs = runsOf(frame.gpus);
  keep(list, frame.gpus, (gpu) => gpu.uuid, (gpu) => makeTile(gpu, open), (tile, gpu) => {
    const [lead, row, parts, faults] = tile.children;
    showLead(lead, runs.get(gpu.uuid), frame);
    showInstances(parts, gpu.instances);
    showRow(tile, row, gpu, history, frame.jobs);
    showFaults(faults, tile, findingsOf(frame, gpu));
  });
}

/** Neighbours with one verdict for like reasons, by the UUID of the first. */
function runsOf(gpus) {
  const runs = new Map();
  let last = "";
  let run = [];
  for (const gpu of gpus) {
    const gist = [stateOf(gpu), gpu.beside, gpu.instances.length, ...gpu.evidence].join().replace(/[\d.]+/g, "#");
    if (gist !== last) runs.set(gpu.uuid, (run = []));
    run.push(gpu);
    last = gist;
  }
  return runs;
}

function makeTile(gpu, open) {
  const button = element("button", { type: "button", "aria-haspopup": "dialog" });
  const tile = element(
    "li",
    { class: "tile", "data-uuid": gpu.uuid },
    element(
      "div",
      { class: "lead" },
      element("span", { class: "badge" }, symbol("unknown")),
      element("p", { class: "state" }, element("strong"), " ", element("span", { class: "since" })),
      element("p", { class: "why" }),
      makeDo(),
    ),
    element(
      "div",
      { class: "row" },
      element("h3", {}, button),
      canvas("strip", ""),
      cellList(),
      element("p", { class: "who" }),
    ),
    element("ul", { class: "instances" }),
    element("ul", { class: "faults" }),
  );
  button.addEventListener("click", () => open(gpu.uuid));
  return tile;
}

/** What the GPUs of a run do, why, since when, and what to do where the banner does not say it;
 * nothing on the rows below the first. */
function showLead(lead, run, frame) {
  const { gpus, banner } = frame;
  lead.hidden = !run;
  if (!run) return;
  const [first] = run;
  const [badge, state, why, todo] = lead.children;
  point(badge.firstChild, symbolOf(first));
  put(lead, "data-level", first.level);
  const beside = run.find((gpu) => gpu.beside);
  say(state.firstChild, bound(`${namesOf(run, gpus.length)}: ${beside ? `${beside.beside}, ${stateOf(first)} now` : stateOf(first)}`));
  say(state.lastChild, beside ? "" : bound(`${sinceOf(run, frame)}${first.of_window && `, ${first.of_window}`}`));
  const alike = run.every((gpu) => gpu.evidence.join() === first.evidence.join());
  const reason = first.evidence.join(", ");
  say(why, bound(alike || !reason ? reason : `for example GPU ${first.gpu}: ${reason}`));
  const { advice } = run.find((gpu) => gpu.advice) ?? first;
  doing(todo, banner.some(({ action }) => action === advice) ? "" : advice, "");
}

/** A row for each MIG instance, with what is known of it. */
function showInstances(list, instances) {
  list.hidden = !instances.length;
  keep(list, instances, ({ uuid }) => uuid, () => element("li", { class: "instance" },
    element("span"), element("span", { class: "gauge", "aria-hidden": "true" }), element("span"), element("span"), element("span")),
  (node, { number, profile, activity, memory, memory_limit: limit, processes, uuid }) => {
    const [name, gauge, active, used, who] = node.children;
    put(node, "title", uuid);
    say(name, `instance ${number} (${profile})`);
    style(gauge, "--share", (activity ?? 0).toFixed(3));
    say(active, activity === null ? "activity not known" : percent(activity));
    say(used, reading({ value: memory, limit, unit: "bytes" }).join(" of "));
    say(who, processes === null ? "" : count(processes, "process", "processes"));
  });
}

/** `GPU 3`, `GPUs 0-3`, `All 8 GPUs`. */
function namesOf(run, all) {
  if (run.length === 1) return `GPU ${run[0].gpu}`;
  return run.length === all ? `All ${all} GPUs` : `GPUs ${run[0].gpu}-${run.at(-1).gpu}`;
}

function showRow(tile, row, gpu, history, jobs) {
  putState(tile, gpu);
  put(tile, "data-gpu", gpu.gpu);
  const [title, strip, cells, who] = row.children;
  say(title.firstChild, `GPU ${gpu.gpu}`);
  put(title.firstChild, "aria-label", `GPU ${gpu.gpu}: ${stateOf(gpu)}. Why?`);
  drawStates(strip, history, gpu.uuid);
  showCells(cells, gpu);
  say(who, whoOf(gpu.processes, jobs));
}

/** The largest process by the name of its job, and how many more. */
function whoOf([first, ...rest], jobs) {
  if (!first) return "";
  const job = jobs.find(({ named, ids }) => named && ids.includes(String(first.pid)));
  const more = rest.length ? ` and ${rest.length} more` : "";
  const name = (job?.title || first.program || "pid").replace(/:\d+$/, ""); // of the job's first process
  return `${name}:${first.pid} ${first.user ?? ""}`.replace("pid:", "pid ").trim() + more;
}

/** What is wrong with it. */
function showFaults(list, tile, findings) {
  list.hidden = !findings.length;
  put(tile, "data-faults", findings.length || null);
  keep(list, findings, ({ text }) => text, () => element("li", { class: "fault" }, symbol("wrong"), element("span")),
    (node, { text, level }) => {
      put(node, "data-level", level);
      point(node.firstChild, level);
      say(node.lastChild, bound(text));
    });
}

/** State and cause as attributes: style and tests hang on them. */
export function putState(node, gpu) {
  put(node, "data-state", gpu.lost ? "lost" : gpu.state ?? "unknown");
  put(node, "data-cause", gpu.lost ? null : gpu.cause);
}

export function symbolOf(gpu) {
  return gpu.lost ? "lost" : gpu.state ?? "unknown";
}

export function stateOf(gpu) {
  return gpu.summary || (gpu.lost ? "lost" : "not known");
}

/** Since when; what stood at the agent's start may be older. */
export function sinceOf(run, { timestamp: now, machine }) {
  const seconds = Math.max(...run.map((gpu) => gpu.seconds ?? -1));
  const gaps = Math.max(...run.map((gpu) => gpu.gaps ?? 0));
  const older = now - seconds - machine.started < FIRST ? " or before" : "";
  return seconds < 0 ? "" : `since ${clock(now - seconds, now)}${older}${gaps > 0 ? ` (with gaps of ${span(gaps)} in all)` : ""}`;
}

const FIRST = 30; // s after the agent's start within which what GPUs do is first known
const LEAST = 0.005; // share of the time below which a state cannot be seen in a strip

/** The states of the last 15 minutes and what each took of all GPUs. */
export function showLegend(list, history) {
  showShares(list, history.totals(), LEAST, (a, b) => b[0] - a[0],
    (seconds, share) => `${gpuHours(seconds)} (${share})`);
}

/** Seconds by code as a list: sample, and the words that `describe` makes of the seconds, their share and their sum. */
export function showShares(list, totals, least, order, describe) {
  const all = [...totals.values()].reduce((sum, seconds) => sum + seconds, 0);
  const listed = [...totals].filter(([, seconds]) => seconds >= least * all).sort(order);
  keep(list, listed, ([code]) => code, makeEntry, (entry, [code, seconds]) => {
    drawSample(entry.firstChild, code);
    say(entry.lastChild, describe(seconds, percent(seconds / all), all));
  });
}

function makeEntry([code]) {
  return element(
    "li",
    {},
    canvas("sample"),
    element("span", {}, wordsOf(code)),
    element("span", { class: "figure" }),
  );
}
