// The page of the cluster: from the state to elements.

import { actButton, ask, session } from './actions.js';
import { area, bars, line, thinned } from './charts.js';
import { chosen, to } from './clusters.js';
import * as curves from './curves.js';
import { byId, h, replace, setAttribute, setText, state as mark, svg } from './dom.js';
import { picture, told } from './drawing.js';
import { between, bytes, clock, count, distance, micros, millis, short, words } from './format.js';
import * as folds from './folds.js';
import { clientRank, nodeRank, poolRank, poolState } from './order.js';
import { SAMPLES, latest } from './state.js';
import * as statements from './statements.js';
import { Table, search } from './table.js';
import { p, standing, verdict, waits } from './verdict.js';

const SPARK = { width: 120, height: 30, group: 3 };

const tiles = [
  { id: 'statements', title: 'Statements', value: (s) => `${short(s.reads + s.writes + s.local)}/s`, series: (s) => s.reads + s.writes + s.local, note: (s) => `${short(s.reads)} on replicas` },
  { id: 'transactions', title: 'Transactions', value: (s) => `${short(s.transactions)}/s`, series: (s) => s.transactions, note: (s) => `${short(s.writes)}/s on the primary` },
  { id: 'clients', title: 'Clients', value: (s) => count(s.clients), series: (s) => s.clients, note: (s) => (s.waiting > 0 ? `${count(s.waiting)} waiting` : 'none waiting'), bad: (s) => s.waiting > 0 },
  { id: 'p50', title: 'Median', proxy: true, value: (s, { proxy }) => p(proxy.statements.p50, proxy.statements.count), series: (s) => s.p50, note: () => 'of the last minute' },
  { id: 'p99', title: '99th percentile', proxy: true, value: (s, { proxy }) => p(proxy.statements.p99, proxy.statements.count), series: (s) => s.p99, note: (s, { proxy }) => `wait for a server ${p(proxy.waits.p99, proxy.waits.count)}` },
  { id: 'wal', title: 'WAL', wal: true, value: (s) => (s.wal === null ? '–' : `${bytes(s.wal)}/s`), series: (s) => s.wal, note: () => 'written by the primary' },
];

const made = new Map();

function tile(one) {
  const spark = svg('svg', { viewBox: `0 0 ${SPARK.width} ${SPARK.height}`, preserveAspectRatio: 'none', 'aria-hidden': 'true', class: 'spark' },
    svg('path', { class: 'fill' }), svg('path', { class: 'line' }));
  const parts = { value: h('strong'), note: h('small'), spark };
  parts.element = h('li', { class: 'tile', id: `tile-${one.id}` }, h('span', null, one.title), parts.value, spark, parts.note);
  byId('tiles').append(parts.element);
  made.set(one.id, parts);
  return parts;
}

function showTiles(state) {
  const sample = latest(state);
  if (!sample) return;
  for (const one of tiles) {
    const here = one.wal ? state.cluster || state.relay : state.proxy;
    if (!here) continue;
    const parts = made.get(one.id) ?? tile(one);
    setText(parts.value, one.value(sample, state));
    setText(parts.note, one.note(sample, state));
    parts.element.classList.toggle('warning', Boolean(one.bad?.(sample)));
    const series = thinned(state.samples.map(one.series), SPARK.group);
    const slots = SAMPLES / SPARK.group;
    setAttribute(parts.spark.children[0], 'd', area(series, SPARK.width, SPARK.height, slots));
    setAttribute(parts.spark.children[1], 'd', line(series, SPARK.width, SPARK.height, slots));
  }
}

function showVerdict(state) {
  const said = verdict(state);
  if (said.length === 0) return;
  const worst = said[0].severity;
  // Figures move all the time; who listens wants to hear of what changed, not of each.
  const key = said.map((one) => one.severity + one.text.replaceAll(/[\d.]+ (µs|ms|s|min|h|days)\b/g, '#')).join('\n');
  const place = byId('verdict');
  place.className = `verdict ${worst}`;
  replace(place, key, () => h('ul', null, said.map((one) => h('li', null, mark(one.severity, one.text)))));
  document.title = `${{ good: '', info: '', warning: '▲ ', bad: '✖ ' }[worst]}${state.cluster?.name ? `${state.cluster.name} · ` : ''}Kingpost`;
}

