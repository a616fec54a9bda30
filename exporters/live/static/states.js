// States of a GPU: their order, their words in a legend, and how each is drawn in a strip.

/** Every state with its causes, `state/cause`; the place in this list, from 1, is its code. */
export const PAIRS = [
  "idle/none", "idle/requests", "held/none", "hung/none",
  "throttled/thermal", "throttled/power", "throttled/reliability",
  "starved/pcie", "starved/peer", "starved/disk", "starved/network", "starved/cpu",
  "starved/host_thread", "starved/unknown",
  "communicating/nvlink", "communicating/infiniband", "communicating/pcie",
  "busy/none", "lost/none",
];
/** The code of a second in which the GPU did not answer. */
export const LOST = PAIRS.length;

const CODES = new Map(PAIRS.map((pair, place) => [pair, place + 1]));
const NAMES = {
  nvlink: "NVLink", pcie: "PCIe", hbm: "HBM", cpu: "CPU", infiniband: "InfiniBand",
  host_thread: "launching thread",
};

/** 0 is a gap: nothing is known of that second. */
export function codeOf(state, cause) {
  return CODES.get(`${state}/${cause}`) ?? 0;
}

/** A cause or a data path in words. */
export function nameOf(word) {
  return NAMES[word] ?? word;
}

let words = {}; // of the agent, by `state/cause`: one name wherever a state is shown

export function useWords(given) {
  words = given;
}

/** `starved by disk`, `busy`. */
export function wordsOf(code) {
  return words[PAIRS[code - 1]] ?? PAIRS[code - 1].replace("/none", "");
}

/** The lines over the colour of each cause, or state, so that no colour stands alone. */
const FORMS = {
  starved: {
    pcie: "steep", peer: "crossed", disk: "diagonal", network: "back", cpu: "dots",
    host_thread: "upright", unknown: "dashes",
  },
  communicating: { nvlink: "upright", infiniband: "level", pcie: "dots" },
  throttled: { thermal: "level", power: "dashes", reliability: "back" },
  idle: { requests: "dots" },
  held: { none: "crossed" },
  hung: { none: "level" },
  lost: { none: "grid" },
};
const LIGHT = new Set(["throttled", "idle"]);
const fills = new Map(); // code -> pattern of a canvas

/** The fill of a code on this canvas' context. */
export function formOf(code, context) {
  const [state, cause] = PAIRS[code - 1].split("/");
  if (!fills.has(code)) fills.set(code, patternOf(state, cause, context));
  return fills.get(code);
}

function colourOf(state, cause) {
  const name = cause === "none" ? state : `${state}-${cause}`;
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

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

function patternOf(state, cause, context) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  pen.fillStyle = colourOf(state, cause);
  pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = LIGHT.has(state) ? "rgb(0 0 0 / .4)" : "rgb(255 255 255 / .45)";
  pen.lineWidth = 1.5;
  for (const [x, y, toX, toY] of LINES[FORMS[state]?.[cause]] ?? []) {
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(toX, toY);
    pen.stroke();
  }
  return context.createPattern(tile, "repeat");
}
