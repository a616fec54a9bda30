// A row for each job: how fast it is and was, its GPUs, where their time goes; receipts below.

import { bound, drawing, element, keep, point, put, say, symbol } from "./dom.js";
import { clock, span } from "./figures.js";

const SLOTS = 90; // of ten seconds: the last quarter of an hour
const WIDTH = 180;
const HEIGHT = 28;

const SORTS = {
  GPU: null, // as they come
  lost: (job) => -job.lost,
  "lost share": (job) => -job.lost / (job.gpu_seconds || 1),
  cost: (job) => -(job.cost ?? job.gpu_seconds),
  age: (job) => -job.seconds,
};
const MANY = 8; // jobs from which they can be sorted and searched

/** The fields that sort and search; they are shown when there are many jobs. */
export function makeJobTools(changed) {
  const sort = element("select", { "aria-label": "Sort jobs by" }, ...Object.keys(SORTS).map((by) => element("option", { value: by }, `by ${by}`)));
  const search = element("input", { type: "search", placeholder: "filter", "aria-label": "Filter jobs" });
  sort.addEventListener("change", changed);
  search.addEventListener("input", changed);
  return element("div", { class: "tools", hidden: "" }, search, " ", sort);
}

export function showJobs(list, all, tools, now) {
  tools.hidden = all.length < MANY;
  const [search, sort] = tools.children;
  const wanted = tools.hidden ? "" : search.value.trim().toLowerCase();
  const by = tools.hidden ? null : SORTS[sort.value];
  const jobs = all.filter((job) => [job.title, job.user, job.sentence, `gpu ${job.gpus}`, ...job.ids].join(" ").toLowerCase().includes(wanted));
  if (by) jobs.sort((a, b) => by(a) - by(b));
  keep(list, jobs, (job) => job.id, makeJob, (node, job) => {
    const [mark, words, curve] = node.children;
    put(node, "data-level", job.level);
    put(node, "data-id", job.id);
    point(mark, job.level);
    const [name, sentence, shares, receipt] = words.children;
    say(name, [job.title, job.user, gpusOf(job), `since ${clock(now - job.seconds, now)}`].filter(Boolean).join(", "));
    put(name, "href", `#job=${encodeURIComponent(job.id)}`);
    say(sentence, bound(job.sentence));
    const points = pointsOf(job.rates);
    put(curve, "hidden", !points);
    put(curve.lastElementChild, "points", points);
    say(shares, bound([job.hours, job.money].filter(Boolean).join("; ")));
    say(receipt.firstChild, bound(job.saving));
    compareLink(receipt.lastChild, job);
  });
}

function compareLink(link, job) {
  link.hidden = !job.before;
  put(link, "href", job.before ? `#compare=${encodeURIComponent(job.id)}` : null);
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

/** `GPU 3`, `GPUs 0-3,5`. */
function gpusOf({ gpus }) {
  return `GPU${/\D/.test(gpus) ? "s" : ""} ${gpus}`;
}

function makeJob() {
  return element(
    "li",
    { class: "job" },
    symbol("good"),
    element("div", { class: "job-words" }, element("a", { class: "job-name" }), element("p"),
      element("p", { class: "muted" }), element("p", { class: "muted" }, element("span"), element("a", {}, "compare with its run before"))),
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

/** Jobs that ended, each with its receipt. */
export function showEnded(list, ended) {
  keep(list, ended, (job) => job.id, () => element("li", {}, element("strong"), element("span"), " ", element("a", {}, "compare with its run before")),
    (node, job) => {
      put(node, "data-id", job.id);
      const when = job.ago === null ? "" : ` ${span(job.ago)} ago`;
      say(node.firstChild, `${job.title}, ${gpusOf(job)}, ended${when} after ${span(job.seconds)}: `);
      say(node.children[1], bound(job.receipt));
      compareLink(node.lastChild, job);
    });
}