function showPicture(state) {
  const card = byId('card-picture');
  card.hidden = !state.cluster && !state.relay && !state.proxy;
  if (card.hidden) return;
  const place = byId('picture');
  const width = Math.floor(place.clientWidth);
  if (width < 50) return;
  const { height, boxes, edges } = picture(state, width);
  const arrow = (id) => svg('marker', { id: `arrow-${id}`, class: `arrow ${id}`, viewBox: '0 0 8 8', refX: 2, refY: 4, markerWidth: 7, markerHeight: 7, orient: 'auto' }, svg('path', { d: 'M0 0 8 4 0 8Z' }));
  const drawn = [svg('defs', null, ['flow', 'wal', 'reads', 'broken'].map(arrow))];
  for (const edge of edges) {
    if (edge.path) drawn.push(svg('path', { d: edge.path, class: `edge ${edge.kind}`, 'marker-end': `url(#arrow-${edge.kind})` }));
    if (edge.label) drawn.push(svg('text', { x: edge.x, y: edge.y, 'text-anchor': edge.anchor, class: `label ${edge.kind}` }, edge.label));
  }
  for (const box of boxes) drawn.push(drawBox(box));
  const image = svg('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': told(state) }, drawn);
  place.replaceChildren(image);
}

function drawBox(box) {
  const clip = (text, size) => (text.length > size ? `${text.slice(0, size - 1)}…` : text);
  const size = Math.floor((box.w - 24) / 6.9);
  const dot = { good: '●', warning: '▲', bad: '✖' }[box.severity];
  return svg('g', { class: `box ${box.severity}`, transform: `translate(${box.x} ${box.y})`, id: `box-${box.id}` },
    svg('title', null, [box.title, box.tag, ...box.lines].filter(Boolean).join(' · ')),
    svg('rect', { width: box.w, height: box.h, rx: 7 }),
    svg('text', { x: 12, y: 23, class: 'title' }, dot && svg('tspan', { class: 'dot' }, `${dot} `), clip(box.title, Math.max(8, size - box.tag.length - 1))),
    svg('text', { x: box.w - 12, y: 23, 'text-anchor': 'end', class: 'tag' }, clip(box.tag, 22)),
    box.lines.map((text, index) => svg('text', { x: 12, y: 44 + index * 18, class: 'detail' }, clip(text, size))));
}

const nodes = new Table('Nodes of the cluster', [
  { title: 'Node', cell: (node) => node.name },
  { title: 'State', key: (node) => `${node.role}${node.usable}${node.error}`, cell: (node) => { const { severity, text } = standing(node); return mark(severity, text); }, text: (node) => standing(node).text, sort: nodeRank },
  { title: 'Address', cell: (node) => node.address, broad: true },
  { title: 'Zone', cell: (node) => node.zone ?? '–', minor: true },
  { title: 'Timeline', cell: (node) => count(node.timeline), number: true },
  { title: 'Position', cell: (node) => node.position ?? '–', number: true, broad: true },
  { title: 'Behind', sort: (node) => (node.role === 'replica' ? node.lag_ms : null), cell: (node) => (node.role === 'replica' ? millis(node.lag_ms) : '–'), number: true },
  { title: 'Still to come', sort: (node) => (node.role === 'replica' ? node.lag_transactions ?? node.lag_bytes : null), cell: (node) => (node.role === 'replica' ? distance(node) : '–'), number: true },
  { title: 'Share of reads', cell: (node) => (node.role === 'replica' ? short(node.weight) : '–'), number: true, minor: true },
  { title: 'Last error', cell: (node) => node.error ?? '', wide: true },
], { nothing: 'No node is configured.', rowKey: (node) => node.name, rank: nodeRank, searchable: true });

