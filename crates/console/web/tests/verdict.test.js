import assert from 'node:assert/strict';
import { test } from 'node:test';
import { empty } from '../state.js';
import { p, standing, verdict, waits } from '../verdict.js';
import { full, mariadb, node, pool } from './samples.js';

const said = (state) => verdict(state).map((one) => `${one.severity}: ${one.text}`);
const nodes = (...list) => ({ cluster: { name: 'c', timeline: 2, primary: list.find((one) => one.role === 'primary')?.name ?? null, nodes: list } });

test('nothing is said before there is a picture', () => assert.deepEqual(verdict(empty()), []));

test('all well', () => {
  assert.deepEqual(said(full()), ['good: All well: n1 is primary on timeline 1, 2 replicas at most 3.0 ms behind, the relay receives, 4 instances of 2 services in order.']);
});

test('servers of MariaDB', () => {
  const state = mariadb();
  assert.deepEqual(said(state), ['good: All well: n1 is primary in epoch 2, 1 replica at most 2.0 s behind, the relay receives.']);
  const [primary, replica] = state.cluster.nodes;
  const having = (nodes, concerns = []) => ({ ...state, cluster: { ...state.cluster, nodes }, relay: { ...state.relay, concerns } });
  assert.deepEqual(said(having([primary, { ...replica, usable: false, error: 'error 1236' }])), ['warning: n2 does not replicate: error 1236.']);
  assert.deepEqual(said(having([primary, { ...replica, role: 'stale' }])), ['bad: n2 takes writes that the relay does not take. Stop it and rebuild it as a standby.']);
  assert.deepEqual(said(having([primary, replica], ['the timeout is 1 s'])), ['bad: Commits may not wait until they are durable on the relay: the timeout is 1 s.']);
});

for (const [name, more, expected] of [
  ['no primary', nodes(node('n2', 'replica')), ['bad: There is no primary: writes wait.']],
  ['a lost node', nodes(node('n1', 'primary'), node('n2', 'unknown', { usable: false, error: 'refused' })), ['warning: n2 cannot be reached: refused.']],
  ['a node that lags', nodes(node('n1', 'primary'), node('n2', 'replica', { usable: false, lag_ms: 12_000 })), ['warning: n2 gets no reads: 12.0 s behind.']],
  ['a node that is out', nodes(node('n1', 'primary'), node('n2', 'replica', { usable: false, error: 'time-out' })), ['warning: n2 gets no reads: time-out.']],
  ['split brain', nodes(node('n1', 'stale', { usable: false }), node('n2', 'primary')), ['bad: n1 takes writes on an old timeline; it is not used. Stop it and rebuild it as a standby.']],
  ['the relay is cut off', { relay: { ...full().relay, state: 'refused', upstream: 'p:1' } }, ['warning: The relay does not receive from p:1: refused.']],
  ['the relay gave up', { relay: { ...full().relay, state: 'diverged', alarm: true, upstream: 'p:1' } }, ['bad: The relay does not receive from p:1: diverged.']],
  ['an archive that is gone', { relay: { ...full().relay, archive: { url: '/a', state: 'cannot write', alarm: true, confirmed: '0/0', behind_bytes: 2048, behind_ms: 90_000 } } }, ["bad: The relay's archive is 2.0 KiB and 90.0 s behind: cannot write. WAL stays on the relay's disk until it has it."]],
  ['a backup that failed', { relay: { ...full().relay, archive: { url: '/a', state: 'archiving', alarm: false, confirmed: '0/0', behind_bytes: 0, behind_ms: 0, backup_failure: 'no server gives a backup' } } }, ['bad: Backups by schedule fail: no server gives a backup.']],
  ['an archive that is slow', { relay: { ...full().relay, archive: { url: '/a', state: 'archiving', alarm: false, confirmed: '0/0', behind_bytes: 2048, behind_ms: 9000 } } }, null],
  ['a pause', { pools: [pool({ paused: true, waiting: 3, oldest_wait_ms: 9000 })] }, ['warning: Paused by an operator: app.']],
  ['a queue', { pools: [pool({ waiting: 3, oldest_wait_ms: 1500 })] }, ['warning: Clients of app wait for server connections, the first for 1.5 s.']],
  ['a short queue', { pools: [pool({ waiting: 3, oldest_wait_ms: 20 })] }, null],
  ['too few relays', { proxy: { ...full().proxy, gauges: { gate_held: 3, gate_degraded: 2 } } }, ['bad: Too few relays confirm commits: the commit gate is degraded.']],
  ['a brake', { registry: { ...full().registry, protected: [{ service: '', seconds: 90 }] } }, ['warning: Too much was lost at once: the last good state of all services is kept for 90.0 s now.']],
  ['instances that are critical', { registry: { ...full().registry, critical: 3, isolated: 1 } }, ['warning: 3 instances of 4 in the registry are critical.', 'info: 1 instance of 4 in the registry is isolated.']],
  ['an instance that is isolated', { registry: { ...full().registry, isolated: 1 } }, ['info: 1 instance of 4 in the registry is isolated.']],
  ['a store', { registry: { ...full().registry, ready: false, store_error: 'locked' } }, ["bad: The registry's store does not answer: locked."]],
]) {
  test(name, () => {
    const found = said(full(more));
    if (expected) assert.deepEqual(found, expected);
    else assert.ok(found[0].startsWith('good:'), found[0]);
  });
}

