import assert from 'node:assert/strict';
import { test } from 'node:test';
import { SILENT, hears, loses, standing, tries, unheard } from '../live.js';

test('nothing is said before there is a picture', () => assert.equal(standing(unheard(), 5, false), null));

test('a page that hears is live', () => {
  const link = hears(unheard(), 1000);
  assert.deepEqual(standing(link, 1000 + SILENT, true), { kind: 'good', text: 'Live', connect: false });
});

test('a server that stands still is never live, however often the page tries again', () => {
  let link = hears(unheard(), 1000);
  let tried = 0;
  for (let now = 2000 + SILENT; now < 10 * SILENT; now += 1000) {
    const { kind, text, connect } = standing(link, now, true);
    assert.equal(kind, 'bad', `at ${now}: ${text}`);
    assert.match(text, /^Nothing is heard for .*, trying again$/);
    if (connect) {
      link = tries(link, now);
      tried += 1;
    }
  }
  assert.ok(tried > 3 && tried < 12, `${tried} attempts`);
  assert.equal(standing(hears(link, 10 * SILENT), 10 * SILENT + 1, true).text, 'Live');
});

test('a connection that ends is lost since its end', () => {
  const link = loses(loses(hears(unheard(), 1000), 2000), 9000);
  assert.deepEqual(standing(link, 3000, true), { kind: 'bad', text: 'Connection lost', connect: false });
  assert.equal(standing(link, 12_400, true).text, 'Lost for 10 s, trying again');
  assert.equal(standing(hears(link, 13_000), 13_000, true).text, 'Live');
});
