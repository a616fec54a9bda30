// What happened in the last 24 hours: marks above the strips, and a list, the newest first.

import { element, keep, mark, put, say, style, symbol, write } from "./dom.js";
import { clock, span } from "./figures.js";
import { SPAN } from "./history.js";

const SHOWN = 8; // rows before the rest is asked for

export function showEvents(panel, marks, { events, at, machine }) {
  const now = Date.parse(at);
  const show = (node, event) => {
    mark(node, event.level);
    say(node.firstChild, timesOf(event, now, machine.started));
    write(node.lastChild, event.text);
  };
  const make = () => element("li", {}, element("span", { class: "when" }), symbol(), element("span"));
  const [list, more] = panel.children;
  keep(list, events.slice(0, SHOWN), keyOf, make, show);
  more.hidden = events.length <= SHOWN;
  say(more.firstElementChild, `${events.length - SHOWN} before`);
  if (more.open) keep(more.lastElementChild, events.slice(SHOWN), keyOf, make, show);
  const placed = events.map((event) => ({ ...event, place: 1 - (now - Date.parse(event.since)) / 1000 / SPAN }));
  keep(marks, placed.filter(({ since, job, place }) => since && !job && place >= 0), keyOf, () => element("li", {}, symbol()), (node, event) => {
    mark(node, event.level);
    put(node, "title", `${timesOf(event, now)} ${event.text}`);
    style(node, "--at", event.place.toFixed(4));
  });
}

const keyOf = ({ since, text }) => `${since} ${text}`;

/** `14:03 to 14:12 (9 min)`, `since 14:03`. */
function timesOf({ since, until }, now, started) {
  const from = since ? clock(since, now) : `the agent's start at ${clock(started, now)}`;
  if (!until) return `since ${from}`;
  const seconds = (Date.parse(until) - Date.parse(since)) / 1000;
  return `${from} to ${clock(until, now)}${since && seconds >= 60 ? ` (${span(seconds)})` : ""}`;
}
