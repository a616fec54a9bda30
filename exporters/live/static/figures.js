// Figures as people read them. A value that is not known is null, and is said to be so.

const GIB = 1024 ** 3;
const UNITS = {
  bytes: { of: (v) => (v / GIB).toFixed(1), unit: "GiB" },
  watts: { of: (v) => v.toFixed(0), unit: "W" },
  celsius: { of: (v) => v.toFixed(0), unit: "°C" },
  hertz: { of: (v) => (v / 1e9).toFixed(2), unit: "GHz" },
};

/** A meter's value and limit in its unit: ["98", "300 W"], ["12 %", ""]. */
export function reading(meter) {
  const { of, unit } = UNITS[meter.unit] ?? { of: (v) => v.toPrecision(3), unit: meter.unit };
  if (meter.value === null) return ["not known", ""];
  if (meter.unit === "ratio") return [percent(meter.value), ""];
  if (meter.limit === null) return [`${of(meter.value)} ${unit}`, ""];
  return [of(meter.value), `${of(meter.limit)} ${unit}`];
}

/** 0-1 as a percentage. */
export function percent(ratio) {
  const share = 100 * ratio;
  if (share > 0 && share < 1) return "< 1 %";
  return `${share.toFixed(0)} %`;
}

/** Bytes per second in words, with two or three figures that count; of networks in bits. */
export function rate(bytes, path) {
  const [value, unit] = path === "network" || path === "infiniband" ? [8 * bytes, "b/s"] : [bytes, "B/s"];
  if (value === 0) return "0";
  if (value < 1e8) return value < 1e6 ? `< 1 M${unit}` : `${(value / 1e6).toFixed(0)} M${unit}`;
  if (value >= 1e12) return `${(value / 1e12).toFixed(2)} T${unit}`;
  const giga = value / 1e9;
  return `${giga < 9.95 ? Number(giga.toFixed(1)) : giga.toFixed(0)} G${unit}`;
}

const SPANS = [
  [86400, "d", 3600, "h"],
  [3600, "h", 60, "min"],
  [60, "min", 1, "s"],
];

/** Seconds in words: 42 s, 4 min, 3 h 20 min, 12 d 5 h. */
export function span(seconds) {
  const whole = Math.floor(seconds);
  for (const [size, unit, part, smaller] of SPANS) {
    if (whole < size) continue;
    const rest = Math.floor((whole % size) / part);
    const large = `${Math.floor(whole / size)} ${unit}`;
    return rest && size > 60 ? `${large} ${rest} ${smaller}` : large;
  }
  return `${whole} s`;
}

/** Seconds of GPUs as GPU-hours; more than none is never 0. */
export function gpuHours(seconds) {
  const hours = seconds / 3600;
  return `${hours < 0.01 ? "< 0.01" : hours.toFixed(2)} GPU-h`;
}

/** Time of day of a moment in milliseconds since the epoch: this browser's, of 24 hours. */
export function timeOfDay(milliseconds) {
  return new Date(milliseconds).toLocaleTimeString([], { hourCycle: "h23" });
}

/** The hour and minute of a wall time (s); with the day where it was another than that of `now`. */
export function clock(seconds, now) {
  const time = new Date(1000 * seconds);
  const text = time.toLocaleTimeString([], { hourCycle: "h23", hour: "2-digit", minute: "2-digit" });
  const today = new Date(1000 * now).toDateString() === time.toDateString();
  return today ? text : `${time.toLocaleDateString([], { weekday: "short" })} ${text}`;
}

/** 1 link, 2 links. */
export function count(number, word, many = `${word}s`) {
  return `${number} ${number === 1 ? word : many}`;
}