test('the worst comes first', () => {
  const state = full({ ...nodes(node('n1', 'primary'), node('n2', 'unknown')), pools: [pool({ paused: true })], relay: { ...full().relay, state: 'diverged', alarm: true } });
  assert.deepEqual(verdict(state).map((one) => one.severity), ['bad', 'warning', 'warning']);
});

test('who waits for what', () => {
  const state = full({ pools: [pool({ waiting: 2, oldest_wait_ms: 40 }), pool({ database: 'b', paused: true, waiting: 1, oldest_wait_ms: 5 })], ...nodes(node('n1', 'primary'), node('n2', 'replica', { lag_bytes: 2048, lag_ms: 7 })) });
  assert.deepEqual(waits(state).map((row) => [row.who, row.what, row.how].join(' | ')), [
    '1 client of b/alice | for RESUME | first for 5.0 ms',
    '2 clients of app/alice | for a server connection | first for 40 ms',
    'n2 | for 2.0 KiB of WAL | 7.0 ms',
  ]);
  assert.deepEqual(waits(full({ proxy: { ...full().proxy, gauges: { gate_held: 3 } } })).map((row) => row.who), ['3 commits']);
  assert.deepEqual(waits(empty()), []);
  const broken = full({ pools: [pool({ waiting: 1, oldest_wait_ms: 9 }), pool({ user: 'bob', waiting: 1, oldest_wait_ms: 2000 })], proxy: { ...full().proxy, gauges: { clients_pinned: 1 } }, ...nodes(node('n1', 'primary'), node('n2', 'replica', { lag_bytes: 2, usable: false })) });
  assert.deepEqual(waits(broken).map((row) => row.who), ['1 client of app/bob', 'n2', '1 client of app/alice', '1 client'], 'what is held up comes first, who is merely pinned last');
});

test('standing and percentiles', () => {
  for (const [one, text] of [[node('a', 'primary'), 'good primary'], [node('a', 'replica'), 'good replica'], [node('a', 'replica', { usable: false }), 'warning lagging'], [node('a', 'replica', { usable: false, error: 'x' }), 'warning out'], [node('a', 'unknown'), 'bad not reached'], [node('a', 'stale'), 'bad stale']]) {
    const { severity, text: said } = standing(one);
    assert.equal(`${severity} ${said}`, text);
  }
  assert.deepEqual([p(200, 4), p(null, 4), p(null, 0)], ['≤ 200 µs', '>26 s', '–']);
});
