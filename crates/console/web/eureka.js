// The page of Eureka's clients: applications with their instances, leases, and the servers of Eureka that the registry replicates with.

import { ask } from './actions.js';
import { byId, h, replace, setText, state as mark } from './dom.js';
import { count, plural } from './format.js';
import { rankOf } from './order.js';
import { href } from './services.js';
import { Table } from './table.js';

/** How often leases are asked for, though nothing is registered. */
const AGAIN = 10_000;

/** The namespace in the part of the address behind `#`. Pure. */
export function place(hash) {
  return new URLSearchParams(hash.split('?')[1] ?? '').get('namespace') || 'default';
}

/** How a status is. Pure. */
export function severity(status) {
  return { UP: 'good', DOWN: 'bad' }[status] ?? 'warning';
}

/** How an application is: as the worst of its instances. Pure. */
export function standing(application) {
  const found = Object.keys(application.statuses).map(severity);
  return found.sort((a, b) => rankOf(a) - rankOf(b))[0] ?? 'info';
}

/** Counts by name in words: `a (2), n/a (1)`. Pure. */
export function counted(counts) {
  return Object.entries(counts).map(([name, number]) => `${name || 'n/a'} (${count(number)})`).join(', ');
}

/** The address of an instance's own page, if it is one of the web. Whoever registers may send anything. Pure. */
export function page(instance) {
  try {
    const url = new URL(instance.page);
    return ['http:', 'https:'].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/** What to know of the leases: `{severity, text}`, or null. Pure. */
export function warning(answer) {
  if (answer.protected === null) return null;
  return { severity: 'warning', text: `Self-preservation: too many instances fell silent at once, so none is removed for now (${plural(answer.protected, 'second')}). Some of these may be gone.` };
}

/** How a server is. Pure. */
export function reached(server) {
  if (server.reached) return { severity: server.waiting > 0 ? 'info' : 'good', text: server.waiting > 0 ? 'catches up' : 'takes changes' };
  return server.error ? { severity: 'bad', text: server.error } : { severity: 'info', text: 'not asked yet' };
}

const rank = (one) => rankOf(standing(one));
const applications = new Table('Instances registered with Eureka', [
  { title: 'Application', cell: (one) => one.name },
  { title: 'AMIs', cell: (one) => counted(one.images), minor: true },
  { title: 'Zones', cell: (one) => counted(one.zones), minor: true },
  { title: 'Availability', key: (one) => counted(one.statuses), cell: (one) => mark(standing(one), counted(one.statuses)), text: (one) => counted(one.statuses), sort: rank },
  { title: 'Instances', key: (one) => JSON.stringify(one.instances), cell: listed, text: (one) => one.instances.map((instance) => `${instance.status} ${instance.id}`).join('\n'), wide: true },
], { nothing: 'No instance is registered.', rowKey: (one) => one.name, rank });

function listed(one) {
  const all = Object.values(one.statuses).reduce((sum, number) => sum + number, 0);
  const items = one.instances.map((instance) => {
    const own = page(instance);
    return h('li', null, mark(severity(instance.status), instance.status), ' ', h('a', { href: href('instance', instance.instance) }, instance.id),
      own && [' ', h('a', { href: own, rel: 'noreferrer noopener', target: '_blank' }, 'status page')]);
  });
  return [h('ul', { class: 'plain' }, items), all > items.length && h('p', { class: 'nothing' }, `and ${count(all - items.length)} more`)].filter(Boolean);
}

const servers = new Table('Servers of Eureka that the registry replicates with', [
  { title: 'Server', cell: (one) => one.url, wide: true },
  { title: 'State', key: (one) => JSON.stringify(reached(one)), cell: (one) => { const { severity: how, text } = reached(one); return mark(how, text); }, text: (one) => reached(one).text, sort: (one) => rankOf(reached(one).severity) },
  { title: 'Waiting', cell: (one) => count(one.waiting), number: true },
  { title: 'Sent', cell: (one) => count(one.sent), number: true, minor: true },
  { title: 'Refused', cell: (one) => count(one.refused), number: true, minor: true },
  { title: 'Given up', cell: (one) => count(one.lost), number: true, minor: true },
], { nothing: 'None: registry.eureka.servers names them.', rowKey: (one) => one.url, rank: (one) => rankOf(reached(one).severity) });

const namespaces = h('select', { id: 'eureka-namespace' }, h('option', { value: 'default' }, 'default'));
const note = h('p', { class: 'nothing', role: 'status' });
const warned = h('div', { role: 'status' });
const leases = h('dl', { class: 'facts across', id: 'eureka-leases' });

let here = 'default';
let shown = null;
let asked = 0;
let soon = null;

/** Puts the page together, once. */
export function setUp() {
  byId('page-eureka').append(
    warned,
    h('section', { class: 'card' }, h('h2', null, 'Eureka'), leases),
    h('section', { class: 'card' }, h('form', { class: 'search', onsubmit: (event) => event.preventDefault() }, h('label', { for: 'eureka-namespace' }, 'Namespace'), namespaces), note, applications.element),
    h('section', { class: 'card' }, h('h2', null, 'Servers'), servers.element),
  );
  namespaces.addEventListener('change', () => {
    window.history.replaceState(null, '', `#/eureka?${new URLSearchParams({ namespace: namespaces.value })}`);
    go(location.hash);
  });
  setInterval(() => document.hidden || load(), AGAIN);
}

/** Goes where the address says. */
export function go(hash) {
  here = place(hash);
  offer([here]);
  namespaces.value = here;
  load();
}

/** The registry is now like this: the page is asked for again if something changed. */
export function show(registry) {
  if (!registry || registry.revision === shown || byId('page-eureka').hidden) return;
  shown = registry.revision;
  // Changes come in heaps: one question for those of half a second.
  soon ??= setTimeout(() => { soon = null; load(); }, 500);
}

/** Asks for the page, and shows the answer if it is still wanted then. */
export async function load() {
  if (byId('page-eureka').hidden) return;
  const mine = ++asked;
  try {
    const answer = await ask(`/api/eureka?${new URLSearchParams({ namespace: here })}`);
    if (mine === asked) display(answer);
  } catch (error) {
    if (mine === asked) setText(note, `It cannot be shown: ${error.message}.`);
  }
}

function offer(names) {
  const known = [...namespaces.options].map((option) => option.value);
  for (const name of names) if (!known.includes(name)) namespaces.append(h('option', { value: name }, name));
}

function display(answer) {
  offer(answer.namespaces);
  const said = warning(answer);
  replace(warned, JSON.stringify(said), () => (said ? h('div', { class: `verdict ${said.severity}` }, mark(said.severity, said.text)) : []));
  const facts = [
    ['Applications', count(answer.total)], ['Renewals a minute, expected of all', count(answer.expected)], ['Renewals in the last minute, here', count(answer.renewed)],
    ['Self-preservation', answer.protected === null ? 'off' : 'on'],
  ];
  replace(leases, JSON.stringify(facts), () => facts.map(([name, value]) => h('div', null, h('dt', null, name), h('dd', null, value))));
  const more = answer.total > answer.applications.length;
  setText(note, more ? `The first ${count(answer.applications.length)} of ${plural(answer.total, 'application')}.` : `${plural(answer.total, 'application')}.`);
  applications.show(answer.applications);
  servers.show(answer.servers);
}
