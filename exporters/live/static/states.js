// States of a GPU as `state/cause`: their order, their words, and how each is drawn in a strip.

/** A second in which the GPU was lost. */
export const LOST = "lost/none";

let places = new Map(); // state/cause -> its place in the agent's order, work last
let words = {};

/** Take both from the agent: a state has one name wherever it is shown. */
export function learn(history) {
  places = new Map(history.states.map((pair, place) => [pair, place]));
  words = history.words;
}

/** Sort `[pair, ...]` as strips stack them, work at the bottom. */
export const stacked = (pairs) => pairs.sort((a, b) => places.get(b[0]) - places.get(a[0]));

/** `starved by disk`, `busy`. */
export const wordsOf = (pair) => words[pair] ?? pair;

/** The lines over the colour of each state, so that no colour stands alone. */
const FORMS = {
  "starved/pcie": "steep", "starved/peer": "crossed", "starved/disk": "diagonal", "starved/network": "back",
  "starved/cpu": "dots", "starved/host_thread": "upright", "starved/unknown": "dashes",
  "communicating/nvlink": "upright", "communicating/infiniband": "level", "communicating/pcie": "dots",
  "throttled/thermal": "level", "throttled/power": "dashes", "throttled/reliability": "back",
  "idle/requests": "dots", "held/none": "crossed", "hung/none": "level", [LOST]: "grid",
};
const LINES = {
  diagonal: [[-2, 10, 10, -2], [-6, 6, 6, -6], [2, 14, 14, 2]],
  back: [[-2, -2, 10, 10], [-6, 2, 2, 10], [2, -6, 10, 2]],
  steep: [[0, 9, 4, -1], [4, 9, 8, -1]],
  upright: [[2, -1, 2, 9], [6, -1, 6, 9]],
  level: [[-1, 2, 9, 2], [-1, 6, 9, 6]],
  dashes: [[0, 2, 4, 2], [4, 6, 8, 6]],
  dots: [[1, 2, 3, 2], [5, 6, 7, 6]],
  crossed: [[-1, -1, 9, 9], [-1, 9, 9, -1]],
  grid: [[-1, 4, 9, 4], [4, -1, 4, 9]],
};
const LIGHT = new Set(["throttled", "idle"]);
const fills = new Map(); // pair -> pattern of a canvas

/** The fill of a state on this canvas' context. */
export function formOf(pair, context) {
  if (!fills.has(pair)) fills.set(pair, patternOf(pair, context));
  return fills.get(pair);
}

function patternOf(pair, context) {
  const [state, cause] = pair.split("/");
  const name = cause === "none" ? state : `${state}-${cause}`;
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = LIGHT.has(state) ? "rgb(0 0 0 / .4)" : "rgb(255 255 255 / .45)";
  pen.lineWidth = 1.5;
  for (const [x, y, toX, toY] of LINES[FORMS[pair]] ?? []) {
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(toX, toY);
    pen.stroke();
  }
  return context.createPattern(tile, "repeat");
}
