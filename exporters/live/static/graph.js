// NVLink drawn as the graph it is.

import { drawing, element, keep, put, say, write } from "./dom.js";
import { WIDTH, layout } from "./layout.js";

const LOADS = { // in the order of the scale
  none: "at rest", low: "little", mid: "much", full: "full", erring: "with a fault", less: "some links down", down: "down", unknown: "not known",
};
const APART = 8; // between the links of one pair
const LEGIBLE = 9; // radius from which a node has its number

/** Fill the figure; without links it is hidden. */
export function showGraph(figure, { links, graph, gpus }) {
  figure.hidden = !links.length;
  if (figure.hidden) return;
  const [caption, svg, scale, notes] = figure.children;
  const joined = new Set(links.flatMap(({ gpu, peer }) => [gpu, peer]));
  const nodes = gpus.filter(({ gpu, lost }) => lost || joined.has(gpu));
  const plan = layout(graph.kind, nodes.map(({ gpu }) => gpu), joiner(links, graph));
  write(caption.lastChild, graph.text);
  put(svg, "viewBox", `0 0 ${WIDTH} ${plan.height}`);
  const drawn = links.filter(({ gpu, peer }) => plan.places.has(gpu) && (peer === null || plan.places.has(peer)));
  keep(svg, [ // nodes lie on top
    ...drawn.map((link) => ({ key: `e${link.gpu}-${link.peer}-${link.lane}`, link })),
    ...(plan.hub ? [{ key: "hub" }] : []),
    ...nodes.map((gpu) => ({ key: gpu.uuid, gpu })),
  ], ({ key }) => key, makePart, (node, { link, gpu }) => {
    if (link) showEdge(node, link, plan);
    else if (gpu) showNode(node, gpu, plan);
    else showHub(node, plan.hub);
  });
  const loads = new Set(drawn.map(({ load }) => load));
  keep(scale, Object.entries(LOADS).filter(([load]) => loads.has(load)), ([load]) => load, makeSample, () => {});
  keep(notes, links.filter(({ text }) => text), ({ text }) => text, () => element("li"), (node, { load, text }) => {
    write(node, text);
    put(node, "data-load", load);
  });
}

/** Whether two GPUs are joined: by what is found, or by what the spec expects. */
function joiner(links, { expected }) {
  const pairs = new Set(links.map(({ gpu, peer }) => `${gpu}-${peer}`));
  for (const [a, b] of expected) pairs.add(`${a}-${b}`);
  return (a, b) => pairs.has(`${a}-${b}`) || pairs.has(`${b}-${a}`);
}

function makePart({ link, gpu }) {
  if (link) return drawing("path", { class: "edge" });
  if (gpu) return drawing("g", { class: "node" }, drawing("circle"), drawing("circle", { class: "rim" }), drawing("text"));
  return drawing("g", { class: "hub" }, drawing("rect"), drawing("text"));
}

function showEdge(node, link, plan) {
  put(node, "d", courseOf(link, plan));
  put(node, "data-load", link.load);
  put(node, "data-gpus", link.peer === null ? link.gpu : `${link.gpu} ${link.peer}`);
  const most = link.peer === null ? 12 : 6.5;
  put(node, "stroke-width", (1.8 + (most - 1.8) * Math.min(link.ratio ?? 0, 1)).toFixed(1));
}

/** A line between two nodes, beside its fellows; ties over the whole mesh are bowed outwards. */
function courseOf({ gpu, peer, lane, lanes }, { places, hub, height }) {
  const [x, y] = places.get(gpu);
  const [toX, toY] = peer === null ? [x, hub[1]] : places.get(peer);
  const length = Math.hypot(toX - x, toY - y) || 1;
  const aside = (lane - (lanes - 1) / 2) * APART;
  const [dx, dy] = [(-(toY - y) / length) * aside, ((toX - x) / length) * aside];
  const from = `M${(x + dx).toFixed(1)} ${(y + dy).toFixed(1)}`;
  const to = `${(toX + dx).toFixed(1)} ${(toY + dy).toFixed(1)}`;
  if (y !== toY || length <= WIDTH / 2 || places.size < 8) return `${from}L${to}`;
  const bow = (y < height / 2 ? -52 : 52) + dy;
  return `${from}Q${((x + toX) / 2).toFixed(1)} ${(y + bow).toFixed(1)} ${to}`;
}

function showHub(node, [x, y, width]) {
  const [rect, text] = node.children;
  for (const [name, value] of Object.entries({ x: x - width / 2, y: y - 20, width, height: 40, rx: 8 })) put(rect, name, value);
  put(text, "x", x);
  put(text, "y", y);
  say(text, "NVSwitch");
}

function showNode(node, { gpu, lost }, { places, radius }) {
  const [x, y] = places.get(gpu);
  put(node, "transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
  put(node.firstChild, "r", radius);
  put(node.children[1], "r", radius + 3);
  put(node, "data-gpu", gpu);
  put(node, "data-lost", lost);
  say(node.lastChild, radius < LEGIBLE ? "" : String(gpu));
}

function makeSample([load, words]) {
  const line = drawing("path", { class: "edge", "data-load": load, d: "M1 5H23", "stroke-width": load === "full" ? 6 : 3 });
  return element("li", {}, drawing("svg", { viewBox: "0 0 24 10", "aria-hidden": "true" }, line), words);
}
