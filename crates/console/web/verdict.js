// Is anything wrong? Pure: from the state to sentences, the worst first.

import { broken } from './clusters.js';
import { bytes, count, micros, millis, plural } from './format.js';

const RANK = { bad: 0, warning: 1, info: 2, good: 3 };
/** A wait for a server connection that is worth a word, in milliseconds. */
const LONG_WAIT = 1000;

/** What is to be said of the state: `{severity, text}`, never empty once there is a picture. */
export function verdict(state) {
  const found = [...ofCluster(state), ...ofOthers(state), ...ofRelay(state), ...ofProxy(state), ...ofRegistry(state)];
  found.sort((a, b) => RANK[a.severity] - RANK[b.severity]);
  if (found.length === 0 && state.hello) found.push({ severity: 'good', text: good(state) });
  return found;
}

function good(state) {
  const said = [];
  const { cluster, relay, registry } = state;
  if (cluster?.primary) {
    const replicas = cluster.nodes.filter((node) => node.role === 'replica');
    said.push(`${cluster.primary} is primary ${cluster.engine === 'mariadb' ? 'in epoch' : 'on timeline'} ${cluster.timeline}`);
    const worst = Math.max(0, ...replicas.map((node) => node.lag_ms));
    if (replicas.length > 0) said.push(`${plural(replicas.length, 'replica')} at most ${millis(worst)} behind`);
  }
  if (relay) said.push('the relay receives');
  if (registry) said.push(`${plural(registry.instances, 'instance')} of ${plural(registry.services, 'service')} in order`);
  return said.length > 0 ? `All well: ${said.join(', ')}.` : 'All well.';
}

function ofCluster({ cluster }) {
  if (!cluster) return [];
  const found = [];
  if (!cluster.primary) found.push({ severity: 'bad', text: 'There is no primary: writes wait.' });
  for (const node of cluster.nodes) {
    const why = node.error ? `: ${node.error}` : '';
    if (node.role === 'stale') {
      found.push({ severity: 'bad', text: `${node.name} takes writes ${cluster.engine === 'mariadb' ? 'that the relay does not take' : 'on an old timeline; it is not used'}. Stop it and rebuild it as a standby.` });
    } else if (node.role === 'unknown') {
      found.push({ severity: 'warning', text: `${node.name} cannot be reached${why}.` });
    } else if (!node.usable && node.role === 'replica' && cluster.engine === 'mariadb') {
      found.push({ severity: 'warning', text: `${node.name} does not replicate${why}.` });
    } else if (!node.usable && node.role === 'replica') {
      const lag = node.error ? why : `: ${millis(node.lag_ms)} behind`;
      found.push({ severity: 'warning', text: `${node.name} gets no reads${lag}.` });
    }
  }
  return found;
}

function ofOthers(state) {
  return broken(state).map((name) => ({ severity: 'bad', text: `The cluster ${name} has no primary: writes there wait.` }));
}

function ofRelay({ relay }) {
  if (!relay) return [];
  if (relay.log?.failure) return [{ severity: 'bad', text: `The relay writes nothing any more: ${relay.log.failure}.` }];
  if (relay.state !== 'streaming') {
    const severity = relay.alarm ? 'bad' : 'warning';
    return [{ severity, text: `The relay does not receive from ${relay.upstream || 'anybody'}: ${relay.state}.` }];
  }
  if (relay.archive?.alarm) {
    const { state, behind_bytes, behind_ms } = relay.archive;
    const why = state === 'archiving' ? '' : `: ${state}`;
    return [{ severity: 'bad', text: `The relay's archive is ${bytes(behind_bytes)} and ${millis(behind_ms)} behind${why}. WAL stays on the relay's disk until it has it.` }];
  }
  if (relay.archive?.backup_failure) {
    return [{ severity: 'bad', text: `Backups by schedule fail: ${relay.archive.backup_failure}.` }];
  }
  return (relay.concerns ?? []).map((concern) => ({ severity: 'bad', text: `Commits may not wait until they are durable on the relay: ${concern}.` }));
}

