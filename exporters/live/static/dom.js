// Nodes that are made once and changed only where something changed. Data enters as text alone.

const SVG = "http://www.w3.org/2000/svg";
const kept = new WeakMap(); // parent -> Map of key -> node

/** An HTML element with attributes and children; a string is a child of text. */
export function element(tag, attributes = {}, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function drawing(tag, attributes = {}, ...children) {
  return furnish(document.createElementNS(SVG, tag), attributes, children);
}

function furnish(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** A symbol of index.html by its id; `point` changes it. */
export function symbol(name) {
  return drawing(
    "svg",
    { class: "symbol", "aria-hidden": "true" },
    drawing("use", { href: `#${name}` }),
  );
}

export function point(svg, name) {
  put(svg.firstElementChild, "href", `#${name}`);
}

/** Let a node say this. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set an attribute; null or false takes it away, true leaves it empty. */
export function put(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
    return;
  }
  const text = value === true ? "" : String(value);
  if (node.getAttribute(name) !== text) node.setAttribute(name, text);
}

/** A custom property of a node's style: the policy of the page allows no style attribute. */
export function style(node, name, value) {
  if (node.style.getPropertyValue(name) !== value) node.style.setProperty(name, value);
}

/**
 * Let `parent` hold one node for each entry, in order, after what else it holds. A node is found
 * again by its key, so that focus, scroll position and memory stay as they are.
 */
export function keep(parent, entries, keyOf, make, update) {
  let nodes = kept.get(parent);
  if (!nodes) kept.set(parent, (nodes = new Map()));
  const keys = entries.map((entry, place) => keyOf(entry, place));
  const wanted = new Set(keys);
  for (const [key, node] of nodes) {
    if (wanted.has(key)) continue;
    node.remove();
    nodes.delete(key);
  }
  let last = parent.childNodes[parent.childNodes.length - nodes.size - 1] ?? null;
  for (const [place, entry] of entries.entries()) {
    const key = keys[place];
    if (!nodes.has(key)) nodes.set(key, make(entry));
    const node = nodes.get(key);
    update(node, entry);
    const next = last ? last.nextSibling : parent.firstChild;
    if (node !== next) parent.insertBefore(node, next);
    last = node;
  }
}

/** A figure and its unit stay on one line, and so do a price and its name. */
export function bound(text) {
  return text.replace(/(cost|lost:?) (?=[\d<])/g, (words) => words.replaceAll(" ", "\u00a0")).replace(/(\d) (?=%|[A-Z]?i?B|[smhdW]\b|min\b|°C)/g, "$1\u00a0");
}

const COMMAND = /\b((?:nvidia-smi|systemctl|smartctl|mlxlink|mdadm|ipmitool|dcgmi|lspci|dmesg|cat|ibstat|ethtool)(?: (?:--?[\w-]+(?=[ ,;.)]|$)|\/[\w/.-]*\w|\d+\b|[A-Z]{5,}\b|status|start|restart|nvlink|topo|sel list|diag|nvidia-fabricmanager|dgx-telemetry))+)/;

/** The same, its commands whole: they do not break, and one click selects one without what follows. */
export function instruct(node, text) {
  if (node.textContent === text) return;
  node.replaceChildren(...text.split(COMMAND).map((part, place) => (place % 2 ? element("code", { class: "command" }, part) : part)));
}

/** A list of sentences. */
export function sentences(list, texts, tag = "li") {
  keep(list, texts, (_, place) => place, () => element(tag), (node, text) => say(node, bound(text)));
}
