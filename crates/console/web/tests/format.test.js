import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ago, between, bytes, clock, count, lsn, micros, millis, plural, short, words } from '../format.js';

const table = (name, f, rows) => test(name, () => rows.forEach(([value, text]) => assert.equal(f(value), text, `${name}(${value})`)));

table('short', short, [
  [null, '–'], [undefined, '–'], [NaN, '–'], [0, '0'], [0.04, '<0.1'], [0.44, '0.4'], [9.94, '9.9'], [9.96, '10'], [940, '940'], [9999, '9,999'],
  [9999.6, '10.0k'], [12345, '12.3k'], [123456, '123k'], [999499, '999k'], [999500, '1.00M'], [1.25e6, '1.25M'], [3e9, '3.00G'], [5e13, '50,000G'],
]);
table('count', count, [[null, '–'], [0, '0'], [12345, '12,345'], [1.6, '2']]);
table('bytes', bytes, [
  [null, '–'], [0, '0 B'], [1023, '1,023 B'], [1024, '1.0 KiB'], [10240, '10 KiB'], [1024 * 1023.4, '1,023 KiB'], [1024 * 1023.6, '1.0 MiB'], [16 * 2 ** 20, '16 MiB'], [2 ** 60, '1,024 PiB'],
]);
table('millis', millis, [
  [null, '–'], [0, '0 ms'], [0.4, '0.4 ms'], [12, '12 ms'], [999.4, '999 ms'], [999.6, '1.0 s'], [1234, '1.2 s'], [99_940, '99.9 s'], [100_000, '1 min 40 s'],
  [3_599_400, '59 min 59 s'], [3_600_000, '1 h 00 min'], [47 * 3_600_000, '47 h 00 min'], [72 * 3_600_000, '3 days'],
]);
table('micros', micros, [[null, '–'], [50, '50 µs'], [999, '999 µs'], [1600, '1.6 ms'], [26214400, '26.2 s']]);
table('words', words, [['lane_redone', 'Lane redone'], ['a', 'A']]);
table('lsn', lsn, [['0/0', 0n], ['1/A', 4294967306n], ['16/B374D848', 97500059720n], ['', null], [null, null], ['x/1', null], ['1/100000000', null]]);

test('between', () => {
  assert.equal(between('0/10', '1/0'), 2 ** 32 - 16);
  assert.equal(between('1/0', '0/0'), 0, 'never negative');
  assert.equal(between(null, '0/0'), null);
});

test('plural, ago and clock', () => {
  assert.equal(plural(1, 'client'), '1 client');
  assert.equal(plural(1200, 'client'), '1,200 clients');
  const now = new Date(2026, 4, 6, 12, 0, 0).getTime();
  for (const [back, text] of [[0, 'just now'], [-5000, 'just now'], [3000, '3 s ago'], [61_000, '61 s ago'], [180_000, '3 min 00 s ago']]) assert.equal(ago(now - back, now), text);
  assert.equal(clock(now, now), '12:00:00');
  assert.equal(clock(now - 86_400_000, now), '2026-05-05 12:00:00');
});
