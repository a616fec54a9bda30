// A job beside another run of it, from their receipts.

import { element, say } from "./dom.js";
import { percent, span } from "./figures.js";
import { wordsOf } from "./states.js";

const LEAST = 0.005; // share of the time from which a state is compared
const HOUR = 3600;
const KWH = 3.6e6;
const AT_WORK = "busy/none";
const AS_NUMBER = (value) => String(Number(value.toPrecision(2)));

const ROWS = [
  ["lasted", (job) => job.seconds, span],
  ["GPUs", (job) => job.gpus.length, String],
  ["steps a second", (job) => job.mean_steps_per_second, AS_NUMBER],
  ["GPU-hours", (job) => allOf(job) / HOUR, AS_NUMBER],
  ["at work", (job) => shareOf(job, AT_WORK), percent],
  ["of the tensor peak", (job) => job.tensor_throughput, percent],
  ["kWh", (job) => job.joules && job.joules / KWH, AS_NUMBER],
  ["cost", (job) => job.cost, (value) => value.toFixed(2)],
];

/** Fill a dialog with two runs, each by any of its ids. */
export async function compare(dialog, earlier, later) {
  const { running, ended } = await (await fetch("api/v1/jobs")).json();
  const named = (id) => [...running, ...ended].find((job) => [job.id, job.name, job.job_id, job.id.split("-").pop()].includes(id));
  const [before, after] = [named(earlier), named(later)];
  const known = before && after;
  dialog.querySelector("#compare-body").replaceChildren(known ? tableOf(before, after) : element("p", {}, `Not both are known: ${earlier ?? "a run before"} and ${later}.`));
  say(dialog.querySelector("h2"), known ? `${before.title} (${before.id}), then ${after.title} (${after.id})` : "Two jobs");
  dialog.showModal();
}

function tableOf(before, after) {
  const pairs = new Set([before, after].flatMap((job) => Object.keys(job.gpu_seconds)));
  pairs.delete(AT_WORK);
  const states = [...pairs].map((pair) => [wordsOf(pair), (job) => shareOf(job, pair) ?? 0, percent])
    .filter(([, of]) => Math.max(of(before), of(after)) >= LEAST);
  const rows = [...ROWS, ...states].map(([name, of, format]) => {
    const values = [of(before), of(after)].map((value) => value ?? null);
    const change = values.includes(null) ? "" : changeOf(...values, format === percent);
    return element("tr", {}, element("th", { scope: "row" }, name),
      ...values.map((value) => element("td", {}, value === null ? "not known" : format(value))), element("td", {}, change));
  });
  const head = ["", "first", "then", "change"].map((word) => element("th", { scope: "col" }, word));
  return element("table", { class: "compared" }, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
}

/** Of shares the difference, in points: a per cent of a per cent misleads. */
function changeOf(old, now, isShare) {
  const difference = Math.round(isShare ? 100 * (now - old) : old ? 100 * (now / old - 1) : 0);
  return difference ? `${difference > 0 ? "+" : "\u2212"}${Math.abs(difference)} ${isShare ? "points" : "%"}` : "";
}

const allOf = (job) => Object.values(job.gpu_seconds).reduce((sum, seconds) => sum + seconds, 0);
const shareOf = (job, pair) => (allOf(job) ? (job.gpu_seconds[pair] ?? 0) / allOf(job) : null);
