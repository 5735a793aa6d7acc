// Tables: which rows, in which order, and how one moves about in them. What decides is pure; `Table` makes and keeps the elements.

import { h } from './dom.js';

/** What a cell says, as text: for searching, and for sorting where a column has no `sort`. Pure. */
export function textOf(column, row) {
  const text = column.text ? column.text(row) : column.key ? column.key(row) : column.cell(row);
  return text === null || text === undefined ? '' : String(text);
}

/** The order after a press on column `index`: upwards, downwards, then as it was. Numbers begin with the largest. Pure. */
export function pressed(order, index, number) {
  const first = number ? -1 : 1;
  if (order?.index !== index) return { index, direction: first };
  return order.direction === first ? { index, direction: -first } : null;
}

/** Rows in an order; without one those that are not well come first (`rank`: 0 is worst). Equals stay as they are. Pure. */
export function sorted(rows, columns, order, rank) {
  if (!order) return rank ? [...rows].sort((a, b) => rank(a) - rank(b)) : rows;
  const column = columns[order.index];
  const value = (row) => (column.sort ? column.sort(row) : column.number ? numeric(textOf(column, row)) : textOf(column, row));
  const known = (one) => one !== null && one !== undefined && !Number.isNaN(one);
  return [...rows].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    // What has no value is last, whichever way.
    if (!known(x) || !known(y)) return Number(known(y)) - Number(known(x));
    const than = typeof x === 'number' && typeof y === 'number' ? x - y : String(x).localeCompare(String(y), 'en', { numeric: true });
    return order.direction * than;
  });
}

function numeric(text) {
  return /^-?[\d,.]+/.test(text) ? Number(text.replaceAll(',', '').match(/^-?[\d.]+/)[0]) : NaN;
}

/** Rows in which all words of a text are found, whatever their case. Pure. */
export function fitting(rows, columns, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean).slice(0, 16);
  if (words.length === 0) return rows;
  return rows.filter((row) => {
    const said = columns.filter((column) => !column.silent).map((column) => textOf(column, row)).join('\n').toLowerCase();
    return words.every((word) => said.includes(word));
  });
}

/** The row to go to from row `index` of `length` by a key; null: the key is none of ours. -1: no row yet. Pure. */
export function moved(index, key, length) {
  const to = { ArrowDown: index + 1, ArrowUp: index < 0 ? length - 1 : index - 1, Home: 0, End: length - 1, PageDown: index + 10, PageUp: index - 10 }[key];
  return to === undefined || length === 0 ? null : Math.max(0, Math.min(length - 1, to));
}

/** Whether a key press means: to the search field. Not while somebody types, nor with Ctrl, Alt or Meta. Pure. */
export function wantsSearch({ key, ctrlKey, altKey, metaKey }, { editable, dialog }) {
  return key === '/' && !ctrlKey && !altKey && !metaKey && !editable && !dialog;
}

/** What all tables of the page of the cluster are searched for. */
let wanted = '';
const searched = new Set();

export function search(text) {
  wanted = text;
  for (const table of searched) table.draw();
}

/**
 * A table that is kept: rows by key, cells replaced only where they differ.
 * Columns: `{title, cell(row) -> text or node, key(row) -> text that tells whether a node is another, text(row): what it says,
 * sort(row) -> number or text, silent: nothing to sort by or search, number, wide, minor: not on a phone, broad: a line of its
 * own there}`. `rank(row)`: 0 is what must be seen first. `searchable`: by the page's field.
 */
export class Table {
  constructor(caption, columns, { nothing, rowKey, rank, searchable } = {}) {
    this.columns = columns;
    this.rowKey = rowKey;
    this.rank = rank;
    this.rows = new Map();
    this.list = [];
    this.order = null;
    this.searchable = searchable;
    if (searchable) searched.add(this);
    this.nothing = nothing ?? 'Nothing.';
    this.body = h('tbody');
    this.empty = h('p', { class: 'nothing' }, this.nothing);
    // On a phone rows become cards, and a table that is none to the eye must stay one to the ear: hence the roles.
    this.heads = columns.map((column, index) => h('th', { scope: 'col', role: 'columnheader', class: classOf(column) },
      column.silent ? column.title : h('button', { type: 'button', class: 'sort', onclick: () => this.press(index) }, column.title)));
    this.body.setAttribute('role', 'rowgroup');
    this.table = h('table', { role: 'table' }, h('caption', { class: 'visually-hidden' }, caption), h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' }, this.heads)), this.body);
    this.element = h('div', { class: 'scroll stack', tabindex: '0', role: 'region', 'aria-label': caption, onkeydown: (event) => this.key(event) }, this.table, this.empty);
  }

  press(index) {
    this.order = pressed(this.order, index, this.columns[index].number);
    this.heads.forEach((head, at) => {
      if (this.order?.index === at) head.setAttribute('aria-sort', this.order.direction > 0 ? 'ascending' : 'descending');
      else head.removeAttribute('aria-sort');
    });
    this.draw();
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches('input, select, textarea')) return;
    const row = event.target.closest('tbody tr');
    if (event.target.matches('button.sort') && ['ArrowLeft', 'ArrowRight'].includes(event.key)) {
      const all = [...this.table.querySelectorAll('button.sort')].filter((one) => one.offsetParent);
      all[all.indexOf(event.target) + (event.key === 'ArrowRight' ? 1 : -1)]?.focus();
      event.preventDefault();
      return;
    }
    if (event.key === 'Enter' && event.target === row) {
      (row.querySelector('a') ?? row.querySelector('button'))?.click();
      return;
    }
    const rows = [...this.body.children];
    const to = moved(rows.indexOf(row), event.key, rows.length);
    if (to === null) return;
    event.preventDefault();
    rows[to].focus();
  }

  show(list) {
    this.list = list;
    this.draw();
  }

  draw() {
    const fit = this.searchable ? fitting(this.list, this.columns, wanted) : this.list;
    this.fill(sorted(fit, this.columns, this.order, this.rank));
    this.empty.textContent = this.list.length > 0 ? 'No row has what is searched for.' : this.nothing;
  }

  fill(list) {
    // A row that is moved loses the focus.
    const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
    const seen = new Set();
    let before = null;
    for (const row of list) {
      const key = this.rowKey(row);
      seen.add(key);
      let kept = this.rows.get(key);
      if (!kept) {
        kept = { element: h('tr', { role: 'row', tabindex: '-1' }), texts: [], cells: [] };
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
    if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });
    this.table.hidden = list.length === 0;
    this.empty.hidden = list.length > 0;
  }
}

function classOf(column) {
  return [column.number ? 'number' : '', column.wide ? 'wide' : '', column.minor ? 'minor' : '', column.broad ? 'broad' : ''].filter(Boolean).join(' ') || null;
}
