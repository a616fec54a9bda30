// What the strips show where somebody points at them: a line through all, and the moment in words.

import { say, style } from "./dom.js";
import { percent, span, timeOfDay } from "./figures.js";
import { SPAN } from "./history.js";
import { wordsOf } from "./states.js";

/** `told()` is the wall time (ms) of the newest second. */
export function followPointer(list, tip, history, told) {
  list.addEventListener("pointermove", (event) => {
    const row = event.target.closest(".row");
    const strip = row?.querySelector(".strip").getBoundingClientRect();
    const inside = strip && event.clientX >= strip.left && event.clientX <= strip.right;
    tip.hidden = !inside;
    list.toggleAttribute("data-pointed", Boolean(inside));
    if (!inside) return;
    const age = Math.round(SPAN * (1 - (event.clientX - strip.left) / strip.width));
    const { uuid, gpu } = row.parentElement.dataset;
    say(tip, wordsAt(gpu, history.at(uuid, Math.min(age, SPAN - 1)), age, told()));
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
