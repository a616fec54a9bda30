// The last 15 minutes: bounded, whatever happens. A GPU is known by its UUID, a gap stays a gap.

import { PAIRS, codeOf } from "./states.js";

export const SPAN = 900; // s of the agent's clock, and as many slots
export const SERIES = ["activity", "memory", "power", "temperature"];
const FORGOTTEN = 0; // code of a second of which nothing is known

/** What one GPU did, second by second; NaN is a gap of a series. */
class Track {
  constructor() {
    this.codes = new Uint8Array(SPAN);
    this.series = Object.fromEntries(
      SERIES.map((name) => [name, new Float32Array(SPAN).fill(NaN)]),
    );
    this.counts = new Uint16Array(PAIRS.length + 1);
    this.counts[FORGOTTEN] = SPAN;
  }

  put(slot, code, values) {
    this.counts[this.codes[slot]] -= 1;
    this.counts[code] += 1;
    this.codes[slot] = code;
    for (const name of SERIES) this.series[name][slot] = values[name] ?? NaN;
  }

  get isEmpty() {
    return this.counts[FORGOTTEN] === SPAN;
  }
}

/** A ring of seconds that all GPUs share. */
export class History {
  constructor() {
    this.clear();
  }

  clear() {
    this.newest = -Infinity; // second
    this.tracks = new Map(); // uuid -> Track
  }

  /** One second: for each UUID `{code, values}`. Seconds that were skipped become gaps. */
  append(second, entries) {
    if (second <= this.newest) return;
    if (second - this.newest > SPAN) this.clear();
    for (const uuid of entries.keys()) {
      if (!this.tracks.has(uuid)) this.tracks.set(uuid, new Track());
    }
    const first = Math.max(this.newest + 1, second - SPAN + 1);
    for (let skipped = first; skipped < second; skipped += 1) this.fill(skipped, new Map());
    this.fill(second, entries);
    this.newest = second;
    for (const [uuid, track] of this.tracks) {
      if (track.isEmpty && !entries.has(uuid)) this.tracks.delete(uuid);
    }
  }

  fill(second, entries) {
    for (const [uuid, track] of this.tracks) {
      const entry = entries.get(uuid);
      track.put(slotOf(second), entry?.code ?? FORGOTTEN, entry?.values ?? {});
    }
  }

  /** What the agent remembers: all of it, or what this page missed. */
  remember(told) {
    if (told.whole) this.clear();
    const states = told.states.map((pair) => (pair ? codeOf(...pair.split("/")) : FORGOTTEN));
    const gpus = Object.entries(told.gpus).map(([uuid, columns]) => [uuid, decoded(columns, told)]);
    for (let place = 0; place < told.slots; place += 1) {
      const entries = gpus.map(([uuid, columns]) => [uuid, {
        code: states[columns.state[place]] ?? FORGOTTEN,
        values: Object.fromEntries(SERIES.map((name) => [name, columns[name]?.[place]])),
      }]);
      this.append(told.newest - told.slots + 1 + place, new Map(entries));
    }
  }

  /** Slots of the last 15 minutes, oldest first, each with its age in seconds. */
  *slots() {
    for (let age = SPAN - 1; age >= 0; age -= 1) yield [slotOf(this.newest - age), age];
  }

  /** Codes that occur, with the number of seconds each has over these GPUs. */
  totals(uuids = this.tracks.keys()) {
    const totals = new Map();
    for (const uuid of uuids) {
      const counts = this.tracks.get(uuid)?.counts ?? [];
      for (let code = 1; code < counts.length; code += 1) {
        if (counts[code]) totals.set(code, (totals.get(code) ?? 0) + counts[code]);
      }
    }
    return totals;
  }
}

function slotOf(second) {
  return ((second % SPAN) + SPAN) % SPAN;
}

/** A GPU's columns as numbers; a gap of a series is NaN. */
function decoded(columns, told) {
  const numbers = { state: integers(columns.state, 1) };
  for (const name of SERIES) {
    const series = told.series[name];
    if (!columns[name] || !series) continue;
    numbers[name] = Float32Array.from(integers(columns[name], series.bytes),
      (code) => (code === series.gap ? NaN : code * series.scale));
  }
  return numbers;
}

/** Base64 of little-endian integers. */
function integers(text, bytes) {
  const raw = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  if (bytes === 1) return raw;
  return Uint16Array.from({ length: raw.length / 2 }, (_, i) => raw[2 * i] + 256 * raw[2 * i + 1]);
}

/** What a tick says of each GPU, by UUID. */
export function entriesOf(gpus) {
  return new Map(gpus.filter((gpu) => !gpu.lost).map((gpu) => [gpu.uuid, {
    code: codeOf(gpu.state, gpu.cause),
    values: Object.fromEntries(gpu.meters.map((meter) => [meter.name, meter.value])),
  }]));
}
