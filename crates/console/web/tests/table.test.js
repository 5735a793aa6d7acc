import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fitting, moved, pressed, sorted, textOf, wantsSearch } from '../table.js';

const columns = [
  { title: 'Name', cell: (row) => row.name },
  { title: 'Size', cell: (row) => row.shown ?? row.size, sort: (row) => row.size, number: true },
  { title: 'State', key: (row) => `${row.state}!`, cell: () => { throw new Error('an element is not made to be compared'); }, text: (row) => row.state },
  { title: 'Do', cell: () => 'secret button', silent: true },
  { title: 'Count', cell: (row) => row.count ?? '–', number: true },
];
const list = [
  { name: 'n10', size: 5, state: 'good', count: '1,000' },
  { name: 'n2', size: null, state: 'bad', count: '20' },
  { name: 'n1', size: 50, state: 'good' },
];
const names = (rows) => rows.map((row) => row.name).join(' ');

test('the order', () => {
  for (const [what, order, expected] of [
    ['as it is', null, 'n10 n2 n1'],
    ['names with numbers', { index: 0, direction: 1 }, 'n1 n2 n10'],
    ['downwards', { index: 0, direction: -1 }, 'n10 n2 n1'],
    ['by what a column says to sort by, unknown last', { index: 1, direction: 1 }, 'n10 n1 n2'],
    ['and unknown last downwards, too', { index: 1, direction: -1 }, 'n1 n10 n2'],
    ['texts of columns of elements', { index: 2, direction: 1 }, 'n2 n10 n1'],
    ['numbers as they are written', { index: 4, direction: 1 }, 'n2 n10 n1'],
  ]) assert.equal(names(sorted(list, columns, order)), expected, what);
  const rank = (row) => (row.state === 'bad' ? 0 : 3);
  assert.equal(names(sorted(list, columns, null, rank)), 'n2 n10 n1', 'what is not well comes first, the others stay');
  assert.equal(names(sorted(list, columns, { index: 0, direction: 1 }, rank)), 'n1 n2 n10', 'who presses a column gets that order');
  assert.equal(names(list), 'n10 n2 n1', 'the list itself is left alone');
});

test('presses on columns', () => {
  let order = pressed(null, 1, false);
  assert.deepEqual(order, { index: 1, direction: 1 });
  order = pressed(order, 1, false);
  assert.deepEqual(order, { index: 1, direction: -1 });
  assert.equal(pressed(order, 1, false), null, 'the third press: as it was');
  assert.deepEqual(pressed(order, 2, true), { index: 2, direction: -1 }, 'of numbers the largest first');
});

test('what is searched for', () => {
  for (const [text, expected] of [['', 'n10 n2 n1'], ['  ', 'n10 n2 n1'], ['N1', 'n10 n1'], ['good n10', 'n10'], ['good bad', ''], ['1,000', 'n10'], ['secret', ''], ['!', '']]) {
    assert.equal(names(fitting(list, columns, text)), expected, JSON.stringify(text));
  }
  assert.equal(textOf(columns[1], { shown: null, size: null }), '');
});

test('keys', () => {
  for (const [index, key, length, to] of [
    [-1, 'ArrowDown', 3, 0], [-1, 'ArrowUp', 3, 2], [0, 'ArrowDown', 3, 1], [2, 'ArrowDown', 3, 2], [0, 'ArrowUp', 3, 0], [1, 'Home', 3, 0], [0, 'End', 3, 2], [0, 'PageDown', 30, 10], [5, 'PageUp', 30, 0], [0, 'ArrowDown', 0, null], [0, 'x', 3, null],
  ]) assert.equal(moved(index, key, length), to, `${index} ${key} ${length}`);
  const nowhere = { editable: false, dialog: false };
  for (const [event, where, expected] of [
    [{ key: '/' }, nowhere, true], [{ key: 'a' }, nowhere, false], [{ key: '/', ctrlKey: true }, nowhere, false], [{ key: '/', metaKey: true }, nowhere, false], [{ key: '/' }, { editable: true, dialog: false }, false], [{ key: '/' }, { editable: false, dialog: true }, false],
  ]) assert.equal(wantsSearch(event, where), expected, JSON.stringify([event, where]));
});
