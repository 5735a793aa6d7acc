import assert from 'node:assert/strict';
import { test } from 'node:test';
import { columns, rows, said } from '../statements.js';
import { sorted } from '../table.js';

const one = (text, calls, total, more = {}) => ({ text, calls, total_micros: total, longest_micros: total, rows: 0, errors: 0, on_primary: 0, ...more });
const answer = { total: 3, micros: 1000, statements: [one('select ?', 4, 600, { on_primary: 1 }), one('update t', 1, 300, { on_primary: 1 }), one('never ended', 0, 0)] };

test('means and shares', () => {
  const found = rows(answer);
  assert.deepEqual(found.map((row) => [row.mean, row.share, row.on_replicas]), [[150, 0.6, 3], [300, 0.3, 0], [null, 0, 0]]);
  assert.deepEqual(rows({ total: 0, micros: 0, statements: [one('x', 1, 0)] })[0].share, 0, 'no division by nothing');
});

test('sorted by what is meant, not by what is written', () => {
  const index = columns.findIndex((column) => column.title === 'Mean');
  assert.deepEqual(sorted(rows(answer), columns, { index, direction: -1 }).map((row) => row.text), ['update t', 'select ?', 'never ended']);
  const total = columns.findIndex((column) => column.title === 'Total');
  const long = rows({ total: 2, micros: 1, statements: [one('short', 1, 900), one('long', 1, 2_000_000)] });
  assert.deepEqual(sorted(long, columns, { index: total, direction: -1 }).map((row) => row.text), ['long', 'short'], '2.0 s is more than 900 µs');
});

test('what is said above them', () => {
  assert.equal(said({ statements: [], total: 0 }), '');
  assert.ok(said(answer).includes('without literals') && !said(answer).includes('The '));
  assert.ok(said({ statements: answer.statements, total: 1200 }).includes('The 3 of 1,200'));
});
