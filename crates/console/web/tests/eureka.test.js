// What the page of Eureka's clients decides.

import assert from 'node:assert/strict';
import { test } from 'node:test';

// The page's elements are made when the module is read; here only its pure functions are asked.
const element = () => ({ append() {}, addEventListener() {}, setAttribute() {}, replaceChildren() {}, dataset: {} });
globalThis.document = { createElement: element, createElementNS: element, getElementById: element };
const { counted, page, place, reached, severity, standing, warning } = await import('../eureka.js');

test('the namespace', () => {
  for (const [hash, expected] of [['#/eureka', 'default'], ['#/eureka?namespace=a%20b', 'a b'], ['#/eureka?namespace=', 'default']]) assert.equal(place(hash), expected, hash);
});

test('how instances and applications are', () => {
  for (const [status, expected] of [['UP', 'good'], ['DOWN', 'bad'], ['STARTING', 'warning'], ['OUT_OF_SERVICE', 'warning'], ['UNKNOWN', 'warning']]) assert.equal(severity(status), expected);
  for (const [statuses, expected] of [[{ UP: 2 }, 'good'], [{ UP: 2, STARTING: 1 }, 'warning'], [{ DOWN: 1, OUT_OF_SERVICE: 1, UP: 9 }, 'bad'], [{}, 'info']]) assert.equal(standing({ statuses }), expected);
  assert.equal(counted({ '': 1, 'zone a': 1200 }), 'n/a (1), zone a (1,200)');
});

test('only addresses of the web are links', () => {
  for (const [sent, expected] of [
    ['http://h:1/info', 'http://h:1/info'], ['https://h/', 'https://h/'], ['javascript:alert(1)', null], ['data:text/html,x', null], ['/info', null], [null, null], ['', null],
  ]) assert.equal(page({ page: sent }), expected, sent);
});

test('what to know', () => {
  assert.equal(warning({ protected: null }), null);
  assert.match(warning({ protected: 7 }).text, /7 seconds/);
  const server = { reached: true, error: null, waiting: 0 };
  for (const [more, expected] of [
    [{}, 'good takes changes'], [{ waiting: 2 }, 'info catches up'], [{ reached: false }, 'info not asked yet'], [{ reached: false, error: 'refused' }, 'bad refused'],
  ]) {
    const found = reached({ ...server, ...more });
    assert.equal(`${found.severity} ${found.text}`, expected);
  }
});
