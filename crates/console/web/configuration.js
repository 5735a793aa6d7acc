// The page of configuration entries: a list with a search, and an entry with its content, its versions and their difference.

import { actButton, ask, session, signIn } from './actions.js';
import { byId, h, replace, setText } from './dom.js';
import { ago, clock, count, plural } from './format.js';
import { Table } from './table.js';

/** Where in the page one is, from the part of the address behind `#`. Pure. */
export function place(hash) {
  const [path, query] = hash.replace(/^#\/?/, '').split('?');
  const steps = path.split('/').map((step) => decode(step));
  if (steps[0] === 'entry' && steps[1] && steps[2] && steps[3]) return { view: 'entry', namespace: steps[1], group: steps[2], id: steps.slice(3).join('/') };
  const wanted = new URLSearchParams(query ?? '');
  return { view: 'entries', namespace: wanted.get('namespace') || 'default', group: wanted.get('group') ?? '', q: wanted.get('q') ?? '' };
}

function decode(step) {
  try {
    return decodeURIComponent(step);
  } catch {
    return step;
  }
}

/** The part of an address of an entry. Pure. */
export function href(entry) {
  return `#/entry/${[entry.namespace, entry.group, entry.id].map(encodeURIComponent).join('/')}`;
}

/** What a version is beside its number. Pure. */
export function standing(version, newest) {
  if (version.removed_by !== null) return `removed by ${version.removed_by}`;
  if (version.version === newest) return version.restored ? `current, content of ${version.restored}` : 'current';
  return version.restored ? `content of ${version.restored}` : '';
}

/** A comparison as text lines, each with the mark of its change: nothing rests on colour alone. Pure. */
export function marked(lines) {
  const marks = { added: '+', removed: '-', same: ' ' };
  return lines.map((line) => ({ change: line.change, text: line.change === 'gap' ? '⋯' : `${marks[line.change]} ${line.text}` }));
}

const list = new Table('Configuration entries', [
  { title: 'Group', cell: (one) => one.group },
  { title: 'Data id', key: (one) => `${one.namespace}/${one.group}/${one.id}`, cell: (one) => h('a', { href: href(one) }, one.id), text: (one) => one.id, wide: true },
  { title: 'Type', cell: (one) => (one.secret ? `${one.type}, secret` : one.type) },
  { title: 'Version', cell: (one) => count(one.version), number: true },
  { title: 'Bytes', cell: (one) => count(one.bytes), number: true, minor: true },
  { title: 'MD5', cell: (one) => one.md5, minor: true },
  { title: 'Published', cell: (one) => clock(one.time), sort: (one) => one.time },
], { nothing: 'No entry fits.', rowKey: (one) => `${one.group}/${one.id}` });

let newest = 0;
const versions = new Table('Versions', [
  { title: 'Version', cell: (one) => count(one.version), number: true },
  { title: 'When', cell: (one) => clock(one.time), sort: (one) => one.time },
  { title: 'By', cell: (one) => one.author },
  { title: '', key: (one) => `${one.version}/${newest}`, cell: (one) => standing(one, newest), text: (one) => standing(one, newest), wide: true },
  { title: 'MD5', cell: (one) => one.md5, minor: true },
  { title: 'Compare', key: (one) => `${one.version}/${newest}`, cell: (one) => one.version !== newest && h('button', { type: 'button', class: 'quiet', onclick: () => compare(one.version, newest) }, `with ${newest}`), text: () => '' },
  { title: 'Restore', key: (one) => `${one.version}/${newest}/${session().may_act}`, cell: (one) => (one.version !== newest || one.removed_by !== null) && restore(one), text: () => '' },
], { nothing: 'No version is kept.', rowKey: (one) => `${one.version}` });
const audit = new Table('Audit log', [
  { title: 'When', cell: (one) => clock(one.time), sort: (one) => one.time },
  { title: 'Action', cell: (one) => one.action },
  { title: 'Token', cell: (one) => one.token },
  { title: 'From', cell: (one) => one.peer, minor: true },
  { title: 'Object', cell: (one) => one.object, wide: true },
], { nothing: 'The audit log has no change of this entry.', rowKey: (one) => `${one.time} ${one.object}` });

const namespace = h('input', { type: 'text', id: 'entry-namespace', list: 'entry-namespaces', autocomplete: 'off', spellcheck: 'false', maxlength: 128 });
const known = h('datalist', { id: 'entry-namespaces' });
const group = h('input', { type: 'text', id: 'entry-group', placeholder: 'all groups', autocomplete: 'off', spellcheck: 'false', maxlength: 128 });
const search = h('input', { type: 'search', id: 'entry-search', placeholder: 'a part of the name', autocomplete: 'off', spellcheck: 'false', maxlength: 200 });
const note = h('p', { class: 'nothing', role: 'status' });
const views = {
  entries: h('section', { class: 'card' }, h('h2', null, 'Configuration'),
    h('form', { class: 'search', role: 'search', onsubmit: (event) => event.preventDefault() },
      h('label', { for: 'entry-namespace' }, 'Namespace'), namespace, known, h('label', { for: 'entry-group' }, 'Group'), group, h('label', { for: 'entry-search' }, 'Find'), search),
    note, list.element),
  entry: h('div', null, h('p', { id: 'entry-back' }),
    h('section', { class: 'card' }, h('h2', { id: 'entry-name' }), h('p', { class: 'nothing', id: 'entry-note', role: 'status' }), h('dl', { class: 'facts across', id: 'entry-facts' }), h('pre', { class: 'content', id: 'entry-content', tabindex: '0' })),
    h('section', { class: 'card' }, h('h2', null, 'Versions'), versions.element, h('p', { class: 'nothing', id: 'entry-compared', role: 'status' }), h('pre', { class: 'content diff', id: 'entry-diff', tabindex: '0', hidden: true })),
    h('section', { class: 'card' }, h('h2', null, 'Audit log'), audit.element)),
};

let here = place('');
let asked = 0;

function restore(one) {
  const { namespace: of, group: inGroup, id } = here;
  return actButton('Roll back', {
    question: `Roll back ${inGroup}/${id} to version ${one.version}?`, verb: 'Roll back', then: load,
    action: { action: 'roll_back', entry: { namespace: of, group: inGroup, id }, version: one.version },
    consequence: `Its content is published again as a new version of the namespace ${of}, and every client that listens gets it. The present version stays in the history.`,
  });
}

function remember() {
  const query = new URLSearchParams();
  for (const [name, field] of [['namespace', namespace], ['group', group], ['q', search]]) if (field.value) query.set(name, field.value);
  window.history.replaceState(null, '', `#/configuration?${query}`);
  here = place(location.hash);
  load();
}

/** Puts the page together, once. */
export function setUp() {
  byId('page-configuration').append(...Object.values(views));
  let typing;
  for (const field of [namespace, group, search]) {
    field.addEventListener('input', () => {
      clearTimeout(typing);
      typing = setTimeout(remember, 150);
    });
  }
}

/** Goes where the address says. */
export function go(hash) {
  here = place(hash);
  for (const [name, element] of Object.entries(views)) element.hidden = name !== here.view;
  if (here.view === 'entries') {
    for (const [field, value] of [[namespace, here.namespace], [group, here.group], [search, here.q]]) if (document.activeElement !== field) field.value = value;
  }
  byId('entry-diff').hidden = true;
  setText(byId('entry-compared'), '');
  load();
}

/** Asks for what is open, and shows the answer if it is still wanted then. */
export async function load() {
  if (byId('page-configuration').hidden) return;
  const mine = ++asked;
  try {
    if (here.view === 'entries') {
      const answer = await ask(`/api/entries?${new URLSearchParams({ namespace: here.namespace, group: here.group, q: here.q })}`);
      if (mine === asked) showList(answer);
    } else {
      const answer = await ask(`/api/entry?${named()}`);
      if (mine === asked) showEntry(answer);
    }
  } catch (error) {
    if (mine === asked) failed(error);
  }
}

function named() {
  return new URLSearchParams({ namespace: here.namespace, group: here.group, id: here.id });
}

function failed(error) {
  const text = `It cannot be shown: ${error.message}.`;
  if (here.view === 'entries') {
    list.show([]);
    replace(note, text, () => [text, ' ', error.status === 401 && session().can_sign_in && h('button', { type: 'button', class: 'quiet', onclick: signIn }, 'Sign in')].filter(Boolean));
    return;
  }
  setText(byId('entry-name'), `${here.group}/${here.id}`);
  setText(byId('entry-note'), text);
  setText(byId('entry-content'), '');
  versions.show([]);
  audit.show([]);
}

function showList(answer) {
  replace(known, answer.namespaces.join(' '), () => answer.namespaces.map((name) => h('option', { value: name })));
  const more = answer.total > answer.entries.length;
  const text = more ? `The first ${count(answer.entries.length)} of ${count(answer.total)} entries: narrow the search for the rest.` : `${plural(answer.total, 'entry', 'entries')}.`;
  replace(note, text, () => [text]);
  list.show(answer.entries);
}

function showEntry(answer) {
  const one = answer.entry;
  newest = one.version;
  replace(byId('entry-back'), one.namespace, () => h('a', { href: `#/configuration?${new URLSearchParams({ namespace: one.namespace })}` }, `← ${one.namespace}`));
  setText(byId('entry-name'), `${one.group}/${one.id}`);
  setText(byId('entry-note'), one.removed_by === null ? '' : `Removed by ${one.removed_by}: this is its last version.`);
  const pairs = [
    ['Type', one.type], ['Version', count(one.version)], ['MD5', one.md5], ['Revision', count(one.revision)], ['Bytes', count(one.bytes)],
    ['Published', `${clock(one.time)} (${ago(one.time, Date.now())}) by ${one.author}`],
  ];
  replace(byId('entry-facts'), JSON.stringify(pairs), () => pairs.map(([name, value]) => h('div', null, h('dt', null, name), h('dd', null, value))));
  setText(byId('entry-content'), answer.content ?? 'This content is a secret, and is not shown.');
  versions.show(answer.versions);
  audit.show(answer.audit);
}

async function compare(from, to) {
  const query = named();
  query.set('from', from);
  query.set('to', to);
  const diff = byId('entry-diff');
  try {
    const { lines } = await ask(`/api/entry/compare?${query}`);
    const said = lines === null ? 'Contents that are secret or very long are not compared.' : lines.length === 0 ? `Versions ${from} and ${to} have the same content.` : `From version ${from} to version ${to}:`;
    setText(byId('entry-compared'), said);
    diff.hidden = !lines?.length;
    replace(diff, `${from} ${to} ${JSON.stringify(lines)}`, () => marked(lines ?? []).map((line) => h('span', { class: line.change }, `${line.text}\n`)));
  } catch (error) {
    setText(byId('entry-compared'), `They cannot be compared: ${error.message}.`);
    diff.hidden = true;
  }
}
