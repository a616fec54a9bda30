// The last 24 hours: a bar for each hour, of all GPUs together or of one, from sums that the agent keeps.

import { element, keep, put, say } from "./dom.js";
import { clock, gpuHours, percent } from "./figures.js";
import { stacked, wordsOf } from "./states.js";
import { canvas, drawStack } from "./strip.js";

const HOURS = 24;
const HOUR = 3_600_000; // ms
const LEAST = 0.02; // of an hour that was not recorded, below which none is shown as missing
const NAMED = 0.005; // share of an hour from which a state is named
const EVERY = 300_000; // ms between two looks: that is how often the sums are written

const drawn = new WeakMap(); // canvas -> what it shows
document.addEventListener("resized", ({ target }) => {
  if (drawn.has(target)) drawStack(target, ...drawn.get(target));
});

let hours = []; // as the agent has them

/** Ask for the hours now and then; `now()` is the agent's time (ms), as their hours are. */
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
  const newest = Math.floor(now / HOUR);
  const known = new Map(hours.map((one) => [one.hour, recorded(one, uuid, now)]));
  const bars = [...Array(HOURS).keys()].map((age) => newest - HOURS + 1 + age);
  keep(list, bars, (hour) => hour, () => element("li", { class: "hour" }, canvas("strip tall", "an hour"), element("span", { class: "muted" })),
    (node, hour) => {
      const { sums = [], all = 0, from, to } = known.get(hour) ?? {};
      const time = new Date(HOUR * hour).getHours();
      const parts = sums.filter(([, seconds]) => seconds >= NAMED * all).map(([pair, seconds]) => `${wordsOf(pair)} ${percent(seconds / all)}`);
      const words = `${time}:00: ${all ? `${gpuHours(all)}, ${parts.join(", ")}` : "nothing known"}`;
      put(node, "title", words);
      put(node.firstChild, "aria-label", words);
      say(node.lastChild, time % 3 ? "" : `${time}:00`);
      drawn.set(node.firstChild, [sums, from, to]);
      drawStack(node.firstChild, sums, from, to);
    });
  const first = bars.find((hour) => known.get(hour)?.all);
  const began = first + known.get(first)?.from;
  say(list.nextElementSibling, began - bars[0] > LEAST ? `grey: nothing is recorded before ${clock(HOUR * began, now)}` : "");
  return first !== undefined;
}

/** The seconds of an hour by state, and the part of it that they cover, 0-1: up to its end, or up to now. */
function recorded({ hour, rows, gpus = {} }, uuid, now) {
  const sums = new Map();
  for (const parts of uuid ? [gpus[uuid] ?? {}] : rows.map(({ seconds }) => seconds)) {
    for (const [pair, seconds] of Object.entries(parts)) sums.set(pair, (sums.get(pair) ?? 0) + seconds);
  }
  const all = [...sums.values()].reduce((sum, seconds) => sum + seconds, 0);
  const to = Math.min(now / HOUR - hour, 1);
  const counted = uuid ? 1 : Object.keys(gpus).length;
  const from = counted ? to - all / counted / 3600 : 0;
  return { sums: stacked([...sums]), all, from: from < LEAST ? 0 : from, to };
}
