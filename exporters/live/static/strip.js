// Canvases: the strip of states and the small curves of the last 15 minutes.

import { element, keep, say } from "./dom.js";
import { percent } from "./figures.js";
import { SPAN } from "./history.js";
import { formOf, wordsOf } from "./states.js";

const BRIDGED = 3; // s between two ticks of one state: a tick that was late is no gap
const LEAST = 0.005; // share of all below which a strip shows nothing
const sizes = new WeakMap(); // canvas -> [width, height] in its own pixels

const watcher = new ResizeObserver((changes) => {
  for (const { target, contentRect } of changes) {
    measure(target, contentRect);
    target.dispatchEvent(new CustomEvent("resized", { bubbles: true }));
  }
});

function measure(target, { width, height }) {
  const scale = window.devicePixelRatio || 1;
  sizes.set(target, [width * scale, height * scale].map(Math.round));
}

/** A canvas that follows its size on the page. */
export function canvas(className, label) {
  const names = label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" };
  const made = element("canvas", { class: className, ...names });
  watcher.observe(made);
  return made;
}

/** An empty context, and the canvas' size; null while it has none. */
function clean(target) {
  if (!sizes.has(target)) measure(target, target.getBoundingClientRect());
  const [width, height] = sizes.get(target);
  if (!width || !height) return null;
  if (target.width !== width || target.height !== height) {
    target.width = width;
    target.height = height;
  }
  const context = target.getContext("2d");
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/** Shares as a stack from below: [pair, from, to] in pixels. */
function stackOf(shares, height) {
  const stack = [];
  let below = 0;
  for (const [pair, share] of shares) {
    const from = Math.round(below * height);
    below += share;
    const to = Math.min(Math.round(below * height), height);
    if (to > from) stack.push([pair, from, to]);
  }
  return stack;
}

const alike = (one, other) => one.length === other.length
  && one.every(([pair, , to], place) => pair === other[place][0] && to === other[place][2]);

/** Runs of like seconds: their stack, from and to. */
function* runs(seconds, height) {
  let run = null;
  for (const { second, shares } of seconds) {
    if (!shares.length) continue;
    const stack = stackOf(shares, height);
    if (run && second - run.to <= BRIDGED && alike(stack, run.stack)) {
      run.to = second;
      continue;
    }
    if (run) yield run;
    run = { stack, from: second - 1, to: second };
  }
  if (run) yield run;
}

/** Where the time goes, second by second: each share has its colour, its height and its lines. */
export function drawStates(target, history, uuid) {
  const sheet = clean(target);
  const seconds = history.gpus.get(uuid);
  if (!sheet || !seconds) return;
  const { context, width, height } = sheet;
  const place = (second) => Math.round(((SPAN - history.newest + second) * width) / SPAN);
  for (const { stack, from, to } of runs(seconds, height)) {
    const left = place(from);
    const right = Math.max(place(to), left + 1);
    for (const [pair, low, high] of stack) {
      context.fillStyle = formOf(pair, context);
      context.fillRect(left, height - high, right - left, high - low);
    }
  }
}

/** One series as a curve from 0 to `top`; broken where nothing is known. */
export function drawSeries(target, history, uuid, name, top) {
  const sheet = clean(target);
  const seconds = history.gpus.get(uuid);
  if (!sheet || !seconds || !top) return;
  const { context, width, height } = sheet;
  context.strokeStyle = getComputedStyle(target).color;
  context.lineWidth = Math.max(1, window.devicePixelRatio || 1);
  context.beginPath();
  let last = -Infinity;
  for (const { second, values } of seconds) {
    if (!(values[name] >= 0)) continue;
    const x = ((SPAN - history.newest + second) * width) / SPAN;
    const y = 1 + (height - 2) * (1 - Math.min(values[name] / top, 1));
    if (second - last > BRIDGED) context.moveTo(x, y);
    else context.lineTo(x, y);
    last = second;
  }
  context.stroke();
}

/** Seconds by state as one stack, work at the bottom, over that part of the width. */
export function drawStack(target, sums, from = 0, to = 1) {
  const sheet = clean(target);
  const all = sums.reduce((sum, [, seconds]) => sum + seconds, 0);
  if (!sheet || !all) return;
  let below = 0;
  for (const [pair, seconds] of sums) {
    const tall = (sheet.height * seconds) / all;
    sheet.context.fillStyle = formOf(pair, sheet.context);
    sheet.context.fillRect(from * sheet.width, sheet.height - below - tall, (to - from) * sheet.width, tall);
    below += tall;
  }
}

/** A legend of seconds by state: sample, name, and the words that `describe` makes of the seconds, their share and their sum. */
export function showShares(list, sums, describe) {
  const all = sums.reduce((sum, [, seconds]) => sum + seconds, 0);
  const seen = sums.filter(([, seconds]) => seconds >= LEAST * all);
  keep(list, seen, ([pair]) => pair, ([pair]) => element("li", {}, canvas("sample"), element("span", {}, wordsOf(pair)), element("span", { class: "figure" })),
    (entry, [pair, seconds]) => {
      drawStack(entry.firstChild, [[pair, 1]]);
      say(entry.lastChild, describe(seconds, percent(seconds / all), all));
    });
}
