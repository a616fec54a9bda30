// What is wrong, with what follows from it folded below, and what the hardware does not answer.

import { element, keep, mark, put, say, symbol, write } from "./dom.js";
import { clock, span } from "./figures.js";

/** The clauses of the headline: each is a fault, or what a group of GPUs does. */
export function showHeadline(list, status) {
  showProblems(list, status.headline, status);
}

/** Findings of which the headline does not speak, without those that another one hides; how many. */
export function showFindings(list, status) {
  const said = new Set(status.headline.flatMap(({ findings }) => findings));
  const known = new Set(status.findings.map(({ id }) => id));
  const further = status.findings.filter(({ id, hidden_by: cause }) => !said.has(id) && !known.has(cause));
  showProblems(list, further, status);
  return further.length;
}

/** What is wrong with one GPU by the ids of its findings, without those that another of them hides. */
export function findingsOf({ findings }, { findings: ids }) {
  return findings.filter(({ id, hidden_by: cause }) => ids.includes(id) && !ids.includes(cause));
}

/** Problems (clauses or findings): since when, the first step, its alert, and what they hide. */
export function showProblems(list, problems, status) {
  keep(list, problems, ({ id }, place) => id ?? place, makeProblem, (node, problem) => {
    mark(node, problem.level);
    const [words, step, calls, rest] = node.lastChild.children;
    const [facts, link] = calls.children;
    write(words, problem.text);
    showStep(step, problem);
    const over = problem.over && "only the counter of its events is left";
    write(facts, [sinceOf(problem, status), over, problem.alert?.text].filter(Boolean).join(" · "));
    link.hidden = !problem.runbook;
    put(link, "href", problem.runbook && `runbook.html#${problem.runbook}`);
    const causes = problem.findings ?? [problem.id];
    const hidden = status.findings.filter(({ hidden_by: cause }) => causes.includes(cause));
    rest.hidden = !hidden.length;
    say(rest.firstChild, `and ${hidden.length} that follow${hidden.length === 1 ? "s" : ""} from it`);
    showProblems(rest.lastChild, hidden, status);
  });
}

/** Since when; a fault that stood at the agent's start may be older. */
export function sinceOf({ since, or_before: older, gaps_seconds: gaps }, { at }) {
  const words = since && `since ${clock(since, at)}${older ? " or before" : ""}`;
  return words && gaps ? `${words} (with gaps of ${span(gaps)} in all)` : words;
}

function makeProblem() {
  return element("li", { class: "problem" }, symbol(), element("div", {},
    element("p", { class: "words" }), element("p", { class: "do" }),
    element("p", { class: "calls" }, element("span"), " ", element("a", {}, "runbook")),
    element("details", {}, element("summary"), element("ul"))));
}

/** The first step of a problem, a group or a job. */
export const showStep = (node, { do: step }) => write(node, step && `Do: ${step}`);

/** What is not answered, each with its reason. */
export function showAbsences(list, counter, { absences, unknown }) {
  say(counter, unknown ?? "");
  keep(list, absences, ({ metric, text }) => `${metric} ${text}`,
    () => element("li", {}, element("p", {}, element("code"), " ", element("span")), element("p")),
    (node, { metric, meaning, text }) => {
      const [what, why] = node.children;
      say(what.firstChild, metric);
      say(what.lastChild, meaning);
      write(why, text);
    });
}
