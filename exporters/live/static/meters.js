// A GPU's meters: a bar against its limit, 15 minutes as a curve, and the figure.

import { element, keep, put, say, style } from "./dom.js";
import { reading } from "./figures.js";
import { SERIES } from "./history.js";
import { canvas, drawSeries } from "./strip.js";

const WORDS = {
  activity: "activity", sm: "SM activity", tensor: "MFU, at most", memory: "memory", power: "power",
  temperature: "temp.", clock: "SM clock",
};
const ON_ROW = ["activity", "memory", "power", "temperature"];
const WARM = 0.97; // share of a temperature limit from which the bar is marked as full

/** The list that `showMeters` fills. */
export function meterList() {
  return element("dl", { class: "meters" });
}

export function showMeters(list, gpu, history, names) {
  const shown = gpu.meters.filter((meter) => names.includes(meter.name));
  keep(list, shown, (meter) => meter.name, makeRow, (row, meter) => {
    showRow(row, meter);
    const curve = row.querySelector("canvas");
    if (curve) drawSeries(curve, history, gpu.uuid, meter.name, topOf(meter));
  });
}

function makeRow(meter) {
  const curve = SERIES.includes(meter.name) ? canvas("spark") : element("span");
  return element(
    "div",
    { class: "meter", "data-meter": meter.name },
    element("dt", {}, WORDS[meter.name] ?? meter.name),
    element("dd", { class: "gauge", "aria-hidden": "true" }),
    element("dd", { class: "curve", "aria-hidden": "true" }, curve),
    element("dd", { class: "figure" }, element("span"), element("span", { class: "of" })),
  );
}

function showRow(row, meter) {
  const [, gauge, , figure] = row.children;
  const [value, limit] = reading(meter);
  say(figure.firstChild, value);
  say(figure.lastChild, limit && ` of ${limit}`);
  const top = topOf(meter);
  const share = top && meter.value !== null ? Math.min(meter.value / top, 1) : 0;
  style(gauge, "--share", share.toFixed(3));
  put(gauge, "data-unlimited", !top && meter.value !== null);
  put(gauge, "data-full", meter.name === "temperature" && share >= WARM);
}

/** The figures of a GPU's row, which `showCells` fills. */
export function cellList() {
  return element("dl", { class: "cells" });
}

export function showCells(list, gpu) {
  const shown = ON_ROW.map((name) => gpu.meters.find((meter) => meter.name === name));
  keep(list, shown, (meter) => meter.name, makeCell, (cell, meter) => {
    showRow(cell, meter);
    if (meter.value === null) say(cell.lastChild.firstChild, "-");
  });
}

function makeCell(meter) {
  return element(
    "div",
    { class: "cell", "data-meter": meter.name },
    element("dt", {}, WORDS[meter.name]),
    element("dd", { class: "gauge", "aria-hidden": "true" }),
    element("dd", { hidden: "" }),
    element("dd", { class: "figure" }, element("span"), element("span", { class: "of" })),
  );
}

function topOf(meter) {
  return meter.limit ?? (meter.unit === "ratio" ? 1 : null);
}
