// The curves: from what was to elements, and what is at the pointer.

import { ask } from './actions.js';
import { chosen, to } from './clusters.js';
import { byId, h, replace, setAttribute, setText, svg } from './dom.js';
import { bytes, clock, count, micros, short } from './format.js';
import { SPANS, cursor, curve, joined, nearest, stepped, times, top, unknown, within } from './history.js';

const perSecond = (value) => (value === null ? '–' : `${short(value)}/s`);
const amount = (value) => (value === null ? '–' : Number.isInteger(value) ? count(value) : short(value));

/** What is drawn, and of which part. Each line: its series and what it is called. */
const CHARTS = [
  { id: 'statements', title: 'Statements', part: 'proxy', say: perSecond, lines: [['reads', 'on replicas'], ['writes', 'on the primary'], ['local', 'answered here']] },
  { id: 'transactions', title: 'Transactions', part: 'proxy', say: perSecond, lines: [['transactions', 'transactions']] },
  { id: 'clients', title: 'Clients', part: 'proxy', say: amount, lines: [['clients', 'connected'], ['waiting', 'waiting']] },
  { id: 'latency', title: 'Time of a statement', part: 'proxy', say: (value) => (value === null ? '–' : `≤ ${micros(value)}`), mark: micros, lines: [['p50', 'median'], ['p99', '99th percentile']] },
  { id: 'wal', title: 'WAL', part: 'cluster', or: 'relay', binary: true, say: (value) => (value === null ? '–' : `${bytes(value)}/s`), mark: (value) => `${bytes(value)}/s`, lines: [['wal', 'written']] },
  { id: 'instances', title: 'Instances', part: 'registry', say: amount, lines: [['instances', 'registered'], ['unwell', 'critical or isolated']] },
  { id: 'registry', title: 'Registry', part: 'registry', say: perSecond, lines: [['changes', 'changes'], ['heartbeats', 'heartbeats']] },
  { id: 'watchers', title: 'Watchers', part: 'registry', say: amount, lines: [['watchers', 'wait for a change']] },
];
const BOX = { x: 56, y: 6, bottom: 18, right: 8, height: 128 };

let span = 'minutes';
const known = { hour: unknown(), day: unknown() };
const asked = { hour: 0, day: 0 };
let asking = false;
/** The time that is looked at; null: none. */
let looked = null;
let latest = null;
const figures = new Map();
const note = h('p', { class: 'nothing', role: 'status', id: 'curves-note' });
const values = h('p', { class: 'visually-hidden', 'aria-live': 'polite' });

function points(state) {
  const source = span === 'minutes' ? { points: state.samples, open: null } : known[span];
  return within(source, span, state.now);
}

async function load() {
  const mine = span;
  const { every } = SPANS[mine];
  if (!every || asking || Date.now() - asked[mine] < every) return;
  asking = true;
  asked[mine] = Date.now();
  const base = known[mine];
  try {
    const answer = await ask(to(`/api/history?span=${mine}&after=${cursor(base)}`, chosen(location.search)));
    known[mine] = joined(base, answer);
    setText(note, '');
  } catch (error) {
    setText(note, `Older times cannot be shown: ${error.message}.`);
  } finally {
    asking = false;
    if (latest) draw(latest);
  }
}

function choose(name) {
  span = name;
  looked = null;
  if (latest) show(latest);
}

/** Puts the chooser in its place, once. */
export function setUp() {
  const choice = (name) => h('label', null, h('input', { type: 'radio', name: 'span', value: name, id: `span-${name}`, checked: name === span, onchange: () => choose(name) }), ` ${SPANS[name].title}`);
  byId('curves').append(
    h('fieldset', { class: 'spans' }, h('legend', { class: 'visually-hidden' }, 'How far back'), Object.keys(SPANS).map(choice), h('output', { id: 'curves-at' })),
    note, values, h('div', { class: 'figures', id: 'figures' }));
}

function figure(chart) {
  const parts = { marks: svg('g'), lines: svg('g'), cross: svg('path', { class: 'cross' }), values: [] };
  parts.image = svg('svg', { class: 'chart', tabindex: '0', role: 'img', onpointermove: (event) => point(event, parts), onpointerdown: (event) => point(event, parts), onpointerleave: () => look(null), onblur: () => look(null), onkeydown: key },
    parts.marks, parts.lines, parts.cross);
  const legend = chart.lines.map(([, called], index) => {
    const value = h('b');
    parts.values.push(value);
    return h('span', null, svg('svg', { width: 18, height: 8, 'aria-hidden': 'true' }, svg('path', { d: 'M0 4H18', class: `curve c${index}` })), ` ${called} `, value);
  });
  parts.paths = chart.lines.map((_, index) => svg('path', { class: `curve c${index}` }));
  parts.lines.append(...parts.paths);
  parts.element = h('figure', { id: `curve-${chart.id}` }, h('figcaption', null, h('strong', null, chart.title), h('span', { class: 'legend' }, legend)), parts.image);
  byId('figures').append(parts.element);
  figures.set(chart.id, parts);
  return parts;
}

