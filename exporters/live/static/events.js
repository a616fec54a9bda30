// What happened in the last 24 hours: marks above the strips, and a list, the newest first.

import { bound, element, keep, point, put, say, style, symbol } from "./dom.js";
import { span } from "./figures.js";
import { SPAN } from "./history.js";

const SHOWN = 8; // rows before the rest is asked for

/** `now` is the wall time of the tick (s). */
export function showEvents(list, marks, events, now) {
  keep(list.firstElementChild, events.slice(0, SHOWN), keyOf, makeEvent, (node, event) => showEvent(node, event, now));
  const more = list.lastElementChild;
  more.hidden = events.length <= SHOWN;
  say(more.firstElementChild, `${events.length - SHOWN} before`);
  if (more.open) keep(more.lastElementChild, events.slice(SHOWN), keyOf, makeEvent, (node, event) => showEvent(node, event, now));
  const recent = events.filter(({ since, level }) => since && level !== "good" && now - since < SPAN);
  keep(marks, recent, keyOf, () => element("li", {}, symbol("wrong")), (node, event) => {
    put(node, "data-level", event.level);
    put(node, "title", `${timesOf(event, now)} ${event.text}`);
    point(node.firstChild, event.level);
    style(node, "--at", (1 - (now - event.since) / SPAN).toFixed(4));
  });
}

const keyOf = ({ since, text }) => `${since} ${text}`;

function makeEvent() {
  return element("li", {}, element("span", { class: "when" }), symbol("good"), element("span"));
}

function showEvent(node, event, now) {
  const [when, mark, words] = node.children;
  put(node, "data-level", event.level);
  point(mark, event.level);
  say(when, timesOf(event, now));
  say(words, bound(event.text));
}

/** `14:03 to 14:12 (9 min)`, `since 14:03 (9 min)`. */
function timesOf({ since, until }, now) {
  if (!since) return until ? `until ${clock(until, now)}` : "since the agent's start";
  const lasted = (until ?? now) - since;
  const length = lasted >= 60 ? ` (${span(lasted)})` : "";
  return `${until ? "" : "since "}${clock(since, now)}${until ? ` to ${clock(until, now)}` : ""}${length}`;
}

/** The time of day; with the day where it was another. */
function clock(seconds, now) {
  const time = new Date(1000 * seconds);
  const text = time.toLocaleTimeString([], { hourCycle: "h23", hour: "2-digit", minute: "2-digit" });
  const today = new Date(1000 * now).toDateString() === time.toDateString();
  return today ? text : `${time.toLocaleDateString([], { weekday: "short" })} ${text}`;
}
