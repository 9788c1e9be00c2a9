// Elements made without any text ever being read as markup.

export const find = (id) => document.getElementById(id);

export function make(tag, { text, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  if (text !== undefined) element.textContent = text;
  element.append(...children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function shape(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// A number as people read it; an unknown one is a dash, never 0.
export function shown(value, digits = 0) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits, useGrouping: value >= 10000 });
}

export const pace = (value) => shown(value, value > 0 && value < 100 ? 1 : 0);
export const percent = (share) => (Number.isFinite(share) ? `${shown(100 * share)} %` : "–");

// Colours end at the fifth position: deeper drafts are rare, and look like it.
export const DEEPEST = 5;
export const originClass = (origin) => (origin === null ? "" : `o${Math.min(origin, DEEPEST)}`);
export const originName = (origin) => (origin === 0 ? "target" : `draft ${origin}`);
