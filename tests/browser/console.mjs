// The web console in a real browser, in front of a cluster of `kingpost up`. Run by tests/e2e/web.rs.
//
//   CONSOLE_URL, CONSOLE_TOKEN, PROXY (host:port), REGISTRY_URL, REPLICA_PID_FILE; PICTURES: where to leave screenshots
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { Browser } from './chromium.mjs';

const { CONSOLE_URL: url, CONSOLE_TOKEN: token, PROXY: proxy, REGISTRY_URL: registry, REPLICA_PID_FILE: pidFile, PICTURES: pictures } = process.env;
const [host, port] = proxy.split(':');

function psql(sql) {
  const child = spawn('psql', ['-X', '-At', '-h', host, '-p', port, '-U', 'postgres', '-d', 'postgres', '-c', sql], { stdio: ['ignore', 'pipe', 'inherit'] });
  let out = '';
  child.stdout.on('data', (text) => { out += text; });
  return new Promise((resolve, reject) => child.on('exit', (code) => (code === 0 ? resolve(out.trim()) : reject(new Error(`psql ended with ${code}`)))));
}

async function register(rows) {
  const response = await fetch(`${registry}/v1/namespaces/default/services/web/instances`, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ instances: rows }) });
  assert.equal(response.status, 200, await response.text());
}

async function picture(page, name) {
  if (pictures) await page.picture(`${pictures}/${name}.png`);
}

const step = (text) => console.log(`ok ${text}`);
const has = (id, text) => `document.getElementById(${JSON.stringify(id)})?.textContent.includes(${JSON.stringify(text)})`;
const click = (selector) => `(() => { const found = document.querySelector(${JSON.stringify(selector)}); found?.click(); return Boolean(found); })()`;
const press = (page, label) => page.until(`the button ${label}`, `(() => { const found = [...document.querySelectorAll('button')].find((one) => (one.getAttribute('aria-label') ?? one.textContent) === ${JSON.stringify(label)} && one.offsetParent); found?.click(); return Boolean(found); })()`);

async function overview(page) {
  await page.go(`${url}/`);
  await page.until('the stream', "document.getElementById('link')?.textContent === 'Live'");
  await page.until('a good verdict', has('verdict', 'All well: node1 is primary'));
  await page.until('the boxes', "['apps', 'proxy', 'node-node1', 'relay', 'node-node2', 'node-node3'].every((id) => document.getElementById(`box-${id}`))");
  await page.until('the nodes', "document.querySelectorAll('#nodes tbody tr').length === 3");
  assert.ok(page.requests.every((request) => request.startsWith(`${url}/`)), `nothing from elsewhere: ${page.requests}`);
  assert.equal(await page.evaluate('document.documentElement.scrollWidth <= innerWidth'), true, 'nothing sticks out');
  step('the picture, the nodes and the verdict are there, and nothing is from elsewhere');
}

/** A healthy cluster on a phone: at most three screens, folded cards say what is in them. */
async function shortOnPhone(browser) {
  const phone = await browser.page({ width: 390, height: 844, mobile: true });
  await phone.go(`${url}/`);
  await phone.until('the stream', "document.getElementById('link')?.textContent === 'Live'");
  await phone.until('a good verdict', has('verdict', 'All well'));
  await phone.until('the boxes', "document.getElementById('box-proxy')");
  await phone.until('what folded cards say', `${has('note-nodes', '3, all well')} && ${has('note-relay', 'streaming')}`);
  await phone.until('that cards are folded', "document.querySelectorAll('#page-cluster details[open]').length === 0");
  await picture(phone, 'phone-healthy');
  const height = await phone.evaluate('document.documentElement.scrollHeight');
  assert.ok(height <= 3 * 844, `the page of a healthy cluster has ${height} pixels on a phone: more than three screens`);
  await phone.evaluate(click('#card-nodes > summary'));
  await phone.until('the nodes, unfolded', "document.querySelector('#nodes tbody tr')?.offsetParent");
  assert.equal(await phone.evaluate('document.documentElement.scrollWidth <= innerWidth'), true, 'nothing sticks out');
  // What is chosen stays so while figures move.
  const clock = await phone.evaluate("document.getElementById('clock').textContent");
  await phone.until('the next figures', `document.getElementById('clock').textContent !== ${JSON.stringify(clock)}`);
  assert.equal(await phone.evaluate("document.getElementById('card-nodes').open"), true, 'who unfolds a card keeps it');
  assert.deepEqual(phone.problems, []);
  step(`on a phone the page of a healthy cluster has ${(height / 844).toFixed(1)} screens`);
}

