// Data paths as bars against what the hardware can carry, both directions, with the threshold.

import { bound, element, keep, put, say, style } from "./dom.js";
import { percent, rate } from "./figures.js";
import { nameOf } from "./states.js";

const ORDER = ["nvlink", "pcie", "hbm", "infiniband", "network", "disk"];
const DIRECTIONS = ["transmit", "receive", "read", "write", "total"];
const TITLES = { disk: "Disks", network: "Network" };
const ORIGINS = { spec: "spec sheet", hardware: "hardware now" };
const NOTES = { nvlink: "% of raw link; payload GB/s" };
const MOVES = 0.1; // of the limit, from which a kind of path is opened
const LITTLE = 1e-6; // of the limit: not 0

/** Tables of all paths: one for each kind, a row for each device, a column for each direction. */
export function showPaths(parent, { paths, findings, rates }, key) {
  const by = new Map(paths.filter(({ limit }) => limit !== null).map((p) => [p.path, percent(p.threshold)]));
  const same = new Set(by.values()).size === 1;
  const words = same ? [...by.values()][0] : [...by].map(([path, at]) => `${TITLES[path] ?? nameOf(path)} ${at}`).join(", ");
  say(key, by.size ? `line on a bar: saturation threshold (${words}); orange: above it` : "");
  keep(parent, grouped(paths), (group) => group.path, makeTable,
    (panel, group) => showTable(panel, group, findings, rates ?? {}));
}

function grouped(paths) {
  const known = ORDER.concat(paths.map((p) => p.path).filter((path) => !ORDER.includes(path)));
  return [...new Set(known)]
    .map((path) => ({ path, flows: paths.filter((p) => p.path === path) }))
    .filter((group) => group.flows.length)
    .map((group) => ({
      ...group,
      devices: [...new Set(group.flows.map((flow) => flow.device))],
      directions: DIRECTIONS.filter((d) => group.flows.some((flow) => flow.direction === d)),
    }));
}

function makeTable(group) {
  const panel = element(
    "details",
    { class: "panel", "data-path": group.path },
    element(
      "summary",
      {},
      TITLES[group.path] ?? nameOf(group.path),
      " ",
      element("span", { class: "muted peak" }),
      element("span", { class: "muted rates" }),
    ),
    element("p", { class: "key" }),
    element("table", {}, element("thead", {}, element("tr")), element("tbody")),
  );
  return panel;
}

const opened = new WeakSet(); // panels that were opened here: they stay as a reader leaves them

/** Opened once something moves on it, or is wrong with it, and never closed here. */
function fold(panel, group, faults) {
  const ratios = group.flows.map(ratioOf).filter((ratio) => ratio !== null);
  const peak = Math.max(...ratios, 0);
  const rates = group.flows.map((flow) => flow.bytes_per_second).filter((found) => found !== null);
  const most = ratios.length ? `highest ${percent(peak)}` : `highest ${rate(Math.max(...rates, 0), group.path)}`;
  const full = group.flows.some((flow) => flow.saturated);
  const busy = full && !ratios.length ? ", nearly always busy" : "";
  say(panel.querySelector(".peak"), rates.length ? `${most}${busy}` : "not known");
  if (opened.has(panel) || !(peak >= MOVES || full || faults)) return;
  opened.add(panel);
  panel.open = true;
}

function showTable(panel, group, findings, rates) {
  say(panel.querySelector(".rates"), bound(rates[group.path] ?? ""));
  const [, caption, table] = panel.children;
  const [head, body] = table.children;
  say(caption, captionOf(group));
  fold(panel, group, findings.some((finding) => group.devices.includes(finding.device)));
  const ofGpus = Boolean(group.flows[0].gpu);
  put(panel, "data-of", ofGpus ? "gpu" : "host");
  const titles = [ofGpus ? "GPU" : "device", ...group.directions];
  keep(head.firstChild, titles, (title) => title,
    (title) => element("th", { scope: "col" }, title), () => {});
  keep(body, group.devices, (device) => device, makeRow, (row, device) => {
    const flows = group.flows.filter((flow) => flow.device === device);
    say(row.firstChild, deviceName(flows[0]));
    put(row, "data-device", device);
    put(row, "data-faults", !flows[0].gpu && findings.some((finding) => !finding.gpu && finding.device === device));
    showCells(row, group.directions, flows);
  });
}

