// A tile for each GPU: what it does, why, since when, and how it fared in the last 15 minutes.

import { bound, element, keep, point, put, say, symbol } from "./dom.js";
import { span } from "./figures.js";
import { ON_TILE, meterList, showMeters } from "./meters.js";
import { findingsOf } from "./problems.js";
import { wordsOf } from "./states.js";
import { canvas, drawSample, drawStates } from "./strip.js";

/** `open(uuid)` is called when somebody wants to know more. */
export function showTiles(list, frame, history, open) {
  keep(list, frame.gpus, (gpu) => gpu.uuid, (gpu) => makeTile(gpu, open), (tile, gpu) => {
    showTile(tile, gpu, history);
    showFault(tile.querySelector(".fault"), findingsOf(frame, gpu));
  });
}

function makeTile(gpu, open) {
  const button = element("button", { type: "button", "aria-haspopup": "dialog" });
  const tile = element(
    "li",
    { class: "tile", "data-uuid": gpu.uuid },
    element(
      "div",
      { class: "head" },
      element("span", { class: "badge" }, symbol("unknown")),
      element(
        "div",
        { class: "words" },
        element("h3", {}, button, element("span", { class: "since" })),
        element("p", { class: "state" }),
      ),
    ),
    element("p", { class: "fault" }, symbol("wrong"), element("span")),
    element("p", { class: "why" }),
    canvas("strip", ""),
    meterList(),
  );
  button.addEventListener("click", () => open(gpu.uuid));
  return tile;
}

function showTile(tile, gpu, history) {
  putState(tile, gpu);
  put(tile, "data-gpu", gpu.gpu);
  put(tile, "data-settling", gpu.settling);
  const [head, , why, strip, meters] = tile.children;
  point(head.firstChild.firstChild, symbolOf(gpu));
  const [title, state] = head.lastChild.children;
  say(title.firstChild, `GPU ${gpu.gpu}`);
  say(title.lastChild, sinceOf(gpu));
  say(state, stateOf(gpu));
  put(title.firstChild, "aria-label", `GPU ${gpu.gpu}: ${stateOf(gpu)}. Why?`);
  say(why, bound(gpu.evidence.join(", ")));
  drawStates(strip, history, gpu.uuid);
  showMeters(meters, gpu, history, ON_TILE);
}

/** What is wrong with it, the worst in words. */
function showFault(line, findings) {
  line.hidden = !findings.length;
  put(line.parentElement, "data-faults", findings.length || null);
  const more = findings.length > 1 ? `, and ${findings.length - 1} more` : "";
  say(line.lastChild, findings.length ? `${findings[0]}${more}` : "");
}

/** State and cause as attributes: style and tests hang on them. */
export function putState(node, gpu) {
  put(node, "data-state", gpu.lost ? "lost" : gpu.state ?? "unknown");
  put(node, "data-cause", gpu.lost ? null : gpu.cause);
}

export function symbolOf(gpu) {
  return gpu.lost ? "lost" : gpu.state ?? "unknown";
}

export function stateOf(gpu) {
  return gpu.summary || (gpu.lost ? "lost" : "not known");
}

function sinceOf(gpu) {
  if (gpu.settling) return "settling";
  return gpu.seconds === null ? "" : `for ${span(gpu.seconds)}`;
}

/** The states that occurred in the last 15 minutes. */
export function showLegend(list, history) {
  const codes = [...history.totals().keys()].sort((a, b) => b - a);
  keep(list, codes, (code) => code, makeEntry, (entry, code) => {
    drawSample(entry.firstChild, code);
  });
}

export function makeEntry(code) {
  return element("li", {}, canvas("sample"), element("span", {}, wordsOf(code)));
}