/** Curves: another span, axes, values by key and at the pointer. */
async function curves(page) {
  await page.until('the curves', "document.querySelectorAll('#figures figure').length === 8");
  await page.until('axes', "[...document.querySelectorAll('#curve-statements .axis')].length >= 5 && [...document.querySelectorAll('#curve-statements .axis')].some((one) => /^\\d\\d:\\d\\d$/.test(one.textContent))");
  for (const span of ['hour', 'day']) {
    await page.evaluate(click(`#span-${span}`));
    await page.until(`the curves of the ${span}`, "/M\\d/.test(document.querySelector('#curve-instances .chart .curve')?.getAttribute('d') ?? '')");
  }
  await picture(page, 'day');
  await page.evaluate(click('#span-minutes'));
  await page.evaluate("document.querySelector('#curve-statements .chart').focus()");
  await page.press('Home');
  await page.until('the time that is looked at', "/^\\d\\d:\\d\\d:\\d\\d$/.test(document.getElementById('curves-at').textContent) && document.querySelector('#curve-statements .cross').getAttribute('d')");
  await page.until('what is said there', "document.querySelector('#curves [aria-live]').textContent.includes('on the primary')");
  await page.press('Escape');
  await page.until('now again', "document.getElementById('curves-at').textContent === 'now'");
  const place = await page.evaluate("(() => { const { x, y, width, height } = document.querySelector('#curve-instances .chart').getBoundingClientRect(); scrollTo(0, scrollY + y - 300); const after = document.querySelector('#curve-instances .chart').getBoundingClientRect(); return { x: after.x + width - 40, y: after.y + height / 2 }; })()");
  await page.send('Input.dispatchMouseEvent', { type: 'mouseMoved', ...place });
  await page.until('the time at the pointer', "document.getElementById('curves-at').textContent !== 'now' && document.querySelector('#curve-instances .cross').getAttribute('d')");
  await picture(page, 'curves');
  await page.send('Input.dispatchMouseEvent', { type: 'mouseMoved', x: 2, y: 2 });
  await page.until('now, without a pointer', "document.getElementById('curves-at').textContent === 'now'");
  step('curves have axes and spans, and say values by key and at the pointer');
}

