// Elements are made and filled here and nowhere else: names of Ops, texts of errors and other values from callers are set as text and never read as HTML.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element of a class, with children: elements or texts. */
export function make(tag, className = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

/** An SVG element with attributes. */
export function draw(tag, attributes = {}) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** Set a text; an element that says so already is left alone. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Make the children of `parent` those of `keys`, in order. Whoever stays is not touched, so that
 * it keeps the focus and stays open.
 */
export function arrange(parent, keys, create) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const wanted = new Set(keys);
  for (const [key, child] of known) if (!wanted.has(key)) child.remove();
  let next = parent.firstElementChild;
  for (const key of keys) {
    let child = known.get(key);
    if (child === undefined) {
      child = create(key);
      child.dataset.key = key;
    }
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
  }
}
