// The last 15 minutes, second by second: bounded, whatever happens. A second that is missing is a gap.

import { LOST, stacked } from "./states.js";

export const SPAN = 900; // s of the agent's clock
const SERIES = {
  activity: "activity_ratio", memory: "memory_used_bytes", power: "power_watts", temperature: "temperature_celsius",
};

/** What is known of each GPU: by UUID its seconds `{second, shares: [[pair, share]], values}`, the oldest first. */
export class History {
  constructor() {
    this.newest = -Infinity;
    this.gpus = new Map();
  }

  /** One second: for each UUID `{shares, values}`. */
  append(second, entries) {
    if (second <= this.newest) return;
    this.newest = second;
    for (const [uuid, entry] of entries) {
      if (!this.gpus.has(uuid)) this.gpus.set(uuid, []);
      this.gpus.get(uuid).push({ second, ...entry });
    }
    for (const [uuid, seconds] of this.gpus) {
      while (seconds[0]?.second <= second - SPAN) seconds.shift();
      if (!seconds.length) this.gpus.delete(uuid);
    }
  }

  /** What a status says of this second. */
  take({ second, gpus }) {
    this.append(second, new Map(gpus.map(({ uuid, lost, shares, figures }) => [uuid, {
      shares: lost ? [[LOST, 1]] : stacked(Object.entries(shares)),
      values: Object.fromEntries(Object.entries(SERIES).map(([name, figure]) => [name, figures[figure] ?? NaN])),
    }])));
  }

  /** What the agent remembers: all of it, or what this page missed. */
  remember(data) {
    if (data.whole) Object.assign(this, new History());
    const gpus = Object.entries(data.gpus).map(([uuid, columns]) => [uuid, decoded(columns, data)]);
    for (let place = 0; place < data.slots; place += 1) {
      const entries = gpus.map(([uuid, columns]) => [uuid, entryOf(columns, place)]);
      this.append(data.newest - data.slots + 1 + place, new Map(entries.filter(([, entry]) => entry)));
    }
  }

  /** What was known of a GPU so many seconds ago. */
  at(uuid, age) {
    return this.gpus.get(uuid)?.find(({ second }) => second === this.newest - age);
  }

  /** `[pair, seconds]` of these GPUs together, in the order of a strip: what the strips show. */
  totals(uuids = this.gpus.keys()) {
    const totals = new Map();
    for (const uuid of uuids) {
      for (const { shares } of this.gpus.get(uuid) ?? []) {
        for (const [pair, share] of shares) totals.set(pair, (totals.get(pair) ?? 0) + share);
      }
    }
    return stacked([...totals]);
  }
}

/** A GPU's columns as numbers; a gap of a series is NaN. */
function decoded({ state, shares, ...series }, data) {
  const numbers = (text, { scale, bytes, gap }) => Float32Array.from(integers(text, bytes), (code) => (code === gap ? NaN : code * scale));
  return {
    states: integers(state, 1).map((code) => code && (data.states[code] === LOST ? 2 : 1)),
    shares: stacked(Object.entries(shares)).map(([pair, text]) => [pair, numbers(text, data.series.share)]),
    series: Object.entries(series).map(([name, text]) => [name, numbers(text, data.series[name])]),
  };
}

/** One second of the columns; null is a gap. */
function entryOf({ states, shares, series }, place) {
  const values = Object.fromEntries(series.map(([name, column]) => [name, column[place]]));
  if (!states[place] && Object.values(values).every(Number.isNaN)) return null;
  const parts = shares.map(([pair, column]) => [pair, column[place]]).filter(([, share]) => share);
  return { shares: states[place] === 2 ? [[LOST, 1]] : parts, values };
}

/** Base64 of little-endian integers. */
function integers(text, bytes) {
  const raw = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return bytes === 1 ? raw : Uint16Array.from({ length: raw.length / 2 }, (_, i) => raw[2 * i] + 256 * raw[2 * i + 1]);
}
