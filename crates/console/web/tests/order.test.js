import assert from 'node:assert/strict';
import { test } from 'node:test';
import { clientRank, instanceRank, isOpen, nodeRank, notes, poolRank, poolState, serviceRank, serviceState } from '../order.js';
import { empty } from '../state.js';
import { full, mariadb, node, pool } from './samples.js';

/** Each is before the next one. */
const ordered = (name, rank, list) => test(name, () => list.forEach((one, index) => index > 0 && assert.ok(rank(list[index - 1]) < rank(one), JSON.stringify(one))));

ordered('nodes', nodeRank, [node('a', 'unknown'), node('a', 'replica', { usable: false }), node('a', 'replica')]);
ordered('pools', poolRank, [pool({ paused: true }), pool({ waiting: 1, oldest_wait_ms: 20 }), pool()]);
ordered('services', serviceRank, [{ instances: 3, usable: 0, critical: 0 }, { instances: 3, usable: 2, critical: 1 }, { instances: 3, usable: 2, critical: 0 }, { instances: 0, usable: 0, critical: 0 }]);
const instance = (more) => ({ health: 'passing', isolate: false, weight: 100, ...more });
ordered('instances', instanceRank, [instance({ health: 'critical' }), instance({ health: 'critical', isolate: true }), instance({ isolate: true }), instance({ health: 'warning' }), instance({ weight: 0 }), instance({})]);
ordered('clients', clientRank, [{ state: 'waiting' }, { state: 'active' }, { state: 'idle' }]);

test('equals', () => {
  assert.equal(nodeRank(node('a', 'unknown')), nodeRank(node('a', 'stale')));
  assert.equal(nodeRank(node('a', 'primary')), nodeRank(node('a', 'replica')));
  assert.equal(poolRank(pool({ waiting: 1, oldest_wait_ms: 2000 })), poolRank(pool({ paused: true })));
});

test('states in words', () => {
  for (const [one, text] of [[pool(), 'good flows'], [pool({ waiting: 1, oldest_wait_ms: 20 }), 'info waits'], [pool({ waiting: 1, oldest_wait_ms: 2000 }), 'warning waits'], [pool({ paused: true }), 'warning paused']]) assert.equal(`${poolState(one).severity} ${poolState(one).text}`, text);
  for (const [one, text] of [[[0, 0], 'info empty'], [[2, 0], 'bad none usable'], [[2, 1], 'warning in part'], [[2, 2], 'good all usable']]) {
    const found = serviceState({ instances: one[0], usable: one[1] });
    assert.equal(`${found.severity} ${found.text}`, text);
  }
});

test('what a folded card says', () => {
  const well = notes(full());
  assert.deepEqual(Object.values(well).filter((note) => note.unwell), [], 'nothing to be looked at');
  assert.equal(well.nodes.text, '3, all well');
  assert.deepEqual(Object.values(notes(mariadb())).filter((note) => note.unwell), []);
  assert.deepEqual(notes(empty()).waits, { text: 'nobody', unwell: false });
  const cluster = { ...full().cluster, nodes: [node('n1', 'primary'), node('n2', 'unknown')] };
  for (const [what, more, card, text] of [
    ['a lost node', { cluster }, 'nodes', '1 of 2 not well'],
    ['no primary', { cluster: { ...full().cluster, primary: null } }, 'nodes', '3, all well'],
    ['a pause', { pools: [pool(), pool({ paused: true })] }, 'pools', '1 of 2 held up'],
    ['a long wait', { pools: [pool({ waiting: 1, oldest_wait_ms: 3000 })] }, 'waits', '1 client of app/alice'],
    ['a relay that is cut off', { relay: { ...full().relay, state: 'refused' } }, 'relay', 'refused'],
    ['a relay that writes nothing', { relay: { ...full().relay, log: { ...full().relay.log, failure: 'full' } } }, 'relay', 'writes nothing'],
    ['a gate', { proxy: { ...full().proxy, gauges: { gate_degraded: 1 } } }, 'lanes', 'degraded'],
  ]) assert.deepEqual(notes(full(more))[card], { text, unwell: true }, what);
});

test('what is open', () => {
  for (const [card, where, expected] of [
    ['nodes', { narrow: false }, true], ['nodes', { narrow: true }, false], ['nodes', { narrow: true, unwell: true }, true], ['nodes', { narrow: true, unwell: true, chosen: false }, false], ['nodes', { narrow: true, chosen: true }, true],
    ['statements', { narrow: false }, false], ['statements', { narrow: false, chosen: true }, true], ['clients', { narrow: false }, false], ['counters', { narrow: true, unwell: true }, false],
  ]) assert.equal(isOpen(card, where), expected, `${card} ${JSON.stringify(where)}`);
});
