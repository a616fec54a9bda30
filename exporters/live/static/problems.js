// What is wrong against the spec, and what the hardware does not answer.

import { bound, element, instruct, keep, put, say, symbol, point } from "./dom.js";
import { clock, count, percent } from "./figures.js";

const LEVELS = { critical: "wrong", warning: "costly", info: "notice" };
export const WORST = ["wrong", "costly", "notice", "unknown", "good"];

/** The findings that the banner does not say already. */
export const furtherOf = ({ findings, banner }) => findings.filter(
  (one) => !banner.some(({ sentence }) => sentence.startsWith(one.sentence)),
);

/** Each: since when, what to do where the banner does not say it, and its runbook page. */
export function showFindings(list, entries, { banner, paths, timestamp: now }) {
  const repeated = new Set(entries.filter(({ action }, place) => action === entries[place - 1]?.action));
  keep(list, entries, (entry) => `${entry.sentence} ${entry.device}`, makeFinding, (node, entry) => {
    const level = LEVELS[entry.severity] ?? "wrong";
    put(node, "data-level", level);
    point(node.firstChild, level);
    const [words, since, todo, calls] = node.lastChild.children;
    say(words, bound(`${entry.sentence}${partOf(entry, paths)}`));
    say(since, entry.since ? ` since ${clock(entry.since, now)}` : "");
    const said = repeated.has(entry) || banner.some(({ action }) => action === entry.action);
    doing(todo, said ? "" : entry.action, entry.alert);
    say(calls, bound(entry.notifies ?? ""));
  });
}

const NEAR = 0.5; // of the limit that is left, below which a narrow PCIe link costs nothing

/** Whether a PCIe link that is narrow or slow limits anything now, where its traffic is known. */
function partOf({ kind, gpu }, paths) {
  if (!kind?.startsWith("pcie_")) return "";
  const known = paths.filter((p) => p.path === "pcie" && p.gpu === gpu && p.ratio !== null);
  const ratio = Math.max(...known.map((p) => p.ratio));
  return known.length && ratio < NEAR ? `; not near its limit now (${percent(ratio)})` : "";
}

function makeFinding() {
  return element("li", {}, symbol("wrong"),
    element("div", {}, element("span"), element("span", { class: "muted" }), makeDo(), element("p", { class: "calls" })));
}

/** What to do, with a link to the page of the runbook that says more. */
export function makeDo() {
  return element("p", { class: "do" }, element("span"), " ", element("a", {}, "runbook"));
}

export function doing(node, action, alert) {
  const [words, link] = node.children;
  node.hidden = !action;
  instruct(words, action ? bound(`Do: ${action}`) : "");
  link.hidden = !alert;
  put(link, "href", alert ? `runbook.html#${alert}` : null);
}

/** What is wrong with one GPU, without its name: findings, and that others wait for its process. */
export function findingsOf(frame, gpu) {
  const found = frame.findings.filter(({ uuid }) => uuid === gpu.uuid)
    .map((one) => ({ text: `${one.text}${partOf(one, frame.paths)}`, level: LEVELS[one.severity], action: one.action }));
  const note = frame.notes[gpu.uuid];
  return note ? [{ text: note, level: "wrong" }, ...found] : found;
}

/** The list of what is not answered, each with its reason; how many for which in `counter`, and in
 * short in a `link` at the top. */
export function showAbsent(list, counter, link, { absent, reasons: words }) {
  const named = count(new Set(absent.map(({ metric }) => metric)).size, "metric");
  const reasons = new Map();
  for (const { reason } of absent) reasons.set(reason, (reasons.get(reason) ?? 0) + 1);
  const parts = [...reasons].sort((a, b) => b[1] - a[1]).map(([reason, n]) => `${words[reason]} (${n})`);
  say(counter, `${named}: ${parts.join(", ")}`);
  link.hidden = !absent.length;
  say(link, `${named} not known: why`);
  keep(list, absent, (entry) => `${entry.metric} ${entry.reason} ${entry.detail}`, makeAbsent,
    (node, entry) => {
      const [what, why] = node.children;
      say(what.firstChild, entry.metric);
      say(what.lastChild, entry.meaning ? ` ${entry.meaning}` : "");
      say(why, reasonOf(entry, words[entry.reason]));
    });
}

function makeAbsent() {
  return element("li", {}, element("p", {}, element("code"), element("span")), element("p"));
}

function reasonOf({ detail, where }, words) {
  return [where, words, detail].filter(Boolean).join(": ");
}
