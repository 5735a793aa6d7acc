import assert from 'node:assert/strict';
import { test } from 'node:test';
import { area, bars, line, thinned } from '../charts.js';
import { picture, told } from '../drawing.js';
import { empty } from '../state.js';
import { full, mariadb, node } from './samples.js';

const cases = [
  ['everything', full()],
  ['no relay', full({ relay: null })],
  ['no primary', full({ cluster: { name: 'c', timeline: 1, primary: null, nodes: [node('n1', 'unknown', { usable: false, error: 'refused' }), node('n2', 'replica')] } })],
  ['servers of MariaDB', mariadb()],
  ['a relay alone', { ...empty(), relay: full().relay }],
  ['twelve replicas', full({ cluster: { name: 'c', timeline: 1, primary: 'n1', nodes: [node('n1', 'primary'), ...Array.from({ length: 12 }, (_, n) => node(`r${n}`, 'replica'))] } })],
  ['a name without end', full({ cluster: { name: 'c', timeline: 1, primary: 'x'.repeat(80), nodes: [node('x'.repeat(80), 'primary')] } })],
];

for (const [name, state] of cases) {
  for (const width of [320, 336, 700, 760, 1000, 1408]) {
    test(`${name} at ${width}`, () => {
      const { boxes, edges, height } = picture(state, width);
      assert.ok(boxes.length > 0);
      for (const box of boxes) {
        assert.ok(box.x >= 0 && box.x + box.w <= width + 0.5 && box.y >= 0 && box.y + box.h <= height, `${box.id} is inside`);
        assert.ok(box.w >= 90, `${box.id} is wide enough: ${box.w}`);
      }
      boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => {
        const apart = a.x + a.w <= b.x || b.x + b.w <= a.x || a.y + a.h <= b.y || b.y + b.h <= a.y;
        assert.ok(apart, `${a.id} and ${b.id} do not overlap`);
      }));
      for (const edge of edges) assert.ok(!/NaN|undefined|null/.test(edge.path + edge.label), `${edge.path} ${edge.label}`);
      assert.equal(new Set(boxes.map((box) => box.id)).size, boxes.length);
    });
  }
}

test('servers of MariaDB have no LSNs and no timelines', () => {
  const { boxes, edges } = picture(mariadb(), 1200);
  const lines = Object.fromEntries(boxes.map((box) => [box.id, box.lines.join(', ')]));
  assert.equal(lines['node-n1'], 'GTID 0-1-15, epoch 2');
  assert.equal(lines['node-n2'], 'GTID 0-1-15, 2.0 s · 3 transactions behind');
  assert.equal(lines.relay, 'durable bin.000003:4711, 0 B behind');
  assert.deepEqual(edges.filter((edge) => edge.label).map((edge) => edge.label), ['binlog']);
});

test('lines say who feeds whom', () => {
  const kinds = (state) => picture(state, 1200).edges.filter((edge) => edge.path).map((edge) => edge.kind).sort().join(' ');
  assert.equal(kinds(full()), 'flow flow reads reads wal wal wal');
  assert.equal(kinds(full({ relay: null })), 'flow flow reads reads wal wal');
  const cut = full({ relay: { ...full().relay, state: 'refused' } });
  assert.ok(kinds(cut).includes('broken'));
  assert.ok(told(full()).startsWith('Applications, 5 clients, none waiting. Proxy, 127.0.0.1:6432, 5 servers, 2 busy'));
});

test('charts', () => {
  assert.equal(line([0, 1, null, 1], 30, 12), 'M0 11L10 1M30 1');
  assert.equal(line([1], 30, 12, 4), 'M30 1');
  assert.equal(area([1], 30, 12), '');
  assert.ok(area([1, 2], 30, 12).endsWith('Z'));
  assert.deepEqual(thinned([1, 2, 3, 4, 5], 2), [1, 2.5, 4.5]);
  assert.deepEqual(thinned([null, null, 4], 2), [null, 4]);
  const found = bars([0, 3, 0, 1], [10, 20, 30], (n) => `${n}`);
  assert.deepEqual(found.map((bar) => [bar.label, bar.count, bar.part]), [['≤ 20', 3, 0.75], ['≤ 30', 0, 0], ['> 30', 1, 0.25]]);
  assert.deepEqual(bars([0, 0], [1], String), []);
});
