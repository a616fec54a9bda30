// Figures and times as people read them.

const UNITS = {
  bytes: [(v) => (v / 1024 ** 3).toFixed(1), " GiB"],
  watts: [(v) => v.toFixed(0), " W"],
  celsius: [(v) => v.toFixed(0), " °C"],
  hertz: [(v) => (v / 1e9).toFixed(2), " GHz"],
};

/** A value, its limit and their unit: ["98", " of 300", " W"], ["12 %", "", ""]; a dash where it is not known. */
export function reading(value, limit, unit) {
  if (value === null) return ["–", "", ""];
  if (unit === "ratio") return [percent(value), "", ""];
  const [of, name] = UNITS[unit];
  return [of(value), limit === null ? "" : ` of ${of(limit)}`, name];
}

/** 0-1 as a percentage. */
export function percent(ratio) {
  const share = 100 * ratio;
  return share > 0 && share < 1 ? "< 1 %" : `${share.toFixed(0)} %`;
}

const SPANS = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];

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

/** Time of day of a moment (ms since the epoch): this browser's, of 24 hours. */
export function timeOfDay(moment) {
  return new Date(moment).toLocaleTimeString([], { hourCycle: "h23" });
}

/** The same with the date and the zone. */
export function dateAndTime(moment) {
  return new Date(moment).toLocaleString([], { dateStyle: "medium", timeStyle: "long", hourCycle: "h23" });
}

/** The hour and minute of a moment (ISO 8601, or ms); with the day where it is not that of `now`. */
export function clock(moment, now) {
  const time = new Date(moment);
  const text = time.toLocaleTimeString([], { hourCycle: "h23", hour: "2-digit", minute: "2-digit" });
  const today = new Date(now).toDateString() === time.toDateString();
  return today ? text : `${time.toLocaleDateString([], { weekday: "short" })} ${text}`;
}