function ofProxy({ pools, proxy }) {
  const found = [];
  const paused = (pools ?? []).filter((pool) => pool.paused);
  if (paused.length > 0) {
    const names = [...new Set(paused.map((pool) => pool.database))].join(', ');
    found.push({ severity: 'warning', text: `Paused by an operator: ${names}.` });
  }
  const late = (pools ?? []).filter((pool) => !pool.paused && pool.oldest_wait_ms >= LONG_WAIT);
  if (late.length > 0) {
    const worst = late.reduce((a, b) => (a.oldest_wait_ms >= b.oldest_wait_ms ? a : b));
    found.push({ severity: 'warning', text: `Clients of ${worst.database} wait for server connections, the first for ${millis(worst.oldest_wait_ms)}.` });
  }
  if (proxy?.gauges?.gate_degraded > 0) {
    found.push({ severity: 'bad', text: 'Too few relays confirm commits: the commit gate is degraded.' });
  }
  return found;
}

function ofRegistry({ registry }) {
  if (!registry) return [];
  const found = [];
  if (!registry.ready) found.push({ severity: 'bad', text: `The registry's store does not answer: ${registry.store_error ?? 'it stops'}.` });
  if (registry.critical > 0) {
    found.push({ severity: 'warning', text: `${plural(registry.critical, 'instance')} of ${count(registry.instances)} in the registry ${registry.critical === 1 ? 'is' : 'are'} critical.` });
  }
  if (registry.isolated > 0) {
    found.push({ severity: 'info', text: `${plural(registry.isolated, 'instance')} of ${count(registry.instances)} in the registry ${registry.isolated === 1 ? 'is' : 'are'} isolated.` });
  }
  for (const held of registry.protected) {
    found.push({ severity: 'warning', text: `Too much was lost at once: the last good state of ${held.service || 'all services'} is kept for ${millis(held.seconds * 1000)} now.` });
  }
  return found;
}

/** Who waits for what, the longest held up first: `{who, what, how, severity}`. */
export function waits(state) {
  const rows = [];
  const late = (pool) => pool.paused || pool.oldest_wait_ms >= LONG_WAIT;
  const queues = (state.pools ?? []).filter((pool) => pool.waiting > 0).sort((a, b) => Number(late(b)) - Number(late(a)) || b.oldest_wait_ms - a.oldest_wait_ms);
  for (const pool of queues) {
    rows.push({
      who: `${plural(pool.waiting, 'client')} of ${pool.database}/${pool.user}`,
      what: pool.paused ? 'for RESUME' : 'for a server connection',
      how: `first for ${millis(pool.oldest_wait_ms)}`,
      severity: late(pool) ? 'warning' : 'info',
    });
  }
  const gauges = state.proxy?.gauges ?? {};
  const held = gauges.gate_held ?? 0;
  if (held > 0) rows.push({ who: plural(held, 'commit'), what: 'to be durable on enough relays', how: '', severity: 'info' });
  for (const node of state.cluster?.nodes ?? []) {
    if (node.role === 'replica' && node.lag_bytes > 0) {
      rows.push({ who: node.name, what: `for ${bytes(node.lag_bytes)} of WAL`, how: millis(node.lag_ms), severity: node.usable ? 'info' : 'warning' });
    }
  }
  if ((state.registry?.queued ?? 0) > 0) {
    rows.push({ who: plural(state.registry.queued, 'registration'), what: 'for their batch', how: '', severity: 'info' });
  }
  const pinned = gauges.clients_pinned ?? 0;
  if (pinned > 0) rows.push({ who: plural(pinned, 'client'), what: 'keep a server connection to themselves', how: 'pinned', severity: 'info' });
  return rows.sort((a, b) => RANK[a.severity] - RANK[b.severity]);
}

/** How a node is, in a word and a severity. */
export function standing(node) {
  switch (node.role) {
    case 'primary': return { severity: 'good', text: 'primary' };
    case 'stale': return { severity: 'bad', text: 'stale' };
    case 'unknown': return { severity: 'bad', text: 'not reached' };
    default: break;
  }
  if (!node.usable) return { severity: 'warning', text: node.error ? 'out' : 'lagging' };
  return { severity: 'good', text: 'replica' };
}

/** A latency for a tile. */
export function p(value, total) {
  return total === 0 ? '–' : value === null ? '>26 s' : `≤ ${micros(value)}`;
}

/** Text of a service's health: `3 of 4 usable`. */
export function usable(service) {
  return `${count(service.usable)} of ${count(service.instances)} usable`;
}