/** What is at the time that is looked at, or now. */
function at(list) {
  return list[looked === null ? list.length - 1 : nearest(list, looked)] ?? null;
}

function look(t) {
  if (looked === t) return;
  looked = t;
  if (latest) draw(latest);
}

function point(event, parts) {
  const place = parts.image.getBoundingClientRect();
  const share = (event.clientX - place.left - BOX.x) / (place.width - BOX.x - BOX.right);
  const list = points(latest);
  const found = list[nearest(list, latest.now - SPANS[span].ms * (1 - Math.max(0, Math.min(1, share))))];
  look(found?.t ?? null);
}

function key(event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const list = points(latest);
  const t = stepped(list, looked, event.key);
  if (t === undefined) return;
  event.preventDefault();
  look(t);
  const one = at(list);
  const chart = CHARTS.find((each) => figures.get(each.id)?.image === event.currentTarget);
  if (one && chart) setText(values, `${clock(one.t, latest.now)}: ${chart.lines.map(([name, called]) => `${called} ${chart.say(one[name] ?? null)}`).join(', ')}`);
}

function draw(state) {
  const list = points(state);
  const [from, end] = [state.now - SPANS[span].ms, state.now];
  const one = at(list);
  setText(byId('curves-at'), looked === null || !one ? 'now' : clock(one.t, state.now));
  for (const chart of CHARTS) {
    const here = state[chart.part] || (chart.or && state[chart.or]);
    const parts = here ? figures.get(chart.id) ?? figure(chart) : figures.get(chart.id);
    if (!parts) continue;
    parts.element.hidden = !here;
    if (here) drawOne(chart, parts, { list, from, to: end, one });
  }
}

function drawOne(chart, parts, { list, from, to: end, one }) {
  const width = Math.floor(parts.image.parentElement.clientWidth);
  if (width < 100) return;
  const box = { x: BOX.x, y: BOX.y, w: width - BOX.x - BOX.right, h: BOX.height - BOX.y - BOX.bottom };
  // There is no half of a thing on an axis.
  const most = Math.max(chart.say === amount ? 2 : 0, top(list.flatMap((each) => chart.lines.map(([name]) => each[name])), chart.binary));
  setAttribute(parts.image, 'viewBox', `0 0 ${width} ${BOX.height}`);
  setAttribute(parts.image, 'height', BOX.height);
  const say = chart.mark ?? ((value) => short(value));
  const marks = times(from, end, Math.max(2, Math.floor(box.w / 70)));
  const x = (t) => box.x + ((t - from) / (end - from)) * box.w;
  replace(parts.marks, `${width} ${most} ${marks.map((mark) => Math.round(x(mark.t))).join()}`, () => [
    ...[0, 0.5, 1].flatMap((share) => {
      const y = box.y + box.h * (1 - share);
      return [svg('path', { class: 'grid', d: `M${box.x} ${y}h${box.w}` }), svg('text', { class: 'axis', x: box.x - 6, y: y + 4, 'text-anchor': 'end' }, say(most * share))];
    }),
    ...marks.map((mark) => svg('text', { class: 'axis', x: x(mark.t), y: BOX.height - 4, 'text-anchor': x(mark.t) < box.x + 16 ? 'start' : x(mark.t) > width - 24 ? 'end' : 'middle' }, mark.label)),
  ]);
  chart.lines.forEach(([name, called], index) => {
    setAttribute(parts.paths[index], 'd', curve(list, name, { from, to: end, most, step: SPANS[span].step }, box) || null);
    setText(parts.values[index], chart.say(one?.[name] ?? null));
    setAttribute(parts.values[index], 'aria-label', `${called}: ${chart.say(one?.[name] ?? null)}`);
  });
  setAttribute(parts.cross, 'd', looked === null || !one ? null : `M${Math.round(x(Math.max(from, one.t)))} ${box.y}v${box.h}`);
  const last = chart.lines.map(([name, called]) => `${called} ${chart.say(list.at(-1)?.[name] ?? null)}`).join(', ');
  setAttribute(parts.image, 'aria-label', `${chart.title}, the last ${SPANS[span].title}: now ${last}; axis to ${say(most)}. Arrow keys move to other times.`);
}

/** Shows the state. */
export function show(state) {
  latest = state;
  if (!byId('card-curves').open) return;
  load();
  draw(state);
}
