// Making and keeping elements. Texts are texts: nothing here makes markup of a string.

const SVG = 'http://www.w3.org/2000/svg';

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function byId(id) {
  return document.getElementById(id);
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (value === null || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** Replaces what is in an element if `key` (text) is another than the last time: what has not changed keeps focus. */
export function replace(element, key, make) {
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  element.replaceChildren(...[make()].flat());
}

/** A word with a mark that does not rest on colour alone. */
export function state(severity, text) {
  const mark = { good: '●', warning: '▲', bad: '✖', info: '○', plain: '' }[severity] ?? '';
  return h('span', { class: `state ${severity}` }, h('span', { 'aria-hidden': 'true' }, mark), ' ', h('b', null, text));
}
