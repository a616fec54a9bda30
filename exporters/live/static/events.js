// What happened in the last 24 hours: marks above the strips, and a list, the newest first.

import { bound, element, keep, point, put, say, style, symbol } from "./dom.js";
import { clock, span } from "./figures.js";
import { SPAN } from "./history.js";

const SHOWN = 8; // rows before the rest is asked for

/** `now` is the wall time of the tick, `started` that of the agent's start (s). */
export function showEvents(list, marks, events, now, started) {
  const show = (node, event) => showEvent(node, event, timesOf(event, now, started));
  keep(list.firstElementChild, events.slice(0, SHOWN), keyOf, makeEvent, show);
  const more = list.lastElementChild;
  more.hidden = events.length <= SHOWN;
  say(more.firstElementChild, `${events.length - SHOWN} before`);
  if (more.open) keep(more.lastElementChild, events.slice(SHOWN), keyOf, makeEvent, show);
  const recent = events.filter(({ since, job }) => since && !job && now - since < SPAN);
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

function showEvent(node, event, times) {
  const [when, mark, words] = node.children;
  put(node, "data-level", event.level);
  point(mark, event.level);
  say(when, times);
  say(words, bound(event.text));
}

/** `14:03 to 14:12 (9 min)`, `since 14:03`. */
function timesOf({ since, until }, now, started) {
  const from = since ?? started;
  const begun = since ? "" : "the agent's start at ";
  if (!until) return `since ${begun}${clock(from, now)}`;
  const length = since && until - since >= 60 ? ` (${span(until - since)})` : "";
  return `${begun}${clock(from, now)} to ${clock(until, now)}${length}`;
}
