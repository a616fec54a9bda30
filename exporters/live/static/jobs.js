// A row for each job: how fast it is and was, its GPUs, where their time goes; receipts below.

import { drawing, element, keep, mark, put, say, symbol, write } from "./dom.js";
import { clock, span } from "./figures.js";
import { showStep } from "./findings.js";

const SLOTS = 90; // of ten seconds: the last quarter of an hour
const WIDTH = 180;
const HEIGHT = 28;

export function showJobs(list, { jobs, at }) {
  keep(list, jobs, (job) => job.id, makeJob, (node, job) => {
    const [, words, curve] = node.children;
    mark(node, job.level);
    put(node, "data-id", job.id);
    const [name, sentence, todo, hours, more] = words.children;
    say(name, [job.title, job.user, job.name, `since ${clock(job.since, at)}`].filter(Boolean).join(", "));
    put(name, "href", `#job=${encodeURIComponent(job.id)}`);
    write(sentence, job.text);
    showStep(todo, job);
    write(hours, [job.hours, job.money].filter(Boolean).join("; "));
    write(more.firstChild, job.saving);
    compareLink(more.lastChild, job);
    const points = pointsOf(job.steps_per_second);
    put(curve, "hidden", !points);
    put(curve.lastElementChild, "points", points);
  });
}

function makeJob() {
  const line = drawing("polyline", { fill: "none", stroke: "currentColor" });
  const names = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": "Steps per second in the last 15 minutes" };
  return element("li", { class: "job" }, symbol(),
    element("div", {}, element("a", { class: "job-name" }), element("p"), element("p", { class: "do" }), element("p", { class: "muted" }),
      element("p", { class: "muted" }, element("span"), " ", makeCompareLink())),
    drawing("svg", { class: "job-curve", ...names }, line));
}

/** Points of the curve, the newest at the right end; what is not known leaves none. */
function pointsOf(rates) {
  const top = Math.max(...rates, 0);
  const points = rates.map((rate, place) => [((SLOTS - rates.length + place + 1) * WIDTH) / SLOTS, rate]);
  return points.filter(([, rate]) => top && rate !== null)
    .map(([x, rate]) => `${x.toFixed(1)},${(HEIGHT - 1 - (HEIGHT - 2) * (rate / top)).toFixed(1)}`).join(" ");
}

/** Jobs that ended, each with its receipt. */
export function showEnded(list, { ended, at }) {
  keep(list, ended, (job) => job.id, () => element("li", {}, element("strong"), " ", element("span"), " ", makeCompareLink()), (node, job) => {
    put(node, "data-id", job.id);
    const ago = job.ended && `${span((Date.parse(at) - Date.parse(job.ended)) / 1000)} ago `;
    say(node.firstChild, `${job.title}, ${job.name}, ended ${ago ?? ""}after ${span(job.seconds)}:`);
    write(node.children[1], job.text);
    compareLink(node.lastChild, job);
  });
}

const makeCompareLink = () => element("a", {}, "compare with its run before");

function compareLink(link, { id, before }) {
  link.hidden = !before;
  put(link, "href", before && `#compare=${[before, id].map(encodeURIComponent)}`);
}

/** Show the job that a permalink names by any of its ids; whether it is there. */
export function pointOut(list, jobs, id) {
  const job = jobs.find(({ ids }) => ids.includes(id));
  const node = job && [...list.children].find((one) => one.dataset.id === job.id);
  if (!node) return false;
  for (const one of document.querySelectorAll("[data-pointed]")) one.removeAttribute("data-pointed");
  node.scrollIntoView({ block: "center" });
  node.setAttribute("data-pointed", "");
  node.querySelector("a, strong").focus?.();
  return true;
}