function poolActions(pool) {
  const { database } = pool;
  const pause = {
    question: `Pause ${database}?`, verb: 'Pause', action: { action: 'pause', database },
    consequence: `Transactions of ${database} under way end. Then its server connections close, and its clients wait until you resume.`,
  };
  const resume = {
    question: `Resume ${database}?`, verb: 'Resume', action: { action: 'resume', database },
    consequence: `Clients of ${database} that wait go on.`,
  };
  const reconnect = {
    question: `Reconnect ${database}?`, verb: 'Reconnect', action: { action: 'reconnect', database },
    consequence: `Server connections of ${database} are closed as they become free, and new ones are opened. Clients notice nothing.`,
  };
  return h('span', { class: 'act' },
    pool.paused ? actButton('Resume', resume, `Resume ${database}`) : actButton('Pause', pause, `Pause ${database}`),
    actButton('Reconnect', reconnect, `Reconnect ${database}`));
}

const rate = (value) => (value === null ? '–' : short(value));
const pools = new Table('Pools of the proxy', [
  { title: 'Database', cell: (pool) => pool.database },
  { title: 'User', cell: (pool) => pool.user },
  { title: 'State', key: (pool) => `${poolState(pool).severity} ${poolState(pool).text}`, cell: (pool) => mark(poolState(pool).severity, poolState(pool).text), text: (pool) => poolState(pool).text, sort: poolRank },
  { title: 'Mode', cell: (pool) => pool.mode, minor: true },
  { title: 'Clients', cell: (pool) => count(pool.clients), number: true },
  { title: 'Waiting', cell: (pool) => count(pool.waiting), number: true },
  { title: 'First waits', sort: (pool) => (pool.waiting > 0 ? pool.oldest_wait_ms : null), cell: (pool) => (pool.waiting > 0 ? millis(pool.oldest_wait_ms) : '–'), number: true },
  { title: 'Servers busy', cell: (pool) => count(pool.busy), number: true },
  { title: 'Idle', cell: (pool) => count(pool.idle), number: true },
  { title: 'Statements/s', sort: (pool) => pool.queries, cell: (pool) => rate(pool.queries), number: true },
  { title: 'Tx/s', sort: (pool) => pool.transactions, cell: (pool) => rate(pool.transactions), number: true },
  { title: 'A statement', sort: (pool) => pool.query_micros, cell: (pool) => micros(pool.query_micros === null ? null : Math.round(pool.query_micros)), number: true },
  { title: 'Do', broad: true, silent: true, key: (pool) => `${session().may_act}${pool.paused}`, cell: (pool) => (session().may_act ? poolActions(pool) : h('small', { class: 'nothing' }, 'sign in')) },
], { nothing: 'No client has used a database yet.', rowKey: (pool) => `${pool.database}/${pool.user}`, rank: poolRank, searchable: true });

const waiting = new Table('Who waits for what', [
  { title: 'Who', cell: (row) => row.who },
  { title: 'Waits', cell: (row) => row.what, wide: true },
  { title: 'How long', cell: (row) => row.how, broad: true },
], { nothing: 'Nobody waits.', rowKey: (row) => `${row.who.replace(/^[\d,]+ /, '')} ${row.what.replace(/[\d.]+ \w+ of/, '')}` });

