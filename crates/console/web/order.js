// What is broken first: ranks for lists, and what a card says while it is folded. Pure.

import { clock, count, micros, plural } from './format.js';
import { standing, waits } from './verdict.js';

const RANK = { bad: 0, warning: 1, info: 2, good: 3, plain: 3 };

/** Places in a list: 0 first. */
export const rankOf = (severity) => RANK[severity] ?? 3;
export const nodeRank = (node) => rankOf(standing(node).severity);

/** How a pool is, in a word and a severity. */
export function poolState(pool) {
  if (pool.paused) return { severity: 'warning', text: 'paused' };
  if (pool.waiting > 0) return { severity: pool.oldest_wait_ms > 1000 ? 'warning' : 'info', text: 'waits' };
  return { severity: 'good', text: 'flows' };
}
export const poolRank = (pool) => rankOf(poolState(pool).severity);

/** How a service is. */
export function serviceState(one) {
  if (one.instances === 0) return { severity: 'info', text: 'empty' };
  if (one.usable === 0) return { severity: 'bad', text: 'none usable' };
  if (one.usable < one.instances) return { severity: 'warning', text: 'in part' };
  return { severity: 'good', text: 'all usable' };
}

/** As the server orders services, see crates/console/src/order.rs. */
export function serviceRank(one) {
  if (one.instances === 0) return 3;
  if (one.usable === 0) return 0;
  return one.critical > 0 ? 1 : one.usable < one.instances ? 2 : 3;
}

/** As the server orders instances. */
export function instanceRank(one) {
  if (one.health === 'critical') return one.isolate ? 1 : 0;
  if (one.isolate) return 2;
  return one.health === 'warning' ? 3 : one.weight === 0 ? 4 : 5;
}

export const clientRank = (one) => ({ waiting: 0, active: 1 }[one.state] ?? 2);

/** What each card says in a line, and whether somebody has to look: `{card: {text, unwell}}`. */
export function notes(state) {
  const { cluster, proxy, relay, pools } = state;
  const found = {};
  if (cluster) {
    const unwell = cluster.nodes.filter((node) => nodeRank(node) < 3).length;
    found.nodes = { text: unwell > 0 ? `${count(unwell)} of ${count(cluster.nodes.length)} not well` : `${count(cluster.nodes.length)}, all well`, unwell: unwell > 0 || !cluster.primary };
  }
  if (pools) {
    const unwell = pools.filter((pool) => poolRank(pool) < 2).length;
    found.pools = { text: unwell > 0 ? `${count(unwell)} of ${count(pools.length)} held up` : plural(pools.length, 'pool'), unwell: unwell > 0 };
  }
  const rows = waits(state);
  found.waits = { text: rows.length > 0 ? rows[0].who : 'nobody', unwell: rows.some((row) => row.severity === 'warning') };
  if (proxy) {
    const { p99, count: ended } = proxy.statements;
    found.latency = { text: ended === 0 ? 'none' : `99 % within ${p99 === null ? 'more than 26 s' : micros(p99)}`, unwell: false };
    found.clients = { text: count(proxy.gauges.clients ?? 0), unwell: false };
    const degraded = (proxy.gauges.gate_degraded ?? 0) > 0;
    found.lanes = { text: degraded ? 'degraded' : '', unwell: degraded };
  }
  if (relay) {
    const unwell = relay.state !== 'streaming' || Boolean(relay.log?.failure) || (relay.concerns ?? []).length > 0 || Boolean(relay.archive?.alarm);
    found.relay = { text: relay.log?.failure ? 'writes nothing' : relay.state, unwell };
  }
  const last = state.events.at(-1);
  found.events = { text: last ? `${clock(last.at, state.now)} ${last.subject} ${last.text}` : 'none', unwell: false };
  return found;
}

/** Cards that are folded until somebody wants them: what is in them is asked for, or very long. */
const ASKED_FOR = new Set(['statements', 'clients', 'counters']);

/**
 * Whether a card is open: as the reader has chosen; otherwise on a wide screen all that cost nothing, on a narrow one those
 * in which something is not well.
 */
export function isOpen(card, { narrow, unwell, chosen }) {
  if (chosen !== undefined) return chosen;
  if (ASKED_FOR.has(card)) return false;
  return narrow ? Boolean(unwell) : true;
}

