// Nodes of the document, made by calls only: what a text says is never read as markup.

const SVG = "http://www.w3.org/2000/svg";

// Said outright, for tables whose rows are laid out in another way on a narrow screen keep what they are.
const ROLES = { table: "table", thead: "rowgroup", tbody: "rowgroup", tr: "row", td: "cell" };

export function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  if (name in ROLES) node.setAttribute("role", ROLES[name]);
  set(node, attributes);
  node.append(...children);
  return node;
}

export function draw(name, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, name);
  set(node, attributes);
  node.append(...children);
  return node;
}

// null and false take an attribute away. Nothing is written that is there already.
export function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === false) node.removeAttribute(name);
    else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
  }
}

export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// A column's heading. `whole`: the same in more words, where there is no room for them.
export function heading(text, name = "", whole = null) {
  return make("th", { scope: "col", role: "columnheader", class: name, title: whole, "aria-label": whole }, text);
}

// The nodes of a list, one for each item by its key: those that stay are updated where they are.
export class Rows {
  // `create(item)` gives {node, update(item)}. `before`: a node of the parent that stays behind them.
  constructor(parent, keyOf, create, before = null) {
    Object.assign(this, { parent, keyOf, create, before });
    this.views = new Map();
  }

  update(items) {
    const focused = document.activeElement;
    const views = new Map();
    for (const item of items) {
      const key = this.keyOf(item);
      if (views.has(key)) continue;
      const view = this.views.get(key) ?? this.create(item);
      view.update(item);
      views.set(key, view);
    }
    for (const [key, view] of this.views) if (!views.has(key)) view.node.remove();
    let next = this.before;
    for (const { node } of [...views.values()].reverse()) {
      if (node.parentNode !== this.parent || node.nextSibling !== next) this.parent.insertBefore(node, next);
      next = node;
    }
    this.views = views;
    // A node that is moved loses the focus.
    if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
  }
}
