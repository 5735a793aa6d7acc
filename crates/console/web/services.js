// The page of services: a list with a search, a service with its instances, an instance with its history.

import { actButton, ask, session } from './actions.js';
import { byId, h, replace, setText, state as mark, svg } from './dom.js';
import { ago, clock, count, plural } from './format.js';
import { instanceRank, serviceRank, serviceState } from './order.js';
import { Table } from './table.js';

/** Where in the page one is, from the part of the address behind `#`. Pure. */
export function place(hash) {
  const [path, query] = hash.replace(/^#\/?/, '').split('?');
  const steps = path.split('/').map((step) => decode(step));
  if (steps[0] === 'service' && steps[1] && steps[2]) return { view: 'service', service: `${steps[1]}/${steps.slice(2).join('/')}` };
  if (steps[0] === 'instance' && steps[1] && steps[2]) return { view: 'instance', id: `${steps[1]}/${steps.slice(2).join('/')}` };
  const wanted = new URLSearchParams(query ?? '');
  return { view: 'services', q: wanted.get('q') ?? '', namespace: wanted.get('namespace') ?? '' };
}

function decode(step) {
  try {
    return decodeURIComponent(step);
  } catch {
    return step;
  }
}

/** `namespace/name` as the part of an address. Pure. */
export function href(kind, key) {
  const [namespace, ...rest] = key.split('/');
  return `#/${kind}/${encodeURIComponent(namespace)}/${encodeURIComponent(rest.join('/'))}`;
}

/** How an instance is. Pure. */
export function standing(instance) {
  if (instance.isolate) return { severity: 'warning', text: 'isolated' };
  if (instance.health === 'critical') return { severity: 'bad', text: 'critical' };
  if (instance.weight === 0) return { severity: 'warning', text: 'weight 0' };
  if (instance.health === 'warning') return { severity: 'warning', text: 'warning' };
  return { severity: 'good', text: 'passing' };
}

/** What a transition says. Pure. */
export function transition(one) {
  if (!one.to) return { severity: 'info', text: 'deregistered' };
  if (one.to.isolate !== one.from.isolate) return one.to.isolate ? { severity: 'warning', text: 'isolated' } : { severity: 'good', text: 'used again' };
  const severity = { passing: 'good', warning: 'warning', critical: 'bad' }[one.to.health] ?? 'info';
  return { severity, text: `${one.from.health} → ${one.to.health}` };
}

/** A check in words. Pure. */
export function check(found) {
  if (!found) return 'none: its health stays as reported';
  const { type, ...rest } = found;
  const said = Object.entries(rest).filter(([, value]) => value !== null).map(([name, value]) => `${name.replaceAll('_', ' ')} ${value}`);
  return [type.toUpperCase(), ...said].join(', ');
}

const list = new Table('Services', [
  { title: 'Service', key: (one) => `${one.namespace}/${one.name}`, cell: (one) => h('a', { href: href('service', `${one.namespace}/${one.name}`) }, one.name), wide: true },
  { title: 'Namespace', cell: (one) => one.namespace },
  { title: 'State', key: (one) => `${one.usable}/${one.instances}`, cell: (one) => mark(serviceState(one).severity, serviceState(one).text), text: (one) => serviceState(one).text, sort: serviceRank },
  { title: 'Usable', key: (one) => `${one.usable}/${one.instances}`, cell: (one) => [share(one), ` ${count(one.usable)} of ${count(one.instances)}`], sort: (one) => one.usable, number: true },
  { title: 'Critical', cell: (one) => count(one.critical), number: true },
  { title: 'Revision', cell: (one) => count(one.revision), number: true, minor: true },
], { nothing: 'No service fits.', rowKey: (one) => `${one.namespace}/${one.name}`, rank: serviceRank });

function share(one) {
  const part = one.instances === 0 ? 0 : (one.usable / one.instances) * 100;
  return svg('svg', { class: 'share', viewBox: '0 0 100 8', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, svg('rect', { width: 100, height: 8, class: 'rest' }), svg('rect', { width: part, height: 8 }));
}

const columns = (own) => [
  { title: 'Instance', key: (one) => one.id, cell: (one) => h('a', { href: href('instance', one.id) }, one.id.slice(one.id.indexOf('/') + 1)) },
  ...(own ? [] : [{ title: 'Service', key: (one) => one.service, cell: (one) => h('a', { href: href('service', one.service) }, one.service) }]),
  { title: 'Address', cell: (one) => (one.port ? `${one.host}:${one.port}` : one.host), broad: true },
  { title: 'State', key: (one) => `${one.health}${one.isolate}${one.weight === 0}`, cell: (one) => { const { severity, text } = standing(one); return mark(severity, text); }, text: (one) => standing(one).text, sort: instanceRank },
  { title: 'Weight', cell: (one) => count(one.weight), number: true },
  { title: 'Location', cell: (one) => one.location.join(' / ') || '–', minor: true },
  { title: 'Version', cell: (one) => one.version || '–', minor: true },
  { title: 'Metadata', cell: (one) => one.metadata.map(([key, value]) => `${key}=${value}`).join('  ') || '–', wide: true },
];
const found = new Table('Instances with that metadata', columns(false), { nothing: 'No instance has that metadata.', rowKey: (one) => one.id, rank: instanceRank });
const instances = new Table('Instances of the service', columns(true), { nothing: 'It has no instances.', rowKey: (one) => one.id, rank: instanceRank });
const history = new Table('What became of it', [
  { title: 'When', cell: (one) => clock(one.at), sort: (one) => one.at },
  { title: 'What', key: (one) => JSON.stringify(one), cell: (one) => { const { severity, text } = transition(one); return mark(severity, text); }, text: (one) => transition(one).text, wide: true },
], { nothing: 'Nothing has changed since this page’s process started.', rowKey: (one) => `${one.at} ${JSON.stringify(one.to)}` });

const search = h('input', { type: 'search', id: 'search', placeholder: 'name, or key=value', autocomplete: 'off', spellcheck: 'false', maxlength: 200 });
const namespaces = h('select', { id: 'namespace' }, h('option', { value: '' }, 'all namespaces'));
const note = h('p', { class: 'nothing', role: 'status' });
const summary = h('dl', { class: 'facts across' });
const views = {
  services: h('div', null,
    h('section', { class: 'card' }, h('h2', null, 'Registry'), summary),
    h('section', { class: 'card' },
      h('form', { class: 'search', role: 'search', onsubmit: (event) => event.preventDefault() },
        h('label', { for: 'search' }, 'Find'), search, h('label', { for: 'namespace', class: 'visually-hidden' }, 'Namespace'), namespaces),
      note, list.element, found.element)),
  service: h('div', null, h('p', null, h('a', { href: '#/services' }, '← Services')), h('section', { class: 'card' }, h('h2', { id: 'service-name' }), h('dl', { class: 'facts across', id: 'service-facts' }), h('p', { class: 'nothing', id: 'service-note' }), instances.element)),
  instance: h('div', null, h('p', { id: 'instance-back' }), h('div', { class: 'columns' }, h('section', { class: 'card' }, h('h2', { id: 'instance-name' }), h('p', { class: 'act', id: 'instance-actions' }), h('p', { class: 'nothing', id: 'instance-note' }), h('dl', { class: 'facts', id: 'instance-facts' })),
    h('section', { class: 'card' }, h('h2', null, 'Metadata'), h('dl', { class: 'facts', id: 'instance-metadata' })),
    h('section', { class: 'card' }, h('h2', null, 'History'), history.element))),
};

let here = { view: 'services', q: '', namespace: '' };
let shown = null;
let asked = 0;
let soon = null;

function facts(element, pairs) {
  replace(element, JSON.stringify(pairs), () => pairs.map(([name, value]) => h('div', null, h('dt', null, name), h('dd', null, value))));
}

function remember() {
  const query = new URLSearchParams();
  if (search.value) query.set('q', search.value);
  if (namespaces.value) query.set('namespace', namespaces.value);
  const text = query.toString();
  window.history.replaceState(null, '', `#/services${text ? `?${text}` : ''}`);
  here = place(location.hash);
  load();
}

/** Puts the page together, once. */
export function setUp() {
  byId('page-services').append(...Object.values(views));
  let typing;
  search.addEventListener('input', () => {
    clearTimeout(typing);
    typing = setTimeout(remember, 150);
  });
  namespaces.addEventListener('change', remember);
}

/** Goes where the address says. */
export function go(hash) {
  here = place(hash);
  for (const [name, element] of Object.entries(views)) element.hidden = name !== here.view;
  if (here.view === 'services') {
    if (document.activeElement !== search) search.value = here.q;
    if (![...namespaces.options].some((option) => option.value === here.namespace)) namespaces.append(h('option', { value: here.namespace }, here.namespace));
    namespaces.value = here.namespace;
  }
  load();
}

/** The registry is now like this: what is open is asked for again if something changed. */
export function show(registry, now) {
  if (!registry) return;
  facts(summary, [
    ['State', registry.ready ? 'ready' : `not ready: ${registry.store_error ?? 'it stops'}`],
    ['Store', registry.store], ['Instances', count(registry.instances)], ['Services', count(registry.services)],
    ['Revision', count(registry.revision)], ['Watchers', count(registry.watchers)], ['Address', registry.addresses[0] ?? '–'],
  ]);
  const key = `${registry.revision}`;
  if (key !== shown && !byId('page-services').hidden) {
    shown = key;
    // Changes come in heaps: one question for those of half a second.
    if (soon === null) soon = setTimeout(() => { soon = null; load(); }, 500);
  }
  if (here.view === 'instance' && current) since(current, now);
}

let current = null;

/** Asks for what is open, and shows the answer if it is still wanted then. */
export async function load() {
  if (byId('page-services').hidden) return;
  const mine = ++asked;
  try {
    if (here.view === 'services') {
      const query = new URLSearchParams({ q: here.q, namespace: here.namespace });
      const answer = await ask(`/api/services?${query}`);
      if (mine === asked) showList(answer);
    } else if (here.view === 'service') {
      const answer = await ask(`/api/instances?service=${encodeURIComponent(here.service)}`);
      if (mine === asked) showService(answer);
    } else {
      const answer = await ask(`/api/instance?id=${encodeURIComponent(here.id)}`);
      if (mine === asked) showInstance(answer);
    }
  } catch (error) {
    if (mine === asked) failed(error);
  }
}

function failed(error) {
  const gone = error.status === 404;
  const text = gone && here.view !== 'services' ? `There is ${error.message.replace('no such', 'no such')}: it may have been deregistered.` : `It cannot be shown: ${error.message}.`;
  if (here.view === 'services') setText(note, text);
  else if (here.view === 'service') {
    setText(byId('service-name'), here.service);
    setText(byId('service-note'), text);
    instances.show([]);
  } else {
    setText(byId('instance-name'), here.id);
    setText(byId('instance-note'), text);
    byId('instance-actions').replaceChildren();
    byId('instance-actions').dataset.key = '';
  }
}

function showList(answer) {
  const known = [...namespaces.options].map((option) => option.value);
  for (const name of answer.namespaces) if (!known.includes(name)) namespaces.append(h('option', { value: name }, name));
  const byMetadata = here.q.split(/\s+/).some((word) => word.indexOf('=') > 0);
  list.element.hidden = byMetadata;
  found.element.hidden = !byMetadata;
  list.show(answer.services);
  found.show(answer.instances);
  const said = byMetadata
    ? answer.more ? `The first ${plural(answer.instances.length, 'instance')}: narrow the search for the rest.` : `${plural(answer.instances.length, 'instance')} found.`
    : answer.total > answer.services.length ? `The first ${count(answer.services.length)} of ${plural(answer.total, 'service')}: narrow the search for the rest.` : `${plural(answer.total, 'service')}.`;
  setText(note, said);
}

function showService(answer) {
  const { service } = answer;
  setText(byId('service-name'), `${service.namespace}/${service.name}`);
  facts(byId('service-facts'), [
    ['Usable', `${count(service.usable)} of ${count(service.instances)}`], ['Critical', count(service.critical)], ['Revision', count(service.revision)],
    ...answer.metadata.map(([key, value]) => [key, value]),
  ]);
  setText(byId('service-note'), answer.more ? `The first ${count(answer.instances.length)}; find the others by their metadata.` : '');
  instances.show(answer.instances);
}

function since(detail, now) {
  const one = detail.instance;
  facts(byId('instance-facts'), [
    ['State', one.isolate && one.health !== 'passing' ? `isolated, and ${one.health}` : standing(one).text],
    ['Address', one.port ? `${one.host}:${one.port}` : one.host],
    ['Service', one.service],
    ['Weight, priority', `${one.weight}, ${one.priority}`],
    ['Protocol, version', `${one.protocol || '–'}, ${one.version || '–'}`],
    ['Location', one.location.join(' / ') || '–'],
    ['Check', check(one.check)],
    ['Registered', `${clock(one.created, now)} (${ago(one.created, now)})`],
    ['Changed', `${clock(one.changed, now)} (${ago(one.changed, now)})`],
    ['Revision', count(one.revision)],
  ]);
}

function showInstance(answer) {
  current = answer;
  const one = answer.instance;
  replace(byId('instance-back'), one.service, () => h('a', { href: href('service', one.service) }, `← ${one.service}`));
  setText(byId('instance-name'), one.id);
  setText(byId('instance-note'), '');
  since(answer, Date.now());
  facts(byId('instance-metadata'), one.metadata.length > 0 ? one.metadata : [['', 'none']]);
  history.show(answer.history);
  const instance = one.id;
  replace(byId('instance-actions'), `${session().may_act}${one.isolate}${one.weight}${instance}`, () => [
    one.isolate
      ? actButton('Use again', { question: `Use ${instance} again?`, verb: 'Use again', action: { action: 'restore', instance }, then: load, consequence: 'Whoever discovers the service gets it again, if its health allows.' })
      : actButton('Isolate', { question: `Isolate ${instance}?`, verb: 'Isolate', action: { action: 'isolate', instance }, then: load, consequence: 'Nobody who discovers the service is sent to it any more, whatever its health, until you take that back. It stays registered.' }),
    actButton('Weight', { question: `Weight of ${instance}`, verb: 'Set', action: { action: 'weight', instance }, then: load, consequence: 'Its share of the traffic among instances of its priority; 0 is none.', field: { label: 'Weight', name: 'weight', value: one.weight, max: 65535 } }),
    actButton('Deregister', { question: `Deregister ${instance}?`, verb: 'Deregister', action: { action: 'deregister', instance }, then: load, consequence: 'It is taken out of the registry. If it still runs and sends heartbeats, it may register itself again.' }),
  ].filter(Boolean));
}
