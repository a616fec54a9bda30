// Canvases: the strip of states and the small curves of the last 15 minutes.

import { SPAN } from "./history.js";
import { formOf } from "./states.js";

const BRIDGED = 3; // s between two ticks of one state: a tick that was late is no gap
const sizes = new WeakMap(); // canvas -> [width, height] in its own pixels

const watcher = new ResizeObserver((changes) => {
  for (const { target, contentRect } of changes) {
    const scale = window.devicePixelRatio || 1;
    sizes.set(target, [contentRect.width * scale, contentRect.height * scale].map(Math.round));
    target.dispatchEvent(new CustomEvent("resized", { bubbles: true }));
  }
});

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
  const [width, height] = sizes.get(target) ?? [0, 0];
  if (!width || !height) return null;
  if (target.width !== width || target.height !== height) {
    target.width = width;
    target.height = height;
  }
  const context = target.getContext("2d");
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/** Runs of one code: [code, from, to] in seconds of the span. */
function* runs(history, codes) {
  let run = null;
  for (const [slot, age] of history.slots()) {
    const code = codes[slot];
    const end = SPAN - age;
    if (!code) continue;
    if (run && run[0] === code && end - run[2] <= BRIDGED) {
      run[2] = end;
      continue;
    }
    if (run) yield run;
    run = [code, end - 1, end];
  }
  if (run) yield run;
}

/** States as a row: each run has its colour, its height and its lines. */
export function drawStates(target, history, uuid) {
  const sheet = clean(target);
  const track = history.tracks.get(uuid);
  if (!sheet || !track) return;
  const { context, width, height } = sheet;
  const scale = width / SPAN;
  for (const [code, from, to] of runs(history, track.codes)) {
    const form = formOf(code, context);
    const left = Math.round(from * scale);
    const right = Math.max(Math.round(to * scale), left + 1);
    const tall = Math.round(height * form.height);
    context.fillStyle = form.fill;
    context.fillRect(left, height - tall, right - left, tall);
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
  const form = formOf(code, sheet.context);
  const tall = Math.max(2, Math.round(sheet.height * form.height));
  sheet.context.fillStyle = form.fill;
  sheet.context.fillRect(0, sheet.height - tall, sheet.width, tall);
}
