// A row for each job: how fast it is and was, its GPUs, where their time goes; receipts below.

import { bound, drawing, element, keep, point, put, say, symbol } from "./dom.js";
import { gpuHours, percent, span } from "./figures.js";

const SLOTS = 90; // of ten seconds: the last quarter of an hour
const WIDTH = 180;
const HEIGHT = 28;
const MOST_SHARES = 4;

export function showJobs(list, jobs) {
  keep(list, jobs, (job) => job.id, makeJob, (node, job) => {
    const [mark, words, curve, shares] = node.children;
    put(node, "data-level", job.level);
    point(mark, job.level);
    const [name, sentence] = words.children;
    say(name, `${job.title}, ${gpusOf(job)}, ${span(job.seconds)}`);
    say(sentence, bound(job.sentence));
    const points = pointsOf(job.rates);
    put(curve, "hidden", !points);
    put(curve.lastElementChild, "points", points);
    const told = job.shares.slice(0, MOST_SHARES).map(shareOf).join(", ");
    say(shares, told && `${told} of ${gpuHours(job.gpu_seconds)}`);
  });
}

/** `GPU 3`, `GPUs 0-3,5`. */
function gpusOf({ gpus }) {
  return `GPU${/\D/.test(gpus) ? "s" : ""} ${gpus}`;
}

function makeJob() {
  return element(
    "li",
    { class: "job" },
    symbol("good"),
    element("div", { class: "job-words" }, element("strong"), element("p")),
    drawing(
      "svg",
      {
        class: "job-curve",
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
        role: "img",
        "aria-label": "Steps per second in the last 15 minutes",
      },
      drawing("polyline", { fill: "none", stroke: "currentColor" }),
    ),
    element("span", { class: "muted job-shares" }),
  );
}

/** Points of the curve, the newest at the right end; what is not known leaves none. */
function pointsOf(rates) {
  const top = Math.max(...rates.filter((rate) => rate !== null), 0);
  if (!top) return "";
  const first = SLOTS - rates.length;
  return rates
    .map((rate, place) => [rate, first + place])
    .filter(([rate]) => rate !== null)
    .map(([rate, slot]) => {
      const x = ((slot + 1) * WIDTH) / SLOTS;
      return `${x.toFixed(1)},${(HEIGHT - 1 - (HEIGHT - 2) * (rate / top)).toFixed(1)}`;
    })
    .join(" ");
}

function shareOf([state, cause, share]) {
  return `${cause === "none" ? state : `${state} (${cause.replaceAll("_", " ")})`} ${percent(share)}`;
}

/** Jobs that ended, each with its receipt. */
export function showEnded(list, ended) {
  keep(list, ended, (job) => job.id, () => element("li", {}, element("strong"), element("span")),
    (node, job) => {
      const when = job.ago === null ? "" : ` ${span(job.ago)} ago`;
      say(node.firstChild, `${job.title}, ${gpusOf(job)}, ended${when} after ${span(job.seconds)}: `);
      say(node.lastChild, bound(job.receipt));
    });
}
