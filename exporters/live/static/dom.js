// Nodes that are made once and changed only where something changed. Data enters as text alone.

const SVG = "http://www.w3.org/2000/svg";
const kept = new WeakMap(); // parent -> Map of key -> node
const written = new WeakMap(); // node -> the text that it shows

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

/** A symbol of index.html; `mark` gives it a shape. */
export function symbol() {
  return drawing("svg", { class: "symbol", "aria-hidden": "true" }, drawing("use"));
}

/** Give a node its level, from which its colour follows, and the symbol in it a shape. */
export function mark(node, level, shape = level) {
  put(node, "data-level", level ?? "unknown");
  put(node.querySelector("use"), "href", `#${shape ?? "unknown"}`);
}

/** Show a name or a figure. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Show a sentence, or nothing. Its commands stand in backticks: one click selects a whole one. */
export function write(node, text) {
  node.hidden = !text;
  if (written.get(node) === text) return;
  written.set(node, text);
  const parts = (text ?? "").split("`");
  node.replaceChildren(...parts.map((part, place) => (place % 2 ? element("code", { class: "command" }, part) : bound(part))));
}

/** A figure and its unit stay on one line. */
function bound(text) {
  return text.replace(/(\d) (?=%|[A-Z]?i?B|[GM]b\b|[smhdW]\b|min\b|°C)/g, "$1\u00a0");
}

/** Sentences as a list. */
export function list(parent, texts) {
  parent.hidden = !texts.length;
  keep(parent, texts, (_, place) => place, () => element("li"), write);
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
