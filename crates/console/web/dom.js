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

/**
 * A table that is kept: rows by key, cells replaced only where they differ.
 * Columns: `{title, cell(row) -> text or node, key(row) -> text that tells whether a node is another, number, wide, minor: not
 * on a phone, broad: a line of its own there}`.
 */
export class Table {
  constructor(caption, columns, { nothing, rowKey, onRow } = {}) {
    this.columns = columns;
    this.rowKey = rowKey;
    this.rows = new Map();
    this.onRow = onRow;
    this.body = h('tbody');
    this.empty = h('p', { class: 'nothing' }, nothing ?? 'Nothing.');
    // On a phone rows become cards, and a table that is none to the eye must stay one to the ear: hence the roles.
    const heads = columns.map((column) => h('th', { scope: 'col', role: 'columnheader', class: classOf(column) }, column.title));
    this.body.setAttribute('role', 'rowgroup');
    this.table = h('table', { role: 'table' }, h('caption', { class: 'visually-hidden' }, caption), h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' }, heads)), this.body);
    this.element = h('div', { class: 'scroll stack', tabindex: '0', role: 'region', 'aria-label': caption }, this.table, this.empty);
  }

  show(list) {
    const seen = new Set();
    let before = null;
    for (const row of list) {
      const key = this.rowKey(row);
      seen.add(key);
      let kept = this.rows.get(key);
      if (!kept) {
        kept = { element: h('tr', { role: 'row' }), texts: [], cells: [] };
        this.columns.forEach((column, index) => {
          const cell = index === 0 ? h('th', { scope: 'row', role: 'rowheader', class: classOf(column) }) : h('td', { role: 'cell', class: classOf(column), 'data-title': column.title });
          kept.cells.push(cell);
          kept.element.append(cell);
        });
        this.rows.set(key, kept);
      }
      this.columns.forEach((column, index) => {
        const content = column.key ? column.key(row) : column.cell(row);
        if (kept.texts[index] === content) return;
        kept.texts[index] = content;
        const made = column.key ? column.cell(row) : content;
        kept.cells[index].replaceChildren(...[made].flat().filter((node) => node !== null && node !== undefined));
      });
      const place = before ? before.nextSibling : this.body.firstChild;
      if (place !== kept.element) this.body.insertBefore(kept.element, place);
      before = kept.element;
    }
    for (const [key, kept] of this.rows) {
      if (!seen.has(key)) {
        kept.element.remove();
        this.rows.delete(key);
      }
    }
    this.table.hidden = list.length === 0;
    this.empty.hidden = list.length > 0;
  }
}

function classOf(column) {
  return [column.number ? 'number' : '', column.wide ? 'wide' : '', column.minor ? 'minor' : '', column.broad ? 'broad' : ''].filter(Boolean).join(' ') || null;
}
