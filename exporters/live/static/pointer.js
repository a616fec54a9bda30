// What the strips show where somebody points at them: a line through all, and the moment in words.

import { say, style } from "./dom.js";
import { percent, span, timeOfDay } from "./figures.js";
import { SPAN } from "./history.js";
import { wordsOf } from "./states.js";

/** `newest()` is the wall time (ms) of the newest second. */
export function followPointer(list, tip, history, newest) {
  list.addEventListener("pointermove", (event) => {
    const row = event.target.closest(".row");
    const strip = row?.querySelector(".strip").getBoundingClientRect();
    const inside = strip && event.clientX >= strip.left && event.clientX <= strip.right;
    tip.hidden = !inside;
    list.toggleAttribute("data-pointed", Boolean(inside));
    if (!inside) return;
    const age = Math.round(SPAN * (1 - (event.clientX - strip.left) / strip.width));
    const { uuid, gpu } = row.parentElement.dataset;
    say(tip, wordsAt(gpu, history.at(uuid, Math.min(age, SPAN - 1)), age, newest()));
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    style(tip, "--left", `${left}px`);
    style(tip, "--top", `${event.clientY + 18}px`);
    style(list, "--pointed", `${event.clientX - list.getBoundingClientRect().left}px`);
  });
  list.addEventListener("pointerleave", () => {
    tip.hidden = true;
    list.removeAttribute("data-pointed");
  });
}

function wordsAt(gpu, { shares, values }, age, now) {
  const when = `GPU ${gpu}, ${timeOfDay(now - 1000 * age)}, ${span(age)} ago`;
  if (!shares.length) return `${when}: nothing known`;
  const parts = shares.map(([code, share]) => `${wordsOf(code)} ${percent(share)}`);
  const power = values.power >= 0 ? `, ${values.power.toFixed(0)} W` : "";
  return `${when}: ${parts.join(", ")}${power}`;
}

/** Point all strips at a moment: `14:03`, `14:03:20` (of this browser's day) or ISO 8601. */
export function pinTime(list, tip, history, text, now) {
  const clock = /^(\d{1,2}):(\d\d)(?::(\d\d))?$/.exec(text);
  const moment = clock ? new Date(now).setHours(+clock[1], +clock[2], +(clock[3] ?? 0), 0) : Date.parse(text);
  const age = Math.round((now - (moment > now ? moment - 86_400_000 : moment)) / 1000);
  const inside = age >= 0 && age < SPAN;
  const strip = list.querySelector(".strip")?.getBoundingClientRect();
  if (!strip) return;
  tip.hidden = false;
  const rows = [...list.querySelectorAll(".tile")].map(({ dataset }) => dataset);
  say(tip, inside
    ? rows.map(({ uuid, gpu }) => wordsAt(gpu, history.at(uuid, age), age, now)).join("\n")
    : `${text} is not within the last 15 minutes: see the last 24 hours below.`);
  const x = strip.left + strip.width * (1 - Math.min(Math.max(age, 0), SPAN) / SPAN);
  style(tip, "--left", `${Math.min(x + 14, window.innerWidth - tip.offsetWidth - 8)}px`);
  style(tip, "--top", `${strip.bottom + 8}px`);
  list.toggleAttribute("data-pointed", inside);
  style(list, "--pointed", `${x - list.getBoundingClientRect().left}px`);
}
