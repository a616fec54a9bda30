// Data paths as bars against what the hardware can carry, both directions, with the threshold.

import { element, keep, put, say, style, write } from "./dom.js";
import { percent } from "./figures.js";

const opened = new WeakSet(); // panels that were opened here: they stay as a reader leaves them

/** A table for each kind of path: a row for each device, a column for each direction. */
export function showPaths(parent, { path_kinds: kinds, paths }) {
  const cells = new Map(paths.map((flow) => [`${flow.path} ${flow.device} ${flow.direction}`, flow]));
  keep(parent, kinds, ({ path }) => path, makeTable, (panel, kind) => {
    const [summary, caption, table] = panel.children;
    const [peak, rates] = summary.children;
    put(summary, "data-level", kind.level);
    write(peak, kind.highest);
    write(rates, kind.rates);
    const line = kind.threshold_ratio !== null && `line on a bar: saturation threshold, ${percent(kind.threshold_ratio)}`;
    write(caption, [kind.limits, line].filter(Boolean).join("; "));
    if (kind.moves && !opened.has(panel)) panel.open = Boolean(opened.add(panel));
    keep(table.firstChild.firstChild, ["device", ...kind.directions], (title) => title, (title) => element("th", { scope: "col" }, title), () => {});
    keep(table.lastChild, kind.devices, (device) => device, () => element("tr", {}, element("th", { scope: "row" })), (row, device) => {
      const flows = kind.directions.map((direction) => cells.get(`${kind.path} ${device} ${direction}`));
      const gpu = flows.find(Boolean)?.gpu ?? null;
      say(row.firstChild, gpu === null ? device : `GPU ${gpu}`);
      put(row, "data-device", device);
      put(row, "data-level", kind.faults[device]);
      keep(row, flows.map((flow, place) => ({ flow, direction: kind.directions[place] })), ({ direction }) => direction,
        ({ direction }) => element("td", { "data-direction": direction }, makeFlow()),
        (cell, { flow }) => showFlow(cell.firstChild, flow));
    });
  });
}

function makeTable({ path, title }) {
  return element("details", { class: "panel", "data-path": path },
    element("summary", {}, title, " ", element("span", { class: "peak" }), element("span", { class: "muted rates" })),
    element("p", { class: "key" }),
    element("table", {}, element("thead", {}, element("tr")), element("tbody")));
}

/** The paths of one GPU; whether it has any. */
export function showPathsOf(body, { path_kinds: kinds, paths }, gpu) {
  const titles = new Map(kinds.map(({ path, title }) => [path, title]));
  const flows = paths.filter((flow) => flow.gpu === gpu);
  keep(body, flows, (flow) => `${flow.path} ${flow.direction}`,
    (flow) => element("tr", {}, element("th", { scope: "row" }, `${titles.get(flow.path) ?? flow.path} ${flow.direction}`), element("td", {}, makeFlow())),
    (row, flow) => showFlow(row.lastChild.firstChild, flow));
  return flows.length;
}

function makeFlow() {
  return element("div", { class: "flow" }, element("div", { class: "gauge", "aria-hidden": "true" }),
    element("div", { class: "figure" }, element("strong"), " ", element("span", { class: "of" })));
}

/** One direction of one device; nothing at all where it has no such direction. */
function showFlow(node, flow) {
  node.hidden = !flow;
  if (!flow) return;
  const { ratio, threshold_ratio: threshold, limit_bytes_per_second: limit, level, text, origin, source } = flow;
  const [gauge, figure] = node.children;
  put(node, "data-level", level);
  put(node, "title", [limit !== null && origin, source].filter(Boolean).join(": ") || null);
  gauge.hidden = ratio === null;
  put(gauge, "data-mark", threshold !== null);
  style(gauge, "--share", Math.min(ratio ?? 0, 1).toFixed(3));
  style(gauge, "--at", String(threshold ?? 1));
  say(figure.firstChild, ratio === null ? "" : percent(ratio));
  write(figure.lastChild, text);
}
