// What joins which GPUs: the links of a tick as edges, each with its load.

const LITTLE = 0.01; // below which nothing that counts is moved
const MID = 0.4; // share of the limit from which an edge is drawn as well used

/** Words and limits of the loads, for the scale below the drawing. */
export const LOADS = [
  ["none", "below 1 %"],
  ["low", `1 to ${100 * MID} %`],
  ["mid", `from ${100 * MID} %`],
  ["full", "full"],
  ["less", "some links down"],
  ["down", "down"],
  ["unknown", "not known"],
];

/**
 * Edges `{a, b, lane, lanes, load, ratio}`: one for each link between two GPUs, one for all links
 * between a GPU and the switches (`b` is null). `full` is the threshold of NVLink.
 */
export function edgesOf(frame, full) {
  return frame.graph.kind === "switch" ? spokes(frame, full) : meshes(frame, full);
}

/** The fullest of some ratios, 0-1; null where none is known. */
function fullest(ratios) {
  const known = ratios.filter((ratio) => ratio !== null && ratio !== undefined);
  return known.length ? Math.max(...known) : null;
}

/** How full a GPU's NVLink is over all its links, in its fuller direction. */
function totalOf(frame, gpu) {
  return fullest(frame.paths.filter((p) => p.path === "nvlink" && p.gpu === gpu).map((p) => p.ratio));
}

function loadOf(up, ratio, full) {
  if (up === false) return "down";
  if (ratio === null) return "unknown";
  if (ratio >= full) return "full";
  return ratio >= MID ? "mid" : ratio >= LITTLE ? "low" : "none";
}

function meshes(frame, full) {
  const found = new Map();
  for (const link of frame.links) {
    const far = link.remote?.gpu;
    if (far === undefined || far === null || far === "") continue;
    const [a, b] = [link.gpu, far].sort((x, y) => x - y);
    const key = `${a}-${b}`;
    if (!found.has(key)) found.set(key, { a, b, sides: new Map() });
    const sides = found.get(key).sides;
    sides.set(link.gpu, [...(sides.get(link.gpu) ?? []), link]);
  }
  return [...found.values()].flatMap((pair) => lanesOf(pair, frame, full));
}

/**
 * Both ends report a link: the end that reports more links counts, the larger figure is shown.
 * Where nothing is counted link by link, an edge is as full as the emptier of its GPUs.
 */
function lanesOf({ a, b, sides }, frame, full) {
  const [near, far] = [...sides.values(), []].sort((x, y) => y.length - x.length);
  const ends = [a, b].map((gpu) => totalOf(frame, gpu));
  const guess = ends.includes(null) ? null : Math.min(...ends);
  return near.map((link, lane) => {
    const both = [link, far[lane]].filter(Boolean);
    const up = !both.some((end) => end.up === false);
    const counted = fullest(both.flatMap((end) => [end.transmit, end.receive]));
    const ratio = counted ?? guess;
    return { a, b, lane, lanes: near.length, ratio, load: loadOf(up, ratio, full) };
  });
}

/** All links between a GPU and the switches as one edge; it is down where all of them are. */
function spokes(frame, full) {
  return [...new Set(frame.links.map((link) => link.gpu))].map((gpu) => {
    const links = frame.links.filter((link) => link.gpu === gpu);
    const down = links.filter((link) => link.up === false).length;
    const ratio = totalOf(frame, gpu) ?? fullest(links.flatMap((l) => [l.transmit, l.receive]));
    const load = loadOf(down < links.length, ratio, full);
    const some = down > 0 && down < links.length;
    return { a: gpu, b: null, lane: 0, lanes: 1, ratio, load: some ? "less" : load };
  });
}
