// The last 15 minutes: bounded, whatever happens. A GPU is known by its UUID, a gap stays a gap.

import { LOST, codeOf } from "./states.js";

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
    this.shares = new Map(); // code -> shares of each second, 0-1
    this.gaps = SPAN;
  }

  put(slot, code, values, shares) {
    this.gaps += (code === FORGOTTEN) - (this.codes[slot] === FORGOTTEN);
    this.codes[slot] = code;
    for (const kept of this.shares.values()) kept[slot] = 0;
    for (const [pair, share] of shares) {
      if (!this.shares.has(pair)) this.shares.set(pair, new Float32Array(SPAN));
      this.shares.get(pair)[slot] = share;
    }
    for (const name of SERIES) this.series[name][slot] = values[name] ?? NaN;
  }

  get isEmpty() {
    return this.gaps === SPAN;
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
      track.put(slotOf(second), entry?.code ?? FORGOTTEN, entry?.values ?? {}, entry?.shares ?? []);
    }
  }

  /** What the agent remembers: all of it, or what this page missed. */
  remember(data) {
    if (data.whole) this.clear();
    const states = data.states.map((pair) => (pair ? codeOf(...pair.split("/")) : FORGOTTEN));
    const gpus = Object.entries(data.gpus).map(([uuid, columns]) => [uuid, decoded(columns, data)]);
    for (let place = 0; place < data.slots; place += 1) {
      const entries = gpus.map(([uuid, columns]) => [uuid, {
        code: states[columns.state[place]] ?? FORGOTTEN,
        values: Object.fromEntries(SERIES.map((name) => [name, columns[name]?.[place]])),
        shares: states[columns.state[place]] === LOST ? [[LOST, 1]]
          : columns.shares.map(([code, parts]) => [code, parts[place]]).filter(([, s]) => s),
      }]);
      this.append(data.newest - data.slots + 1 + place, new Map(entries));
    }
  }

  /** Slots of the last 15 minutes, oldest first, each with its age in seconds. */
  *slots() {
    for (let age = SPAN - 1; age >= 0; age -= 1) yield [slotOf(this.newest - age), age];
  }

  /** What was known of a GPU so many seconds ago: shares by code, the largest first. */
  at(uuid, age) {
    const track = this.tracks.get(uuid);
    const slot = slotOf(this.newest - age);
    const shares = [...(track?.shares ?? [])].map(([code, parts]) => [code, parts[slot]]);
    const series = Object.entries(track?.series ?? {}).map(([name, ring]) => [name, ring[slot]]);
    return {
      shares: shares.filter(([, share]) => share > 0.005).sort((a, b) => b[1] - a[1]),
      values: Object.fromEntries(series),
    };
  }

  /** Codes that occur, with the seconds that each has over these GPUs: the sum of its shares. */
  totals(uuids = this.tracks.keys()) {
    const totals = new Map();
    for (const uuid of uuids) {
      for (const [code, parts] of this.tracks.get(uuid)?.shares ?? []) {
        const seconds = parts.reduce((sum, share) => sum + share, 0);
        if (seconds) totals.set(code, (totals.get(code) ?? 0) + seconds);
      }
    }
    return totals;
  }
}

function slotOf(second) {
  return ((second % SPAN) + SPAN) % SPAN;
}

/** A GPU's columns as numbers; a gap of a series is NaN. */
function decoded(columns, data) {
  const numbers = { state: integers(columns.state, 1) };
  numbers.shares = Object.entries(columns.shares ?? {}).map(([pair, codes]) => [
    codeOf(...pair.split("/")),
    Float32Array.from(integers(codes, 1), (code) => code * data.series.share.scale),
  ]);
  for (const name of SERIES) {
    const series = data.series[name];
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

/** A tick's shares of one GPU, by code. */
function sharesOf(gpu) {
  return Object.entries(gpu.shares).map(([pair, share]) => [codeOf(...pair.split("/")), share]);
}

/** What a tick says of each GPU, by UUID. */
export function entriesOf(gpus) {
  return new Map(gpus.map((gpu) => [gpu.uuid, gpu.lost ? { code: LOST, shares: [[LOST, 1]] } : {
    code: codeOf(gpu.state, gpu.cause),
    values: Object.fromEntries(gpu.meters.map((meter) => [meter.name, meter.value])),
    shares: sharesOf(gpu),
  }]));
}
