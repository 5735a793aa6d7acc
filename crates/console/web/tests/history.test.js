import assert from 'node:assert/strict';
import { test } from 'node:test';
import { SPANS, cursor, curve, joined, nearest, stepped, times, top, unknown, within } from '../history.js';

const answer = (points, open = null, most = 360) => ({ step: 10_000, most, series: ['reads', 'p99'], points, open });
const ts = (points) => points.map((point) => point.t);

test('answers are joined by a cursor', () => {
  let known = unknown();
  assert.equal(cursor(known), 0);
  known = joined(known, answer([[10, 1, null], [20, 2, 5]], [30, 3, 6]));
  assert.deepEqual(known.points, [{ t: 10, reads: 1, p99: null }, { t: 20, reads: 2, p99: 5 }]);
  assert.deepEqual(known.open, { t: 30, reads: 3, p99: 6 });
  assert.equal(cursor(known), 20, 'the one that is not over is asked for again');
  known = joined(known, answer([[30, 4, 7]], [40, 0, 0]));
  assert.deepEqual(ts(known.points), [10, 20, 30]);
  known = joined(known, answer([], null));
  assert.deepEqual([ts(known.points), known.open], [[10, 20, 30], null], 'nothing new');
  known = joined(known, answer([], [20, 0, 0]));
  assert.deepEqual(ts(known.points), [10], 'the clock was set back');
  known = joined(unknown(), answer([[10, 1, 1], [20, 1, 1], [30, 1, 1]], null, 2));
  assert.deepEqual(ts(known.points), [20, 30], 'bounded');
});

test('only the span is drawn', () => {
  const now = 10_000_000;
  const known = { points: [{ t: now - SPANS.hour.ms - 20_000 }, { t: now - SPANS.hour.ms }, { t: now - 20_000 }], open: { t: now - 5000 } };
  assert.deepEqual(ts(within(known, 'hour', now)), [now - SPANS.hour.ms, now - 20_000, now - 5000]);
  assert.deepEqual(ts(within(known, 'minutes', now)), [now - 20_000, now - 5000]);
  assert.deepEqual(within(unknown(), 'day', now), []);
});

test('ends of axes', () => {
  for (const [values, binary, expected] of [
    [[], false, 1], [[0, null], false, 1], [[0.3], false, 0.5], [[1], false, 1], [[1.1], false, 2], [[3, 4.9], false, 5], [[51], false, 100], [[100], false, 100], [[1.1e6], false, 2e6], [[1000], true, 1024], [[1025], true, 2048], [[0.2], true, 1],
  ]) assert.equal(top(values, binary), expected, JSON.stringify(values));
});

test('marks of time', () => {
  const to = new Date(2024, 4, 5, 13, 7, 30).getTime();
  for (const [span, most, expected] of [
    ['minutes', 6, ['13:03', '13:04', '13:05', '13:06', '13:07']],
    ['minutes', 2, ['13:05']],
    ['hour', 4, ['12:20', '12:40', '13:00']],
    ['day', 8, ['15:00', '18:00', '21:00', '00:00', '03:00', '06:00', '09:00', '12:00']],
  ]) assert.deepEqual(times(to - SPANS[span].ms, to, most).map((mark) => mark.label), expected, `${span} ${most}`);
});

test('curves have gaps where nothing is known', () => {
  const box = { x: 10, y: 0, w: 100, h: 50 };
  const scale = { from: 0, to: 10, most: 100, step: 1 };
  const points = [[0, 0], [1, 100], [2, null], [3, 50], [4, 50], [8, 100]].map(([t, v]) => ({ t, v }));
  assert.equal(curve(points, 'v', scale, box), 'M10 50h0.1L20 0M40 25h0.1L50 25M90 0h0.1');
  assert.equal(curve(points, 'other', scale, box), '');
  assert.equal(curve([{ t: -1, v: 0 }], 'v', scale, box), 'M10 50h0.1', 'what begins before the span begins at its edge');
});

test('where one looks', () => {
  const points = [{ t: 10 }, { t: 20 }, { t: 30 }];
  for (const [t, index] of [[0, 0], [14, 0], [16, 1], [99, 2]]) assert.equal(nearest(points, t), index, String(t));
  assert.equal(nearest([], 5), -1);
  for (const [t, key, expected] of [
    [null, 'ArrowLeft', 30], [null, 'ArrowRight', 30], [30, 'ArrowLeft', 20], [10, 'ArrowLeft', 10], [30, 'ArrowRight', 30], [20, 'Home', 10], [20, 'End', 30], [30, 'PageUp', 10], [20, 'Escape', null], [20, 'x', undefined],
  ]) assert.equal(stepped(points, t, key), expected, `${t} ${key}`);
  assert.equal(stepped([], null, 'ArrowLeft'), undefined);
});
