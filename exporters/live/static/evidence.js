// Why a GPU is judged as it is: the dialog behind each tile.

import { showDay } from "./day.js";
import { element, instruct, keep, point, put, say, sentences, symbol } from "./dom.js";
import { span } from "./figures.js";
import { meterList, showMeters } from "./meters.js";
import { deviceName, makeFlow, showFlow } from "./paths.js";
import { findingsOf } from "./problems.js";
import { nameOf } from "./states.js";
import { canvas, drawStates } from "./strip.js";
import { putState, showShares, sinceOf, stateOf, symbolOf } from "./tiles.js";

const QUALITIES = {
  gpm: "Judged by GPM: activity of the engines and of the multiprocessors.",
  nvml: "Judged by NVML's utilization, which counts copies and spinning too, and by power.",
};
const METERS = ["activity", "sm", "tensor", "memory", "power", "temperature", "clock"];

/** The dialog and the GPU that it shows. */
export class Evidence {
  constructor(dialog) {
    this.dialog = dialog;
    this.uuid = null;
    this.parts = makeParts();
    dialog.querySelector("#evidence-body").append(...Object.values(this.parts));
    dialog.querySelector("#evidence-close").addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog && event.clientX < dialog.getBoundingClientRect().left) {
        dialog.close();
      }
    });
    dialog.addEventListener("close", () => {
      this.uuid = null;
    });
  }

  open(uuid, frame, history) {
    this.uuid = uuid;
    this.dialog.showModal();
    this.dialog.scrollTop = 0;
    this.show(frame, history);
  }

  /** What this tick says of the GPU; a GPU that is gone keeps what was said last. */
  show(frame, history) {
    const gpu = frame?.gpus.find((entry) => entry.uuid === this.uuid);
    if (!gpu) return;
    const { lead, faults, why, doubts, advice, who, past, day, meters, paths, identity } = this.parts;
    putState(this.dialog, gpu);
    say(this.dialog.querySelector("#evidence-title"), `GPU ${gpu.gpu}`);
    point(lead.firstChild.firstChild, symbolOf(gpu));
    say(lead.lastChild, `${stateOf(gpu)} ${sinceOf([gpu], frame)}`.trim());
    const found = findingsOf(frame, gpu);
    const todo = [...new Set([...found.map(({ action }) => action), gpu.advice].filter(Boolean))].join(" Also: ");
    list(faults, found.map(({ text }) => text));
    list(why, gpu.evidence);
    list(doubts, gpu.doubts);
    section(advice, todo);
    instruct(advice.lastChild, todo);
    showPast(past, gpu, history);
    day.hidden = !showDay(day.children[1], frame.timestamp, gpu.uuid);
    list(who, gpu.processes.map(wordsOfProcess));
    showMeters(meters.lastChild, gpu, history, METERS);
    showFlows(paths, frame.paths.filter((p) => p.gpu === gpu.gpu));
    say(identity.lastChild.firstChild, `${gpu.model}. ${QUALITIES[gpu.quality] ?? ""}`);
    say(identity.querySelector("code"), gpu.uuid);
  }
}

function makeParts() {
  const title = (words) => element("h3", {}, words);
  return {
    lead: element("p", { class: "lead" }, element("span", { class: "badge" }, symbol("unknown")), element("span")),
    faults: element("section", {}, title("What is wrong"), element("ul", { class: "reasons" })),
    why: element("section", {}, title("Why"), element("ul", { class: "reasons" })),
    doubts: element("section", {}, title("What could not be seen"), element("ul", { class: "reasons" })),
    advice: element("section", {}, title("What to do"), element("p", { class: "advice" })),
    who: element("section", {}, title("Processes on it"), element("ul", { class: "reasons" })),
    past: element(
      "section",
      {},
      title("The last 15 minutes"),
      canvas("strip tall"),
      element("p", { class: "axis" }, element("span", {}, "15 min ago"), element("span", {}, "now")),
      element("ul", { class: "shares" }),
    ),
    day: element("section", {}, title("The last 24 hours"), element("ol", { class: "day" }), element("p", { class: "key" })),
    meters: element("section", {}, title("Figures"), meterList()),
    paths: element("section", {}, title("Data paths (line on a bar: saturation threshold)"), element("table", {}, element("tbody"))),
    identity: element("section", {}, title("This GPU"), element("p", {}, element("span"), " ", copied())),
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
  return element("span", { class: "identity" }, text, " ", button);
}

/** `python3, pid 4711, of ada, 9.5 GiB`. */
function wordsOfProcess({ pid, program, bytes, user }) {
  const held = bytes === null ? "" : `${(bytes / 1024 ** 3).toFixed(1)} GiB`;
  return [program || "process", `pid ${pid}`, user && `of ${user}`, held].filter(Boolean).join(", ");
}

function section(node, content) {
  node.hidden = !content || !content.length;
}

function list(node, texts) {
  section(node, texts);
  sentences(node.querySelector("ul"), texts ?? []);
}

/** The strip, and the share of the observed time that each state took. */
function showPast(node, gpu, history) {
  drawStates(node.children[1], history, gpu.uuid);
  showShares(node.lastChild, history.totals([gpu.uuid]), 0, (a, b) => b[1] - a[1],
    (_, share, all) => `${share} of ${span(all)}`);
}

function showFlows(node, flows) {
  section(node, flows);
  const body = node.lastChild.firstChild;
  keep(body, flows, (flow) => `${flow.path}/${flow.device}/${flow.direction}`,
    (flow) => element(
      "tr",
      {},
      element("th", { scope: "row" }, `${nameOf(flow.path)} ${flow.direction}`),
      element("td", {}, makeFlow()),
    ),
    (row, flow) => {
      put(row, "title", `${deviceName(flow)}: ${flow.origin ?? ""} ${flow.source ?? ""}`.trim());
      showFlow(row.lastChild.firstChild, flow);
      say(row.querySelector(".gauge"), flow.limit === null ? "no limit known" : "");
    });
}
