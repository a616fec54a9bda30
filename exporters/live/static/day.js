// The last 24 hours: a bar for each hour, of all GPUs together or of one, from sums that the agent keeps.

import { element, keep, put, say } from "./dom.js";
import { clock as timeOf, gpuHours, percent } from "./figures.js";
import { codeOf, wordsOf } from "./states.js";
import { canvas, drawStack } from "./strip.js";

const HOURS = 24;
const LEAST = 0.02; // of an hour that was not recorded, below which none is shown as missing
const EVERY = 300_000; // ms between two looks: that is how often the sums are written

const stacks = new WeakMap(); // canvas -> what it shows
document.addEventListener("resized", ({ target }) => {
  if (stacks.has(target)) drawStack(target, ...stacks.get(target));
});

let hours = []; // as the agent has them

/** Ask for the hours now and then; `now` is the agent's time (s), as their hours are. */
export async function followDay(list, now) {
  try {
    const answer = await fetch("api/v1/hours");
    if (answer.ok) ({ hours } = await answer.json());
  } catch {
    // the agent is away: what was shown stays
  }
  list.hidden = !showDay(list, now());
  setTimeout(() => followDay(list, now), EVERY);
}

/** The bars of all GPUs, or of one; whether there are any. */
export function showDay(list, now, uuid = null) {
  const present = now / 3600;
  const newest = Math.floor(present);
  const byHour = new Map(hours.map(({ hour, rows, gpus = {} }) => {
    const sums = sumsOf(uuid ? [gpus[uuid] ?? {}] : rows.map(({ seconds }) => seconds));
    const all = [...sums.values()].reduce((sum, seconds) => sum + seconds, 0);
    return [hour, { sums, all, ...recorded(all, uuid ? 1 : Object.keys(gpus).length, Math.min(present - hour, 1)) }];
  }));
  const bars = [...Array(HOURS).keys()].map((age) => newest - HOURS + 1 + age);
  keep(list, bars, (hour) => hour, makeBar, (node, hour) => {
    const { sums, all, from, to } = byHour.get(hour) ?? { sums: new Map(), all: 0 };
    const clock = new Date(3_600_000 * hour).getHours();
    const parts = [...sums].sort((a, b) => b[1] - a[1]).filter(([, seconds]) => seconds >= 0.005 * all)
      .map(([code, seconds]) => `${wordsOf(code)} ${percent(seconds / all)}`);
    const words = `${clock}:00: ${all ? `${gpuHours(all)}, ${parts.join(", ")}` : "nothing known"}`;
    put(node, "title", words);
    put(node.firstChild, "aria-label", words);
    say(node.lastChild, clock % 3 ? "" : `${clock}:00`);
    stacks.set(node.firstChild, [sums, all, from, to]);
    drawStack(node.firstChild, sums, all, from, to);
  });
  const first = bars.find((hour) => byHour.get(hour)?.all);
  const began = first + (byHour.get(first)?.from ?? 0);
  say(list.nextElementSibling, began - bars[0] > LEAST
    ? `grey: nothing is recorded before ${timeOf(3600 * began, 3600 * present)}` : "");
  return first !== undefined;
}

/** The part of an hour that was recorded, 0-1: up to its end, or up to now. */
function recorded(seconds, gpus, to) {
  const part = gpus ? seconds / gpus / 3600 : to;
  return { from: to - part < LEAST ? 0 : to - part, to };
}

/** Seconds by code of all parts together. */
function sumsOf(parts) {
  const sums = new Map();
  for (const seconds of parts) {
    for (const [pair, part] of Object.entries(seconds)) {
      const code = codeOf(...pair.split("/"));
      if (code) sums.set(code, (sums.get(code) ?? 0) + part);
    }
  }
  return sums;
}

function makeBar() {
  return element("li", { class: "hour" }, canvas("strip tall", "an hour"), element("span", { class: "muted" }));
}
