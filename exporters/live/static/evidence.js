// Why a GPU is judged as it is: the dialog behind each row.

import { showDay } from "./day.js";
import { element, list, mark, say, symbol, write } from "./dom.js";
import { span } from "./figures.js";
import { findingsOf, showProblems, sinceOf } from "./findings.js";
import { putState, shapeOf, showMeters, showProcesses } from "./gpus.js";
import { showPathsOf } from "./paths.js";
import { canvas, drawStates, showShares } from "./strip.js";

/** The dialog and the GPU that it shows. */
export class Evidence {
  constructor(dialog) {
    this.dialog = dialog;
    this.uuid = null;
    this.parts = makeParts();
    dialog.querySelector("#evidence-body").append(...Object.values(this.parts));
    dialog.querySelector("#evidence-close").addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog && event.clientX < dialog.getBoundingClientRect().left) dialog.close();
    });
    dialog.addEventListener("close", () => {
      this.uuid = null;
    });
  }

  open(uuid, status, history) {
    this.uuid = uuid;
    this.dialog.showModal();
    this.dialog.scrollTop = 0;
    this.show(status, history);
  }

  /** What this status says of the GPU; a GPU that is gone keeps what was said last. */
  show(status, history) {
    const gpu = status.gpus.find(({ uuid }) => uuid === this.uuid);
    if (!gpu) return;
    const { lead, faults, why, doubts, advice, who, past, day, meters, paths, identity } = this.parts;
    putState(this.dialog, gpu);
    say(this.dialog.querySelector("#evidence-title"), `GPU ${gpu.gpu}`);
    mark(lead, gpu.level, shapeOf(gpu));
    write(lead.lastChild, [gpu.text, sinceOf(gpu, status)].filter(Boolean).join(" "));
    showProblems(faults.children[1], findingsOf(status, gpu), status);
    write(faults.lastChild, gpu.note);
    write(advice.lastChild, gpu.do);
    list(why.lastChild, gpu.why);
    list(doubts.lastChild, gpu.doubts);
    showProcesses(who.lastChild, gpu);
    drawStates(past.children[1], history, gpu.uuid);
    showShares(past.lastChild, history.totals([gpu.uuid]), (_, share, all) => `${share} of ${span(all)}`);
    day.hidden = !showDay(day.children[1], Date.parse(status.at), gpu.uuid);
    meters.hidden = !showMeters(meters.lastChild, gpu, history);
    paths.hidden = !showPathsOf(paths.querySelector("tbody"), status, gpu.gpu);
    write(identity.children[1], [gpu.model, gpu.basis].filter(Boolean).join(". "));
    say(identity.querySelector("code"), gpu.uuid);
    faults.hidden = !gpu.findings.length && !gpu.note;
    for (const part of [advice, why, doubts, who]) part.hidden = part.lastChild.hidden;
  }
}

function makeParts() {
  const section = (title, ...nodes) => element("section", {}, element("h3", {}, title), ...nodes);
  const ends = ["15 min ago", "now"].map((words) => element("span", {}, words));
  return {
    lead: element("p", { class: "lead" }, symbol(), element("span")),
    faults: section("What is wrong", element("ul", { class: "problems" }), element("p")),
    why: section("Why", element("ul", { class: "reasons" })),
    doubts: section("What could not be seen", element("ul", { class: "reasons" })),
    advice: section("What to do", element("p", { class: "advice" })),
    who: section("Processes on it", element("ul", { class: "reasons" })),
    past: section("The last 15 minutes", canvas("strip tall"), element("p", { class: "axis" }, ...ends), element("ul", { class: "shares" })),
    day: section("The last 24 hours", element("ol", { class: "day" }), element("p", { class: "key" })),
    meters: section("Figures", element("dl", { class: "meters" })),
    paths: section("Data paths (line on a bar: saturation threshold)", element("table", {}, element("tbody"))),
    identity: section("This GPU", element("p"), copied()),
  };
}

/** An identity that a click copies; where the browser does not let it, it is selected. */
function copied() {
  const text = element("code");
  const button = element("button", { type: "button", class: "copy" }, "Copy");
  button.addEventListener("click", async () => {
    window.getSelection().selectAllChildren(text);
    if (navigator.clipboard) await navigator.clipboard.writeText(text.textContent).catch(() => {});
    else document.execCommand("copy");
    say(button, "Copied");
    setTimeout(() => say(button, "Copy"), 2000);
  });
  return element("p", {}, text, " ", button);
}
