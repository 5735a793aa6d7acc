import assert from 'node:assert/strict';
import { test } from 'node:test';

// The page's elements are made when the module is read; here only its pure functions are asked.
const element = () => ({ append() {}, addEventListener() {}, setAttribute() {}, replaceChildren() {}, dataset: {} });
globalThis.document = { createElement: element, createElementNS: element, getElementById: element };
const { check, href, place, standing, transition } = await import('../services.js');

test('addresses lead where they say', () => {
  for (const [hash, expected] of [
    ['#/services', { view: 'services', q: '', namespace: '' }],
    ['#/services?q=zone%3Da%20web&namespace=shop', { view: 'services', q: 'zone=a web', namespace: 'shop' }],
    ['#/service/shop/web', { view: 'service', service: 'shop/web' }],
    ['#/instance/shop/a%2Fb', { view: 'instance', id: 'shop/a/b' }],
    ['#/service/shop', { view: 'services', q: '', namespace: '' }],
    ['#/instance/%E0/%E0', { view: 'instance', id: '%E0/%E0' }],
    ['', { view: 'services', q: '', namespace: '' }],
  ]) assert.deepEqual(place(hash), expected, hash);
  for (const key of ['default/web', 'a b/c?d#e', 'n/ä/ö']) assert.equal(place(href('instance', key)).id, key);
});

test('how an instance is', () => {
  const one = { health: 'passing', isolate: false, weight: 100 };
  for (const [more, text] of [[{}, 'good passing'], [{ isolate: true, health: 'critical' }, 'warning isolated'], [{ health: 'critical' }, 'bad critical'], [{ weight: 0 }, 'warning weight 0'], [{ health: 'warning' }, 'warning warning']]) {
    const found = standing({ ...one, ...more });
    assert.equal(`${found.severity} ${found.text}`, text);
  }
});

test('what became of it', () => {
  const usual = { health: 'passing', isolate: false };
  for (const [from, to, text] of [[usual, { ...usual, health: 'critical' }, 'passing → critical'], [usual, { ...usual, isolate: true }, 'isolated'], [{ ...usual, isolate: true }, usual, 'used again'], [usual, null, 'deregistered']]) {
    assert.equal(transition({ from, to }).text, text);
  }
  assert.equal(check(null), 'none: its health stays as reported');
  assert.equal(check({ type: 'http', url: '/up', interval: '10s', deregister_after: null }), 'HTTP, url /up, interval 10s');
});
