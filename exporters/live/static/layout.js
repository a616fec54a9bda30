// Where GPUs stand in the drawing of NVLink, by the kind of graph it is.

export const WIDTH = 420;
const EDGE = 48; // from a node's centre to the border
const RADIUS = 21;

/** `{height, radius, places: Map gpu -> [x, y], hub: [x, y, width] | null}` for these GPUs. */
export function layout(kind, gpus, joined) {
  if (kind === "switch") return star(gpus);
  const quads = gpus.length === 8 ? twoQuads(gpus, joined) : null;
  if (quads) return mesh(quads);
  if (gpus.length === 4) return square(gpus);
  return ring(gpus);
}

/** GPUs in two rows, the switch between them. */
function star(gpus) {
  const half = Math.ceil(gpus.length / 2);
  const places = new Map();
  const radius = Math.min((0.33 * (WIDTH - 2 * EDGE)) / Math.max(half - 1, 1), RADIUS);
  gpus.forEach((gpu, place) => {
    const row = place < half ? 0 : 1;
    const among = row ? gpus.length - half : half;
    const step = (WIDTH - 2 * EDGE) / Math.max(among - 1, 1);
    const x = among === 1 ? WIDTH / 2 : EDGE + (place - row * half) * step;
    places.set(gpu, [x, row ? 272 : 48]);
  });
  return { height: 320, radius, places, hub: [WIDTH / 2, 160, WIDTH - 2 * EDGE + 30] };
}

function square(gpus) {
  const corners = [[100, 50], [320, 50], [100, 270], [320, 270]];
  return { height: 320, radius: RADIUS, places: new Map(gpus.map((gpu, i) => [gpu, corners[i]])), hub: null };
}

function ring(gpus) {
  const places = new Map(gpus.map((gpu, place) => {
    const angle = (2 * Math.PI * place) / gpus.length - Math.PI / 2;
    return [gpu, [WIDTH / 2 + 150 * Math.cos(angle), 190 + 150 * Math.sin(angle)]];
  }));
  return { height: 380, radius: gpus.length > 8 ? 15 : RADIUS, places, hub: null };
}

/** The cube-mesh: two squares with their diagonals, each corner tied to its counterpart. */
function mesh([left, right]) {
  const corners = [[62, 70], [168, 100], [62, 250], [168, 220]];
  const places = new Map();
  corners.forEach(([x, y], place) => {
    places.set(left[place], [x, y]);
    places.set(right[place], [WIDTH - x, y]);
  });
  return { height: 320, radius: RADIUS, places, hub: null };
}

/** Two groups of four, each fully joined, corner to corner; null where the graph is no such thing. */
function twoQuads(gpus, joined) {
  const [first, ...rest] = gpus;
  for (const three of triples(rest)) {
    const left = [first, ...three];
    const others = gpus.filter((gpu) => !left.includes(gpu));
    const right = left.map((gpu) => others.find((other) => joined(gpu, other)));
    if (!full(left, joined) || !full(others, joined)) continue;
    if (new Set(right).size === 4 && !right.includes(undefined)) return [left, right];
  }
  return null;
}

function* triples(values) {
  for (let i = 0; i < values.length; i += 1) {
    for (let j = i + 1; j < values.length; j += 1) {
      for (let k = j + 1; k < values.length; k += 1) yield [values[i], values[j], values[k]];
    }
  }
}

function full(group, joined) {
  return group.every((a, i) => group.slice(i + 1).every((b) => joined(a, b)));
}
