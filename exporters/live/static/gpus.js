// A row for each GPU. What the GPUs of a group have in common stands once, above the first.

import { element, keep, list, mark, put, say, style, symbol, write } from "./dom.js";
import { reading } from "./figures.js";
import { findingsOf, showStep, sinceOf } from "./findings.js";
import { canvas, drawSeries, drawStates } from "./strip.js";

const METERS = [ // name, words, figure, its limit, unit
  ["activity", "activity", "activity_ratio", null, "ratio"],
  ["sm", "SM activity", "sm_active_ratio", null, "ratio"],
  ["tensor", "MFU, at most", "tensor_throughput_ratio", null, "ratio"],
  ["memory", "memory", "memory_used_bytes", "memory_total_bytes", "bytes"],
  ["power", "power", "power_watts", "power_limit_watts", "watts"],
  ["temperature", "temp.", "temperature_celsius", "temperature_limit_celsius", "celsius"],
  ["clock", "SM clock", "sm_clock_hertz", "sm_clock_limit_hertz", "hertz"],
];
const CURVES = new Set(["activity", "memory", "power", "temperature"]); // that have a history: those of a row

/** Groups with their GPUs, then GPUs that are in none; `open(uuid)` is called when somebody wants to know more. */
export function showGpus(parent, status, history, open) {
  const byNumber = new Map(status.gpus.map((gpu) => [gpu.gpu, gpu]));
  const grouped = new Set(status.groups.flatMap(({ gpus }) => gpus));
  const rows = status.groups.flatMap((group) => [{ group }, ...group.gpus.map((gpu) => ({ gpu: byNumber.get(gpu) }))]);
  const rest = status.gpus.filter(({ gpu }) => !grouped.has(gpu)).map((gpu) => ({ gpu }));
  keep(parent, [...rows, ...rest], ({ group, gpu }) => gpu ? gpu.uuid || gpu.gpu : `above GPU ${group.gpus[0]}`,
    ({ gpu }) => (gpu ? makeRow(gpu, open) : makeLead()),
    (node, { group, gpu }) => (gpu ? showRow(node, gpu, status, history) : showLead(node, group, status)));
}

function makeLead() {
  return element("li", { class: "lead" }, symbol(), element("div", {},
    element("p", { class: "state" }, element("strong"), " ", element("span", { class: "muted" })),
    element("p", { class: "why" }), element("p", { class: "do" })));
}

function showLead(node, group, status) {
  mark(node, group.level, shapeOf(group));
  const [state, why, todo] = node.lastChild.children;
  write(state.firstChild, `${group.name}: ${group.text}`);
  write(state.lastChild, sinceOf(group, status));
  write(why, group.why.join(", "));
  showStep(todo, group);
}

/** The symbol of a group or a GPU. */
export const shapeOf = ({ state, reason, lost }) => state ?? (lost || reason === "lost" ? "lost" : "unknown");

function makeRow(gpu, open) {
  const button = element("button", { type: "button", "aria-haspopup": "dialog" });
  button.addEventListener("click", () => open(gpu.uuid));
  return element("li", { class: "tile", "data-uuid": gpu.uuid },
    element("div", { class: "row" }, element("h3", {}, button), canvas("strip"), element("dl", { class: "cells" }), element("p", { class: "who" })),
    element("ul", { class: "instances" }),
    element("ul", { class: "faults" }),
    element("p", { class: "faults" }));
}

function showRow(node, gpu, status, history) {
  putState(node, gpu);
  put(node, "data-gpu", gpu.gpu);
  const [row, parts, faults, note] = node.children;
  const [title, strip, cells, who] = row.children;
  say(title.firstChild, `GPU ${gpu.gpu}`);
  put(title.firstChild, "aria-label", `GPU ${gpu.gpu}: ${gpu.text}. Why?`);
  drawStates(strip, history, gpu.uuid);
  keep(cells, METERS.filter(([name]) => CURVES.has(name)), ([name]) => name,
    ([name, words]) => element("div", { class: "cell", "data-meter": name }, element("dt", {}, words), makeGauge(), makeFigure()),
    (cell, meter) => showMeter(cell, gpu, meter));
  say(who, gpu.who ?? "");
  showInstances(parts, gpu.instances);
  const found = findingsOf(status, gpu);
  put(node, "data-faults", found.length || null);
  faults.hidden = !found.length;
  keep(faults, found, ({ id }) => id, () => element("li", {}, symbol(), element("span")), (line, { brief, level }) => {
    mark(line, level);
    write(line.lastChild, brief);
  });
  write(note, gpu.note);
}

/** State and cause as attributes, for tests. */
export function putState(node, gpu) {
  put(node, "data-state", shapeOf(gpu));
  put(node, "data-cause", gpu.cause);
}

/** Each MIG instance, with what is known of it. */
function showInstances(parent, instances) {
  parent.hidden = !instances.length;
  keep(parent, instances, ({ uuid }) => uuid, () => element("li", {}, element("span"), makeGauge("span"), element("span"), element("span"), element("span")),
    (node, { number, profile, uuid, activity_ratio: activity, memory_used_bytes: used, memory_total_bytes: total, processes }) => {
      const [name, gauge, active, memory, who] = node.children;
      put(node, "title", uuid);
      say(name, `instance ${number} (${profile})`);
      style(gauge, "--share", (activity ?? 0).toFixed(3));
      say(active, `activity ${reading(activity, null, "ratio").join("")}`);
      say(memory, `memory ${reading(used, total, "bytes").join("")}`);
      say(who, processes === null ? "" : `processes: ${processes}`);
    });
}

const makeGauge = (tag = "dd") => element(tag, { class: "gauge", "aria-hidden": "true" });
const makeFigure = () => element("dd", { class: "figure" }, element("span"), element("span", { class: "of" }), element("span", { class: "unit" }));

/** A figure against its limit; `row` has a gauge and a figure. */
function showMeter(row, gpu, [, , figure, limit, unit]) {
  const [value, most] = [gpu.figures[figure], limit && gpu.figures[limit]];
  const top = topOf(most, unit);
  const parts = reading(value, most, unit);
  [...row.lastChild.children].forEach((node, place) => say(node, parts[place]));
  style(row.querySelector(".gauge"), "--share", top && value !== null ? Math.min(value / top, 1).toFixed(3) : "0");
}

const topOf = (limit, unit) => limit ?? (unit === "ratio" ? 1 : null);

/** All figures of a GPU, each with its limit and its last 15 minutes as a curve; how many are known. */
export function showMeters(parent, gpu, history) {
  const known = METERS.filter(([, , figure]) => gpu.figures[figure] !== null);
  keep(parent, known, ([name]) => name,
    ([name, words]) => element("div", { class: "meter", "data-meter": name }, element("dt", {}, words), makeGauge(),
      element("dd", { class: "curve", "aria-hidden": "true" }, CURVES.has(name) ? canvas("spark") : ""), makeFigure()),
    (row, meter) => {
      showMeter(row, gpu, meter);
      const [name, , , limit, unit] = meter;
      const curve = row.querySelector("canvas");
      if (curve) drawSeries(curve, history, gpu.uuid, name, topOf(limit && gpu.figures[limit], unit));
    });
  return known.length;
}

/** The processes on a GPU: `python3, pid 4711, of ada, 9.5 GiB`. */
export function showProcesses(parent, { processes }) {
  list(parent, processes.map(({ pid, program, user, memory_bytes: memory }) => [
    program ?? "process", `pid ${pid}`, user && `of ${user}`, memory !== null && reading(memory, null, "bytes").join(""),
  ].filter(Boolean).join(", ")));
}
