// What the strips show where somebody points at them: a line through all, and the moment in words.

import { say, style } from "./dom.js";
import { percent, reading, span, timeOfDay } from "./figures.js";
import { SPAN } from "./history.js";
import { wordsOf } from "./states.js";

/** `now()` is the wall time (ms) of the newest second. */
export function followPointer(list, tip, history, now) {
  list.addEventListener("pointermove", (event) => {
    const row = event.target.closest(".row");
    const strip = row?.querySelector(".strip").getBoundingClientRect();
    const inside = strip && event.clientX >= strip.left && event.clientX <= strip.right;
    tip.hidden = !inside;
    list.toggleAttribute("data-pointed", Boolean(inside));
    if (!inside) return;
    const age = Math.min(Math.round(SPAN * (1 - (event.clientX - strip.left) / strip.width)), SPAN - 1);
    say(tip, wordsAt(row.parentElement.dataset, history, age, now()));
    place(list, tip, event.clientX, event.clientY + 18);
  });
  list.addEventListener("pointerleave", () => {
    tip.hidden = true;
    list.removeAttribute("data-pointed");
  });
}

function place(list, tip, x, y) {
  style(tip, "--left", `${Math.min(x + 14, window.innerWidth - tip.offsetWidth - 8)}px`);
  style(tip, "--top", `${y}px`);
  style(list, "--pointed", `${x - list.getBoundingClientRect().left}px`);
}

function wordsAt({ gpu, uuid }, history, age, now) {
  const { shares = [], values } = history.at(uuid, age) ?? {};
  const parts = shares.map(([pair, share]) => `${wordsOf(pair)} ${percent(share)}`);
  if (values?.power >= 0) parts.push(reading(values.power, null, "watts").join(""));
  return `GPU ${gpu}, ${timeOfDay(now - 1000 * age)}, ${span(age)} ago: ${parts.join(", ") || "nothing known"}`;
}

/** Point all strips at a moment: `14:03`, `14:03:20` (of this browser's day) or ISO 8601. */
export function pinTime(list, tip, history, when, now) {
  const strip = list.querySelector(".strip")?.getBoundingClientRect();
  if (!strip) return;
  const today = new Date(now);
  const midnight = new Date(today.getFullYear(), today.getMonth(), today.getDate());
  const [hour, minute, second = 0] = when.split(":").map(Number);
  const moment = Date.parse(when) || midnight.setHours(hour, minute, second);
  const age = Math.round((now - moment) / 1000);
  const inside = age >= 0 && age < SPAN;
  const rows = [...list.querySelectorAll(".tile")].map(({ dataset }) => wordsAt(dataset, history, age, now));
  tip.hidden = false;
  say(tip, inside ? rows.join("\n") : `${when} is not within the last 15 minutes: see the last 24 hours below.`);
  place(list, tip, strip.left + strip.width * (1 - Math.min(Math.max(age, 0), SPAN) / SPAN), strip.bottom + 8);
  list.toggleAttribute("data-pointed", inside);
}
