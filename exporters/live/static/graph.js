// NVLink drawn as the graph it is.

import { bound, drawing, element, keep, put, say } from "./dom.js";
import { count, percent } from "./figures.js";
import { WIDTH, layout } from "./layout.js";
import { LOADS, edgesOf } from "./links.js";

const KINDS = {
  switch: "through NVSwitch", mesh: "hybrid cube-mesh", full: "fully connected",
};
const APART = 8; // between the links of one pair
const THRESHOLD = 0.85; // if no path has one

/** Fill the figure; without links it is hidden. */
export function showGraph(figure, frame) {
  figure.hidden = !frame.links.length;
  if (figure.hidden) return;
  const [caption, svg, scale, notes] = figure.children;
  const full = frame.paths.find((p) => p.path === "nvlink")?.threshold ?? THRESHOLD;
  const edges = edgesOf(frame, full);
  const gpus = nodesOf(frame, edges);
  const plan = layout(frame.graph.kind, gpus.map((gpu) => gpu.gpu), joiner(frame, edges));
  put(svg, "viewBox", `0 0 ${WIDTH} ${plan.height}`);
  say(caption.lastChild, bound(wordsOf(frame, edges)));
  keep(svg, parts(plan, gpus, edges, frame), (part) => part.key, makePart, showPart);
  const ailing = gpus.some((gpu) => ringOf(frame, gpu)) ? [["ring", "GPU with a link down, or lost"]] : [];
  keep(scale, [...LOADS.filter(([load]) => edges.some((edge) => edge.load === load)), ...ailing],
    ([load]) => load, makeSample, () => {});
  keep(notes, notesOf(frame, edges), (note) => note.key,
    () => element("li"), (node, note) => {
      say(node, note.text);
      put(node, "data-load", note.load);
    });
}

/** GPUs that have links, in the order of their numbers. */
function nodesOf(frame, edges) {
  const joined = new Set(edges.flatMap((edge) => [edge.a, edge.b]));
  for (const link of frame.links) joined.add(link.gpu);
  return frame.gpus.filter((gpu) => gpu.lost || joined.has(gpu.gpu));
}

/** Whether two GPUs are joined: by what is found, or by what the spec expects. */
function joiner(frame, edges) {
  const pairs = new Set(edges.map((edge) => `${edge.a}-${edge.b}`));
  for (const [a, b] of frame.graph.expected ?? []) pairs.add(`${a}-${b}`);
  return (a, b) => pairs.has(`${a}-${b}`) || pairs.has(`${b}-${a}`);
}

/** Everything that is drawn, edges first: nodes lie on top. */
function parts(plan, gpus, edges, frame) {
  const lines = edges
    .filter((edge) => plan.places.has(edge.a) && (edge.b === null || plan.places.has(edge.b)))
    .map((edge) => ({ kind: "edge", key: `e${edge.a}-${edge.b}-${edge.lane}`, edge, plan }));
  const hub = plan.hub ? [{ kind: "hub", key: "hub", plan }] : [];
  const nodes = gpus.map((gpu) => ({ kind: "node", key: `n${gpu.uuid}`, gpu, plan, ring: ringOf(frame, gpu) }));
  return [...lines, ...hub, ...nodes];
}

const MAKERS = {
  edge: () => drawing("path", { class: "edge" }),
  hub: () => drawing("g", { class: "hub" }, drawing("rect"), drawing("text")),
  node: () => drawing("g", { class: "node" }, drawing("circle"),
    drawing("circle", { class: "rim" }), drawing("text")),
};
const SHOWERS = { edge: showEdge, hub: showHub, node: showNode };

function makePart(part) {
  return MAKERS[part.kind]();
}

function showPart(node, part) {
  SHOWERS[part.kind](node, part);
}

function showEdge(node, { edge, plan }) {
  put(node, "d", courseOf(edge, plan));
  put(node, "data-load", edge.load);
  put(node, "data-gpus", edge.b === null ? edge.a : `${edge.a} ${edge.b}`);
  const most = edge.b === null ? 12 : 6.5;
  put(node, "stroke-width", (1.8 + (most - 1.8) * Math.min(edge.ratio ?? 0, 1)).toFixed(1));
}