function showLatency(state) {
  const { proxy } = state;
  byId('card-latency').hidden = !proxy;
  if (!proxy) return;
  const found = bars(proxy.statements.buckets, proxy.bounds, micros);
  const key = found.map((bar) => `${bar.label}${bar.count}`).join();
  replace(byId('latency'), key, () => {
    if (found.length === 0) return h('p', { class: 'nothing' }, 'No statement in the last minute.');
    return h('table', { class: 'bars' }, h('caption', { class: 'visually-hidden' }, 'Statements by duration'),
      h('tbody', null, found.map((bar) => h('tr', null,
        h('th', { scope: 'row', class: 'number' }, bar.label),
        h('td', { class: 'bar' }, svg('svg', { viewBox: '0 0 100 10', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, svg('rect', { width: bar.count > 0 ? Math.max(0.6, bar.share * 100) : 0, height: 10 }))),
        h('td', { class: 'number' }, bar.count === 0 ? '' : bar.part >= 0.001 ? `${(bar.part * 100).toFixed(1)} %` : '<0.1 %'),
        h('td', { class: 'number minor' }, count(bar.count))))));
  });
}

const downstreams = new Table('Who streams from the relay', [
  { title: 'Downstream', cell: (one) => one.name },
  { title: 'From', cell: (one) => one.peer, minor: true },
  { title: 'Sent', cell: (one) => one.sent, number: true, broad: true },
  { title: 'Durable', cell: (one) => one.flushed, number: true, broad: true },
  { title: 'Replayed', cell: (one) => one.applied, number: true, broad: true },
  { title: 'Behind', sort: (one) => one.lag_bytes, cell: (one) => bytes(one.lag_bytes), number: true },
  { title: 'Slot', cell: (one) => one.slot ?? '–', minor: true },
], { nothing: 'Nobody streams from it.', rowKey: (one) => `${one.name} ${one.peer}`, searchable: true });
const relayFacts = h('dl', { class: 'facts' });

function facts(list, element) {
  replace(element, JSON.stringify(list), () => list.flatMap(([name, value]) => [h('dt', null, name), h('dd', null, value)]));
}

function showRelay({ relay }) {
  byId('card-relay').hidden = !relay;
  if (!relay) return;
  const { log } = relay;
  facts([
    ['Upstream', `${relay.upstream || '–'} (${relay.state})`],
    ...(log && ['mariadb', 'mysql'].includes(relay.engine) ? [
      ['Durable', log.flushed], ['GTIDs', log.gtids], ['Held', `${bytes(log.bytes)} from ${log.oldest}`], ['Waits to be durable', bytes(log.lag_bytes)],
    ] : log ? [
      ['Written', log.written], ['Durable', log.flushed], ['Acknowledged', log.acknowledged],
      ['Held', `${bytes(log.bytes)} from ${log.oldest}`], ['Waits to be durable', bytes(between(log.flushed, log.written))],
    ] : []),
    ...(relay.archive ? [
      ['Archive', `${relay.archive.url} (${relay.archive.state})`], ['Archived', `whole segments up to ${relay.archive.confirmed}, ${bytes(relay.archive.behind_bytes)} behind`],
      ['Restorable', relay.archive.window ?? 'no backup yet'],
    ] : []),
  ], relayFacts);
  downstreams.show(relay.downstreams);
}

function showLanes({ proxy }) {
  byId('card-lanes').hidden = !proxy;
  if (!proxy) return;
  const { gauges, rates } = proxy;
  const per = (name) => (rates[name] === undefined ? '–' : `${short(rates[name])}/s`);
  const batches = rates.lane_batches ?? 0;
  const pins = proxy.pins.filter((pin) => pin.total > 0).sort((a, b) => b.total - a.total);
  const gate = gauges.gate_held === undefined ? [] : [
    ['Commits held back now', count(gauges.gate_held)],
    ['Answers held back', per('gated')],
    ['Refused, degraded', `${per('gate_refused')}, ${per('gate_degraded_commits')}`],
  ];
  const list = [
    ...gate,
    ['Lanes open', count(gauges.lanes)],
    ['Statements in lanes', per('lane_statements')],
    ['Statements a batch', batches > 0 ? short(rates.lane_statements / batches) : '–'],
    ['Given up as slow', per('lane_stalls')],
    ['Clients pinned now', count(gauges.clients_pinned)],
    ...pins.map((pin) => [`Pinned so far by ${pin.reason.replaceAll('_', ' ')}`, count(pin.total)]),
    ['Parse answered here', per('parses_local')],
    ['Reads sent again', per('replays_lost')],
  ];
  const element = byId('lanes').firstElementChild ?? byId('lanes').appendChild(h('dl', { class: 'facts' }));
  facts(list, element);
}

const events = new Table('Events, newest first', [
  { title: 'When', key: (event) => String(event.at), sort: (event) => event.at, cell: (event) => h('time', { datetime: new Date(event.at).toISOString() }, clock(event.at)) },
  { title: 'What', key: (event) => event.text, cell: (event) => [mark(event.severity, event.subject), ` ${event.text}`], text: (event) => `${event.subject} ${event.text}`, wide: true },
], { nothing: 'Nothing has happened since this page’s process started.', rowKey: (event) => String(event.id), searchable: true });

const clients = new Table('Clients of the proxy', [
  { title: 'Client', cell: (one) => `${one.user}@${one.database}` },
  { title: 'State', key: (one) => one.state, cell: (one) => mark({ waiting: 'warning', active: 'good' }[one.state] ?? 'info', one.state) },
  { title: 'For', sort: (one) => one.since_ms, cell: (one) => millis(one.since_ms), number: true },
  { title: 'Connected', sort: (one) => one.connected_ms, cell: (one) => millis(one.connected_ms), number: true },
  { title: 'From', cell: (one) => one.address || 'local socket', broad: true },
  { title: 'Application', cell: (one) => one.application || '–', wide: true },
  { title: 'Pinned by', cell: (one) => one.pins.map((pin) => pin.replaceAll('_', ' ')).join(', ') || '–' },
  { title: 'Do', broad: true, silent: true, key: (one) => `${session().may_act}${one.id}`, cell: (one) => actButton('Close', {
    question: `Close this client?`, verb: 'Close it', action: { action: 'kill_client', id: one.id }, then: loadClients,
    consequence: `${one.user} of ${one.database} from ${one.address || 'a local socket'} is disconnected. A transaction under way is rolled back.`,
  }, `Close ${one.user} of ${one.database}, client ${one.id}`) ?? '' },
], { nothing: 'No client is connected.', rowKey: (one) => one.id, rank: clientRank, searchable: true });
const clientsNote = h('p', { class: 'nothing' });
let asking = false;

async function loadClients() {
  if (asking) return;
  asking = true;
  try {
    const found = await ask(to('/api/clients', chosen(location.search)));
    clients.show(found.clients);
    setText(clientsNote, found.total > found.clients.length ? `The first ${count(found.clients.length)} of ${count(found.total)}: those that wait, then those whose statements run longest.` : '');
  } catch (error) {
    setText(clientsNote, `They cannot be shown: ${error.message}.`);
  } finally {
    asking = false;
  }
}

function showCounters(state) {
  const card = byId('card-counters');
  card.hidden = !state.proxy;
  if (!state.proxy || !card.open) return;
  const names = new Map(state.hello?.glossary ?? []);
  counters.show(Object.entries(state.proxy.totals).map(([name, total]) => ({ name, total, rate: state.proxy.rates[name], help: names.get(name) ?? '' })));
}

const counters = new Table('Every counter of the proxy', [
  { title: 'Name', cell: (row) => words(row.name) },
  { title: 'A second', sort: (row) => row.rate ?? null, cell: (row) => short(row.rate), number: true },
  { title: 'Since the start', sort: (row) => row.total, cell: (row) => count(row.total), number: true },
  { title: 'What it counts', cell: (row) => row.help, wide: true },
], { rowKey: (row) => row.name, searchable: true });

/** Puts the tables in their places, once. */
export function setUp() {
  byId('nodes').append(nodes.element);
  byId('pools').append(pools.element);
  byId('waits').append(waiting.element);
  byId('relay').append(relayFacts, downstreams.element);
  byId('events').append(events.element);
  byId('clients').append(clientsNote, clients.element);
  byId('counters').append(counters.element);
  curves.setUp();
  statements.setUp();
  folds.setUp();
  byId('find').addEventListener('submit', (event) => event.preventDefault());
  byId('filter').addEventListener('input', () => search(byId('filter').value));
  byId('card-clients').addEventListener('toggle', () => byId('card-clients').open && loadClients());
  const legend = [['flow', 'statements'], ['reads', 'reads on replicas'], ['wal', 'write-ahead log']];
  byId('legend').append(...legend.map(([kind, text]) => h('span', null, svg('svg', { width: 26, height: 8, 'aria-hidden': 'true' }, svg('path', { d: 'M0 4H26', class: `edge ${kind}` })), ` ${text}`)));
}

let turns = 0;

/** Shows the state. */
export function show(state) {
  showVerdict(state);
  showTiles(state);
  showPicture(state);
  folds.show(state);
  curves.show(state);
  statements.show(state);
  byId('card-nodes').hidden = !state.cluster;
  if (state.cluster) nodes.show(state.cluster.nodes);
  byId('card-pools').hidden = !state.proxy;
  if (state.pools) pools.show(state.pools);
  byId('card-waits').hidden = !state.proxy && !state.registry;
  waiting.show(waits(state));
  showLatency(state);
  showRelay(state);
  showLanes(state);
  events.show([...state.events].reverse());
  byId('card-clients').hidden = !state.proxy;
  turns += 1;
  if (byId('card-clients').open && turns % 2 === 0) loadClients();
  showCounters(state);
}

