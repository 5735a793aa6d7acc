// What statements take, by shape: asked for while the card is open.

import { ask } from './actions.js';
import { chosen, to } from './clusters.js';
import { byId, h, setText } from './dom.js';
import { count, micros } from './format.js';
import { Table } from './table.js';

/** Time between two questions, in milliseconds. */
const EVERY = 3000;

/** Rows of an answer: with the mean, and the share of the time of all. Pure. */
export function rows({ statements, micros: all }) {
  return statements.map((one) => ({
    ...one,
    mean: one.calls > 0 ? one.total_micros / one.calls : null,
    share: all > 0 ? one.total_micros / all : 0,
    on_replicas: Math.max(0, one.calls - one.on_primary),
  }));
}

/** What is said above them. Pure. */
export function said({ statements, total }) {
  if (total === 0) return '';
  const kind = 'By shape, without literals; since the start or RESET STATEMENTS.';
  return total > statements.length ? `${kind} The ${count(statements.length)} of ${count(total)} that have taken longest together.` : kind;
}

const percent = (share) => (share === 0 ? '0 %' : share < 0.001 ? '<0.1 %' : `${(share * 100).toFixed(1)} %`);
const time = (value) => micros(value === null ? null : Math.round(value));

export const columns = [
  { title: 'Statement', key: (one) => one.text, cell: (one) => h('code', null, one.text), wide: true },
  { title: 'Calls', cell: (one) => count(one.calls), sort: (one) => one.calls, number: true },
  { title: 'Total', cell: (one) => time(one.total_micros), sort: (one) => one.total_micros, number: true },
  { title: 'Share', cell: (one) => percent(one.share), sort: (one) => one.share, number: true },
  { title: 'Mean', cell: (one) => time(one.mean), sort: (one) => one.mean, number: true },
  { title: 'Longest', cell: (one) => time(one.longest_micros), sort: (one) => one.longest_micros, number: true },
  { title: 'Rows', cell: (one) => count(one.rows), sort: (one) => one.rows, number: true },
  { title: 'Errors', cell: (one) => count(one.errors), sort: (one) => one.errors, number: true },
  { title: 'On replicas', cell: (one) => count(one.on_replicas), sort: (one) => one.on_replicas, number: true },
];

let table = null;
const note = () => byId('statements-note');
let asking = false;
let asked = 0;

async function load() {
  if (asking || Date.now() - asked < EVERY) return;
  asking = true;
  asked = Date.now();
  try {
    const answer = await ask(to('/api/statements', chosen(location.search)));
    table.show(rows(answer));
    setText(note(), said(answer));
  } catch (error) {
    setText(note(), `They cannot be shown: ${error.message}.`);
  } finally {
    asking = false;
  }
}

/** Puts the table in its place, once. */
export function setUp() {
  table = new Table('Statements by shape', columns, { nothing: 'No statement has ended yet.', rowKey: (one) => one.text, searchable: true });
  byId('statements').append(h('p', { class: 'nothing', id: 'statements-note' }), table.element);
  byId('card-statements').addEventListener('toggle', () => byId('card-statements').open && load());
}

/** Shows the state. */
export function show(state) {
  byId('card-statements').hidden = !state.proxy;
  if (state.proxy && byId('card-statements').open) load();
}
