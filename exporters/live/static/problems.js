// What is wrong against the spec, and what the hardware does not answer.

import { element, keep, put, say, symbol, point } from "./dom.js";
import { count } from "./figures.js";

const LEVELS = { critical: "wrong", warning: "costly", info: "unknown" };
const NONE = "All expected hardware is present and at full speed.";

export function showFindings(list, findings) {
  const entries = findings.length
    ? findings.map(({ sentence, severity }) => ({ text: sentence, level: LEVELS[severity] ?? "wrong" }))
    : [{ text: NONE, level: "good" }];
  keep(list, entries, (entry) => entry.text, makeFinding, (node, entry) => {
    put(node, "data-level", entry.level);
    point(node.firstChild, entry.level);
    say(node.lastChild, entry.text);
  });
}

/** What is wrong with one GPU, without its name: findings, and that others wait for its process. */
export function findingsOf(frame, gpu) {
  const texts = frame.findings.filter(({ uuid }) => uuid === gpu.uuid).map(({ text }) => text);
  return [frame.notes[gpu.uuid] ?? [], texts].flat();
}

function makeFinding() {
  return element("li", {}, symbol("wrong"), element("span"));
}

/** The list of what is not answered, each with its reason; how many in `counter`. */
export function showAbsent(list, counter, absent) {
  say(counter, count(absent.length, "metric"));
  keep(list, absent, (entry) => `${entry.metric} ${entry.reason} ${entry.detail}`, makeAbsent,
    (node, entry) => {
      const [what, why] = node.children;
      say(what.firstChild, entry.metric);
      say(what.lastChild, entry.meaning ? ` ${entry.meaning}` : "");
      say(why, reasonOf(entry));
    });
}

function makeAbsent() {
  return element("li", {}, element("p", {}, element("code"), element("span")), element("p"));
}

function reasonOf({ reason, detail, gpus, devices }) {
  const all = gpus.length > 2 ? [count(gpus.length, "GPU")] : gpus.map((gpu) => `GPU ${gpu}`);
  const on = [...all, ...devices].join(", ");
  const why = `${reason.replaceAll("_", " ")}${detail ? `: ${detail}` : ""}`;
  return on ? `${on}: ${why}` : why;
}
