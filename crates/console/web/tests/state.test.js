import assert from 'node:assert/strict';
import { test } from 'node:test';
import { EVENTS, SAMPLES, downstream, empty, latest, merge } from '../state.js';

test('what a message does not name stays', () => {
  const one = merge(empty(), { now: 1, cluster: { name: 'a' }, relay: { downstreams: [{ name: 'n2' }] }, samples: [{ t: 1 }], events: [{ id: 1 }] }, true);
  const two = merge(one, { now: 2, samples: [{ t: 2 }] }, false);
  assert.deepEqual([two.now, two.cluster.name, two.samples.length, two.events.length], [2, 'a', 2, 1]);
  assert.equal(latest(two).t, 2);
  assert.equal(downstream(two, { name: 'n2' }).name, 'n2');
  assert.equal(downstream(two, { name: 'n3' }), null);
  assert.equal(one.samples.length, 1, 'the old state is as it was');
});

test('the first message of a stream is all there is', () => {
  const one = merge(empty(), { now: 9, cluster: { name: 'a' }, events: [{ id: 40 }], samples: [{ t: 9 }] }, true);
  // The process was restarted: it has no cluster, and its events begin at 1 again.
  const two = merge(one, { now: 10, relay: {}, events: [{ id: 1 }] }, true);
  assert.deepEqual([two.cluster, two.events.map((event) => event.id), two.samples], [null, [1], []]);
});

test('neither list grows without bound', () => {
  let state = empty();
  for (let n = 0; n < SAMPLES + 50; n += 1) state = merge(state, { samples: [{ t: n }], events: [{ id: n }] }, false);
  assert.deepEqual([state.samples.length, state.events.length, latest(state).t], [SAMPLES, EVENTS, SAMPLES + 49]);
});
