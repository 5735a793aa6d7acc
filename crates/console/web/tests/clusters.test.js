import assert from 'node:assert/strict';
import { test } from 'node:test';
import { broken, choices, chosen, seen, to } from '../clusters.js';
import { merge } from '../state.js';
import { verdict } from '../verdict.js';
import { full } from './samples.js';

const two = (primary) => full({ clusters: [{ name: 'local', primary: 'n1' }, { name: 'billing', primary }] });

test('the address names the cluster', () => {
  assert.deepEqual(['', '?cluster=', '?a=b&cluster=a%20b'].map(chosen), [null, null, 'a b']);
  assert.equal(to('/api/history?span=day', 'a&b'), '/api/history?span=day&cluster=a%26b');
  assert.deepEqual([to('/api/act', null), to('/api/act', 'a&b')], ['/api/act', '/api/act?cluster=a%26b']);
});

test('one cluster: nothing to choose, and all well', () => {
  const one = full({ clusters: [{ name: 'local', primary: 'n1' }] });
  assert.deepEqual([choices(one), choices(full()), broken(one)], [[], [], []]);
  assert.deepEqual(verdict(one), verdict(full()));
  assert.equal(seen(full()), null);
});

test('an action is for the cluster that is seen', () => assert.equal(seen(two('b1')), 'local'));

test('how the others are', () => {
  assert.deepEqual(choices(two(null)).map((one) => `${one.href} ${one.here} ${one.severity} ${one.text}`), ['/?cluster=local true good local', '/?cluster=billing false bad billing: no primary']);
  assert.equal(verdict(two('b1'))[0].severity, 'good');
  assert.deepEqual(verdict(two(null)), [{ severity: 'bad', text: 'The cluster billing has no primary: writes there wait.' }]);
});

test('clusters come and go', () => {
  const less = merge(two(null), { now: 2, clusters: [{ name: 'local', primary: 'n1' }] }, false);
  assert.deepEqual([choices(less), broken(less)], [[], []]);
});
