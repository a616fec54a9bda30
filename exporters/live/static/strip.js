// Canvases: the strip of states and the small curves of the last 15 minutes.

import { SPAN } from "./history.js";
import { formOf } from "./states.js";

const BRIDGED = 3; // s between two ticks of one state: a tick that was late is no gap
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
  const made = document.createElement("canvas");
  made.className = className;
  if (label) {
    made.setAttribute("role", "img");
    made.setAttribute("aria-label", label);
  } else {
    made.setAttribute("aria-hidden", "true");
  }
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

/** Shares of one second as a stack from below: [code, from, to] in pixels, work at the bottom. */
function stackOf(track, slot, height) {
  const stack = [];
  let below = 0;
  for (const [code, parts] of [...track.shares].sort((a, b) => b[0] - a[0])) {
    const share = parts[slot];
    if (!share) continue;
    const from = Math.round(below * height);
    below += share;
    const to = Math.min(Math.round(below * height), height);
    if (to > from) stack.push([code, from, to]);
  }
  return stack;
}

/** Runs of like seconds: [stack, from, to] in seconds of the span. */
function* runs(history, track, height) {
  let run = null;
  let key = "";
  for (const [slot, age] of history.slots()) {
    const end = SPAN - age;
    if (!track.codes[slot]) continue;
    const stack = stackOf(track, slot, height);
    const its = stack.join(";");
    if (run && its === key && end - run[2] <= BRIDGED) {
      run[2] = end;
      continue;
    }
    if (run) yield run;
    run = [stack, end - 1, end];
    key = its;
  }
  if (run) yield run;
}

/** Where the time goes, second by second: each share has its colour, its height and its lines. */
export function drawStates(target, history, uuid) {
  const sheet = clean(target);
  const track = history.tracks.get(uuid);
  if (!sheet || !track) return;
  const { context, width, height } = sheet;
  const scale = width / SPAN;
  for (const [stack, from, to] of runs(history, track, height)) {
    const left = Math.round(from * scale);
    const right = Math.max(Math.round(to * scale), left + 1);
    for (const [code, low, high] of stack) {
      context.fillStyle = formOf(code, context);
      context.fillRect(left, height - high, right - left, high - low);
    }
  }
}

/** One series as a curve from 0 to `top`; broken where nothing is known. */
export function drawSeries(target, history, uuid, name, top) {
  const sheet = clean(target);
  const values = history.tracks.get(uuid)?.series[name];
  if (!sheet || !values || !top) return;
  const { context, width, height } = sheet;
  const room = height - 2;
  context.strokeStyle = getComputedStyle(target).color;
  context.lineWidth = Math.max(1, window.devicePixelRatio || 1);
  context.beginPath();
  let last = -Infinity;
  for (const [slot, age] of history.slots()) {
    const value = values[slot];
    if (Number.isNaN(value)) continue;
    const second = SPAN - age;
    const x = (second * width) / SPAN;
    const y = 1 + room * (1 - Math.min(value / top, 1));
    if (second - last > BRIDGED) context.moveTo(x, y);
    else context.lineTo(x, y);
    last = second;
  }
  context.stroke();
}

/** A sample of one state for a legend. */
export function drawSample(target, code) {
  const sheet = clean(target);
  if (!sheet) return;
  sheet.context.fillStyle = formOf(code, sheet.context);
  sheet.context.fillRect(0, 0, sheet.width, sheet.height);
}

/** Seconds by code as one stack, work at the bottom, over that part of the width. */
export function drawStack(target, sums, all, from = 0, to = 1) {
  const sheet = clean(target);
  if (!sheet || !all) return;
  let below = 0;
  for (const [code, seconds] of [...sums].sort((a, b) => b[0] - a[0])) {
    const tall = (sheet.height * seconds) / all;
    sheet.context.fillStyle = formOf(code, sheet.context);
    sheet.context.fillRect(from * sheet.width, sheet.height - below - tall, (to - from) * sheet.width, tall);
    below += tall;
  }
}