/** A line between two nodes, beside its fellows; ties over the whole mesh are bowed outwards. */
function courseOf(edge, plan) {
  const [x, y] = plan.places.get(edge.a);
  const [toX, toY] = edge.b === null ? [x, plan.hub[1]] : plan.places.get(edge.b);
  const length = Math.hypot(toX - x, toY - y) || 1;
  const aside = (edge.lane - (edge.lanes - 1) / 2) * APART;
  const [dx, dy] = [(-(toY - y) / length) * aside, ((toX - x) / length) * aside];
  const from = `M${(x + dx).toFixed(1)} ${(y + dy).toFixed(1)}`;
  const to = `${(toX + dx).toFixed(1)} ${(toY + dy).toFixed(1)}`;
  const level = y === toY && length > WIDTH / 2;
  if (!level || plan.height === undefined || plan.places.size < 8) return `${from}L${to}`;
  const bow = (y < plan.height / 2 ? -52 : 52) + dy;
  return `${from}Q${((x + toX) / 2).toFixed(1)} ${(y + bow).toFixed(1)} ${to}`;
}

function showHub(node, { plan }) {
  const [x, y, width] = plan.hub;
  const [rect, text] = node.children;
  for (const [name, value] of Object.entries({ x: x - width / 2, y: y - 20, width, height: 40, rx: 8 })) {
    put(rect, name, value);
  }
  put(text, "x", x);
  put(text, "y", y);
  say(text, "NVSwitch");
}

/** What concerns NVLink alone: a GPU that is lost, or has a link down. */
function ringOf({ links }, gpu) {
  if (gpu.lost) return "lost";
  return links.some((link) => link.gpu === gpu.gpu && link.up === false) ? "down" : null;
}

function showNode(node, { gpu, plan, ring }) {
  const [x, y] = plan.places.get(gpu.gpu);
  put(node, "transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
  const radius = plan.places.size > 8 ? 15 : 21;
  put(node.firstChild, "r", radius);
  put(node.children[1], "r", radius + 3);
  put(node, "data-gpu", gpu.gpu);
  put(node, "data-ring", ring);
  say(node.lastChild, gpu.gpu);
}

function makeSample([load, words]) {
  const line = drawing("path", {
    class: "edge", "data-load": load, d: load === "ring" ? "M8 5a4 4 0 1 0 8 0a4 4 0 1 0 -8 0" : "M1 5H23", "stroke-width": load === "full" ? 6 : 3,
  });
  return element("li", {}, drawing("svg", { viewBox: "0 0 24 10", "aria-hidden": "true" }, line), words);
}

function wordsOf(frame, edges) {
  const kind = KINDS[frame.graph.kind] ?? "";
  const busiest = edges.reduce((best, e) => ((e.ratio ?? -1) > (best?.ratio ?? -1) ? e : best), null);
  const words = [kind, ...conditionOf(frame)];
  if (busiest && busiest.ratio >= 0.01) words.push(`fullest at ${percent(busiest.ratio)}`);
  return words.filter(Boolean).join(", ");
}

/** What is wrong with links, or not known of them. */
function conditionOf({ links, gpus }) {
  const ends = count(links.length, "link end");
  const down = links.filter((link) => link.up === false).length;
  const silent = links.filter((link) => link.up !== false && link.up !== true).length;
  const lost = gpus.filter((gpu) => gpu.lost).map((gpu) => `those of GPU ${gpu.gpu} lost`);
  const wrong = [down && `${down} of ${ends} down`, silent && `${silent} of ${ends} not known`, ...lost];
  return wrong.some(Boolean) ? wrong : ["every link up"];
}

/** Links that are down, by name; links that are full. */
function notesOf(frame, edges) {
  const down = frame.links.filter((link) => link.up === false).map((link) => ({
    key: `${link.gpu}/${link.link}`, load: "down",
    text: `GPU ${link.gpu}, link ${link.link} is down${farOf(link)}`,
  }));
  const full = edges.filter((edge) => edge.load === "full");
  if (!full.length) return down;
  return [...down, { key: "full", load: "full", text: fullOf(full, edges) }];
}

/** Which are full: each pair of GPUs once. */
function fullOf(full, edges) {
  if (full.length === edges.length) return "Every link is full";
  const pairs = new Set(full.map(({ a, b }) => (b === null ? `GPU ${a}` : `GPU ${a} to ${b}`)));
  const more = pairs.size > 4 ? ` and ${pairs.size - 4} more` : "";
  return `Full: ${[...pairs].slice(0, 4).join(", ")}${more}`;
}

function farOf(link) {
  const far = link.remote?.gpu;
  return far === undefined || far === null || far === "" ? "" : ` (to GPU ${far})`;
}
