// What the page of configuration entries decides.

import assert from 'node:assert/strict';
import { test } from 'node:test';

// The page's elements are made when the module is read; here only its pure functions are asked.
const element = () => ({ append() {}, addEventListener() {}, setAttribute() {}, replaceChildren() {}, dataset: {} });
globalThis.document = { createElement: element, createElementNS: element, getElementById: element };
const { href, marked, place, standing } = await import('../configuration.js');

test('places and addresses', () => {
  for (const [hash, expected] of [
    ['#/configuration', { view: 'entries', namespace: 'default', group: '', q: '' }],
    ['#/configuration?namespace=shop&group=g&q=app%20x', { view: 'entries', namespace: 'shop', group: 'g', q: 'app x' }],
    ['#/entry/shop/g/conf%2Fapp.yaml', { view: 'entry', namespace: 'shop', group: 'g', id: 'conf/app.yaml' }],
    ['#/entry/shop/g', { view: 'entries', namespace: 'default', group: '', q: '' }],
    ['#/entry/shop/%zz/a', { view: 'entry', namespace: 'shop', group: '%zz', id: 'a' }],
  ]) assert.deepEqual(place(hash), expected, hash);
  const entry = { namespace: 'shop', group: 'g h', id: 'conf/a b' };
  assert.deepEqual(place(href(entry)), { view: 'entry', ...entry });
});

test('versions', () => {
  const version = (number, restored, by = null) => ({ version: number, restored, removed_by: by });
  assert.equal(standing(version(3, 0), 3), 'current');
  assert.equal(standing(version(3, 1), 3), 'current, content of 1');
  assert.equal(standing(version(2, 0), 3), '');
  assert.equal(standing(version(2, 1), 3), 'content of 1');
  assert.equal(standing(version(3, 0, 'ann'), 3), 'removed by ann');
});

test('a comparison has marks', () => {
  const lines = [{ change: 'same', text: 'a' }, { change: 'removed', text: 'b' }, { change: 'added', text: '' }, { change: 'gap', text: '' }];
  assert.deepEqual(marked(lines).map((line) => line.text), ['  a', '- b', '+ ', '⋯']);
});
