// A job beside its run before, of the same name and user: as `dgx-telemetry report --compare` has it.

import { element, say } from "./dom.js";
import { count, percent, span } from "./figures.js";
import { codeOf, wordsOf } from "./states.js";

const LEAST = 0.005; // share of the time from which a state is compared
const HOUR = 3600;
const KWH = 3.6e6;
const AS_NUMBER = (value) => String(Number(value.toPrecision(2)));

const ROWS = [
  ["lasted", (job) => job.seconds, span],
  ["GPUs", (job) => job.gpus.length, (number) => count(number, "GPU")],
  ["steps a second", (job) => job.mean_steps_per_second, AS_NUMBER],
  ["GPU-hours", (job) => hours(job), AS_NUMBER],
  ["at work", (job) => shareOf(job, "busy/none"), percent],
  ["of the tensor peak", (job) => job.tensor_throughput, percent],
  ["kWh", (job) => job.joules && job.joules / KWH, AS_NUMBER],
  ["cost", (job) => job.cost, (value) => value.toFixed(2)],
];

/** The run before a job: the last that ended of the same name and user. */
export function runBefore(job, ended) {
  return job.name && ended.find((other) => other.name === job.name && other.user === job.user
    && other.ended && other.id !== job.id && other.began < job.began);
}

/** Fill a dialog with job `id` and `other` (or its run before); both by any of their ids. */
export async function compare(dialog, id, other = "") {
  const { running, ended } = await (await fetch("api/v1/jobs")).json();
  const all = [...running, ...ended];
  const named = (wanted) => all.find((job) => [job.id, job.name, job.job_id, job.id.split("-").pop()].includes(wanted));
  const after = named(id);
  const before = other ? named(other) : after && runBefore(after, ended);
  const body = dialog.querySelector("#compare-body");
  body.replaceChildren(before && after ? tableOf(before, after)
    : element("p", {}, `No two jobs to compare: ${id}${other && ` and ${other}`}.`));
  say(dialog.querySelector("h2"), before && after
    ? `${before.title} (${before.id}), then ${after.title} (${after.id})` : "Two jobs");
  dialog.showModal();
}

function tableOf(before, after) {
  const pairs = new Set([before, after].flatMap((job) => Object.keys(job.gpu_seconds)));
  pairs.delete("busy/none");
  const states = [...pairs].map((pair) => [wordsOf(codeOf(...pair.split("/"))), (job) => shareOf(job, pair) || 0, percent])
    .filter(([, of]) => Math.max(of(before), of(after)) >= LEAST);
  const rows = [...ROWS, ...states].map(([name, of, format]) => {
    const [old, now] = [of(before), of(after)];
    const known = [old, now].every((value) => value !== null && value !== undefined);
    const change = known ? changeOf(old, now, format === percent) : "";
    return element("tr", {}, element("th", { scope: "row" }, name),
      ...[old, now].map((value) => element("td", {}, value === null || value === undefined ? "not known" : format(value))),
      element("td", {}, change));
  });
  const head = ["", "first", "then", "change"].map((word) => element("th", { scope: "col" }, word));
  return element("table", { class: "compared" }, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
}

/** Of shares the difference, in points: a per cent of a per cent misleads. */
function changeOf(old, now, isShare) {
  const difference = Math.round(isShare ? 100 * (now - old) : old ? 100 * (now / old - 1) : 0);
  return difference ? `${difference > 0 ? "+" : "\u2212"}${Math.abs(difference)} ${isShare ? "points" : "%"}` : "";
}

const hours = (job) => Object.values(job.gpu_seconds).reduce((sum, seconds) => sum + seconds, 0) / HOUR;
const shareOf = (job, pair) => (hours(job) ? (job.gpu_seconds[pair] ?? 0) / HOUR / hours(job) : null);