function makeRow() {
  return element("tr", {}, element("th", { scope: "row" }));
}

function showCells(row, directions, flows) {
  for (const [place, direction] of directions.entries()) {
    const cell = row.children[place + 1] ?? row.appendChild(element("td", {}, makeFlow()));
    put(cell, "data-direction", direction);
    showFlow(cell.firstChild, flows.find((flow) => flow.direction === direction));
  }
  while (row.children.length > directions.length + 1) row.lastChild.remove();
}

/** GPU paths are called by their index, host paths by their device. */
export function deviceName(flow) {
  return flow.gpu ? `GPU ${flow.gpu}` : flow.device;
}

/** The limits, shown once above the rows: for all directions if they are alike. */
function captionOf({ path, flows, directions }) {
  const limits = directions.map((d) => limitsOf(flows.filter((flow) => flow.direction === d)));
  const alike = new Set(limits).size === 1;
  const words = alike ? limits.slice(0, 1) : limits.map((limit, place) => `${directions[place]}: ${limit}`);
  const busy = flows.find((flow) => flow.saturated && flow.limit === null);
  const note = busy && `"busy": has a request at least ${percent(busy.threshold)} of the time`;
  return [...words, NOTES[path], note].filter(Boolean).join("; ");
}

/** `limit 150 GB/s (spec sheet), 125 GB/s on GPU 0 (hardware now)`: most have the first. */
function limitsOf(flows) {
  const groups = new Map();
  for (const flow of flows) {
    const words = flow.limit === null ? "" : `${rate(flow.limit, flow.path)}|${flow.origin}`;
    groups.set(words, [...(groups.get(words) ?? []), deviceName(flow)]);
  }
  const known = [...groups].filter(([words]) => words).sort((a, b) => b[1].length - a[1].length);
  if (!known.length) return "no limit known";
  const limits = known.map(([words, devices], place) => {
    const [limit, origin] = words.split("|");
    const most = place === 0 && devices.length > flows.length / 2;
    return `${limit}${most ? "" : ` on ${devices.join(", ")}`} (${ORIGINS[origin] ?? origin})`;
  });
  const rest = groups.get("") ?? [];
  if (rest.length) limits.push(`none known for ${rest.length > 3 ? "the rest" : rest.join(", ")}`);
  return `limit ${limits.join(", ")}`;
}

/** The ratio of a direction, which is shown rounded: what moves a little is more than none. */
function ratioOf({ ratio, bytes_per_second: moved }) {
  return ratio === 0 && moved > 0 ? LITTLE : ratio;
}

export function makeFlow() {
  return element(
    "div",
    { class: "flow" },
    element("div", { class: "gauge", "aria-hidden": "true" }),
    element("div", { class: "figure" }, element("strong"), " ", element("span", { class: "of" })),
  );
}

/**
 * One direction of one device; nothing at all where it has no such direction. That a limit is not
 * known is shown once, in the caption.
 */
export function showFlow(node, flow) {
  const [gauge, figure] = node.children;
  node.hidden = !flow;
  if (!flow) return;
  const { saturated, threshold } = flow;
  const ratio = ratioOf(flow);
  put(node, "data-saturated", saturated);
  put(gauge, "data-unlimited", flow.limit === null);
  put(gauge, "data-full", saturated);
  put(gauge, "data-mark", flow.limit !== null && threshold !== null);
  style(gauge, "--share", Math.min(ratio ?? 0, 1).toFixed(3));
  style(gauge, "--at", String(threshold ?? 1));
  put(gauge, "title", flow.limit !== null && threshold !== null && `line: saturation threshold, ${percent(threshold)}`);
  say(figure.firstChild, ratio !== null ? percent(ratio) : saturated ? "busy" : "");
  if (flow.up === false) say(figure.firstChild, "");
  say(figure.lastChild, flow.up === false ? "no link" : flow.bytes_per_second === null ? "not known" : rate(flow.bytes_per_second, flow.path));
}