/** Statements, sorted and searched by keyboard alone. */
async function statements(page) {
  await psql("select 4711 as slow, pg_sleep(0.05) /* a comment */; ");
  for (let turn = 0; turn < 3; turn += 1) await psql("select 'hush' as quick");
  await page.evaluate("document.querySelector('#card-statements > summary').focus()");
  await page.press('Enter', 'Enter', '\r');
  await page.until('both statements', `${has('statements', 'as slow')} && ${has('statements', 'as quick')}`);
  assert.equal(await page.evaluate("/4711|hush|a comment/.test(document.getElementById('statements').textContent)"), false, 'no literal is shown');
  const first = "document.querySelector('#statements tbody tr th').textContent";
  const head = (title) => `[...document.querySelectorAll('#statements thead button')].find((one) => one.textContent === '${title}')`;
  await page.evaluate(`${head('Calls')}.focus()`);
  await page.press('Enter', 'Enter', '\r');
  await page.until('the order', `${head('Calls')}.closest('th').getAttribute('aria-sort') === 'descending'`);
  const calls = "[...document.querySelectorAll('#statements tbody td:nth-child(2)')].map((one) => Number(one.textContent.replaceAll(',', '')))";
  await page.until('the most frequent first', `(() => { const all = ${calls}; return all.every((one, index) => index === 0 || all[index - 1] >= one); })()`);
  await page.press('ArrowRight');
  assert.equal(await page.evaluate('document.activeElement.textContent'), 'Total', 'arrow keys move among columns');
  await page.press('ArrowDown');
  assert.equal(await page.evaluate("document.activeElement === document.querySelector('#statements tbody tr')"), true, 'and into the rows');
  await page.press('/', 'Slash', '/');
  await page.until('the field', "document.activeElement?.id === 'filter'");
  assert.equal(await page.evaluate("document.getElementById('filter').value"), '', 'the key itself is not typed');
  await page.type('AS slow');
  await page.until('the one row', "document.querySelectorAll('#statements tbody tr').length === 1");
  assert.ok((await page.evaluate(first)).includes('as slow'));
  assert.ok(await page.evaluate("document.querySelector('#nodes .nothing').textContent.includes('No row has')"), 'other tables are searched, too');
  await picture(page, 'statements');
  await page.evaluate("document.getElementById('filter').select()");
  await page.press('Backspace', 'Backspace');
  await page.until('all rows', "document.querySelectorAll('#nodes tbody tr').length === 3");
  step('statements are there without literals, sorted and searched by keyboard');
}

async function acting(page) {
  await psql('select 1');
  await page.until('the pool', "document.querySelector('#pools tbody tr')");
  assert.equal(await page.evaluate("document.querySelectorAll('#pools tbody button').length"), 0, 'who has not signed in has nothing to press');
  // By keyboard alone, and first with a wrong token.
  await page.evaluate("document.getElementById('sign').focus()");
  await page.press('Enter', 'Enter', '\r');
  await page.until('the dialog', "document.activeElement?.id === 'token'");
  await page.type('kp_wrong');
  await page.press('Enter', 'Enter', '\r');
  await page.until('the refusal', has('dialog', 'there is no such token'));
  await page.type(token);
  await page.press('Enter', 'Enter', '\r');
  await page.until('the session', has('sign', 'Sign out local'));
  assert.equal(page.problems.filter((problem) => !problem.includes('401')).length, 0, page.problems.join('\n'));
  page.problems.length = 0;
  step('signing in, by keyboard');

  await press(page, 'Pause postgres');
  await page.until('the question', has('dialog', 'Pause postgres?'));
  await page.press('Escape');
  await page.until('the dialog is gone', "!document.getElementById('dialog').open");
  assert.equal(await page.evaluate(has('pools', 'paused')), false, 'Escape does nothing');
  await press(page, 'Pause postgres');
  await press(page, 'Pause');
  await page.until('the pause', has('pools', 'paused'));
  const waits = psql('select 41 + 1');
  await page.until('who waits', has('waits', 'for RESUME'));
  await page.until('the verdict', has('verdict', 'Paused by an operator: postgres'));
  await picture(page, 'paused');
  await press(page, 'Resume postgres');
  await press(page, 'Resume');
  assert.equal(await waits, '42');
  await page.until('that it flows', has('pools', 'flows'));
  await page.until('the events', `${has('events', 'is paused')} && ${has('events', 'goes on')}`);
  step('a database is paused and resumed, and a client waited meanwhile');
}

async function services(page) {
  await register([{ id: 'web-1', host: '10.0.0.1', port: 80, metadata: { env: 'prod' } }, { id: 'web-2', host: '10.0.0.2', port: 80, metadata: { env: 'test' } }]);
  await page.evaluate("document.getElementById('tab-services').click()");
  await page.until('the services', "document.querySelectorAll('#page-services tbody tr').length >= 3");
  // By key to the field.
  await page.evaluate('document.activeElement.blur()');
  await page.press('/', 'Slash', '/');
  await page.until('the field', "document.activeElement?.id === 'search'");
  await page.evaluate("document.getElementById('search').focus()");
  await page.type('env=prod');
  await page.until('what was found', has('page-services', '1 instance found.'));
  assert.ok((await page.evaluate('location.hash')).includes('env%3Dprod'), 'the search is in the address');
  await picture(page, 'search');
  await page.evaluate(click('a[href="#/instance/default/web-1"]'));
  await page.until('the instance', has('instance-name', 'default/web-1'));
  await press(page, 'Isolate');
  await page.until('the question', has('dialog', 'Isolate default/web-1?'));
  await page.evaluate(click('#dialog button.danger'));
  await page.until('the state', has('instance-facts', 'isolated'));
  await page.until('the history', "document.querySelector('#page-services').textContent.includes('isolated') && [...document.querySelectorAll('#page-services caption')].some((one) => one.textContent === 'What became of it' && one.closest('table').textContent.includes('isolated'))");
  await press(page, 'Weight');
  await page.until('the field', "document.activeElement?.id === 'value'");
  await page.evaluate("document.getElementById('value').select()");
  await page.type('7');
  await page.press('Enter', 'Enter', '\r');
  await page.until('the weight', has('instance-facts', '7, 0'));
  await picture(page, 'instance');
  const usable = await (await fetch(`${registry}/v1/namespaces/default/services/web/instances?usable`)).json();
  assert.deepEqual(usable.instances.map((one) => one.id), ['web-2']);
  step('services are found by metadata, an instance is isolated and weighed');
}

async function losing(page) {
  await page.go(`${url}/#/`);
  await page.evaluate("location.hash = '#/'");
  await page.until('the stream', "document.getElementById('link')?.textContent === 'Live'");
  process.kill(Number(readFileSync(pidFile, 'utf8').split('\n')[0]), 'SIGKILL');
  await page.until('that it comes first', "document.querySelector('#nodes tbody tr th').textContent === 'node3'");
  await page.until('the loss', `${has('verdict', 'node3')} && ${has('events', 'node3')} && document.querySelector('#box-node-node3.bad, #box-node-node3.warning')`);
  await picture(page, 'lost');
  step('a killed replica is seen: verdict, picture, event');
}

const browser = await Browser.start();
try {
  const page = await browser.page({ width: 1440, height: 900 });
  await overview(page);
  await shortOnPhone(browser);
  await curves(page);
  await acting(page);
  await statements(page);
  await services(page);
  await losing(page);
  assert.deepEqual(page.problems, [], 'no error in the browser');
  const phone = await browser.page({ width: 360, height: 740, mobile: true, scheme: 'dark' });
  await phone.go(`${url}/`);
  await phone.until('the stream', "document.getElementById('link')?.textContent === 'Live'");
  await phone.until('the boxes', "document.getElementById('box-proxy')");
  // A lost node is what somebody has to look at.
  await phone.until('the card of nodes, unfolded', "document.getElementById('card-nodes').open && document.querySelector('#nodes tbody tr th').textContent === 'node3'");
  for (const hash of ['#/', '#/services', '#/service/kingpost/postgres', '#/instance/kingpost/node1']) {
    await phone.evaluate(`location.hash = '${hash}'`);
    await phone.until(hash, "[...document.querySelectorAll('tbody tr, dd')].some((row) => row.offsetParent)");
    assert.equal(await phone.evaluate('document.documentElement.scrollWidth <= innerWidth'), true, `${hash}: nothing sticks out on a phone`);
    await picture(phone, `phone-${hash.replaceAll(/\W+/g, '-')}`);
  }
  assert.deepEqual(phone.problems, []);
  step('a phone shows it too');
} finally {
  await browser.close();
}
