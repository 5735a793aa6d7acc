// A state to try things on: a primary, a relay and two replicas behind a proxy.
import { empty, merge } from '../state.js';

export function node(name, role, more = {}) {
  return { name, address: '127.0.0.1:5432', role, usable: true, weight: 1, zone: null, timeline: 1, position: '0/5000000', lag_ms: 0, lag_bytes: 0, error: null, ...more };
}

export function pool(more = {}) {
  return { database: 'app', user: 'alice', mode: 'transaction', paused: false, clients: 5, waiting: 0, oldest_wait_ms: 0, busy: 2, idle: 3, connecting: 0, queries: 10, transactions: 9, query_micros: 120, wait_micros: 4, ...more };
}

export function sample(more = {}) {
  return { t: 1, reads: 900, writes: 100, local: 0, transactions: 950, clients: 5, waiting: 0, p50: 200, p99: 1600, wal: 4096, ...more };
}

/** Servers of MariaDB around a relay, without a proxy. */
export function mariadb() {
  const server = (name, role, more) => node(name, role, { timeline: null, position: '0-1-15', lag_transactions: role === 'replica' ? 3 : null, ...more });
  return merge(empty(), {
    now: 1,
    hello: { version: '0', parts: ['cluster', 'relay'], glossary: [] },
    cluster: { name: 'local', engine: 'mariadb', timeline: 2, primary: 'n1', nodes: [server('n1', 'primary'), server('n2', 'replica', { lag_ms: 2000 })] },
    relay: { engine: 'mariadb', addresses: [], upstream: 'a:3306', state: 'streaming', alarm: false, concerns: [], upstream_end: null, log: { timeline: 2, oldest: 'bin.000001', written: '', flushed: 'bin.000003:4711', acknowledged: '', gtids: '0-1-15', lag_bytes: 0, bytes: 4096, failure: null }, downstreams: [{ name: 'n2', peer: '', slot: null, sent: '', flushed: '', applied: '', lag_bytes: 0 }], slots: [] },
  }, true);
}

export function full(more = {}) {
  return merge(empty(), {
    now: 1,
    hello: { version: '0', parts: ['cluster', 'proxy', 'relay', 'registry'], glossary: [] },
    cluster: { name: 'local', timeline: 1, primary: 'n1', nodes: [node('n1', 'primary'), node('n2', 'replica', { lag_ms: 3 }), node('n3', 'replica')] },
    proxy: { addresses: ['127.0.0.1:6432'], gauges: { clients: 5, clients_waiting: 0, clients_pinned: 0, servers: 5, servers_busy: 2, lanes: 0 }, totals: {}, rates: {}, pins: [], statements: { count: 0, p50: null, p95: null, p99: null, buckets: [] }, waits: { count: 0, p50: null, p95: null, p99: null, buckets: [] }, bounds: [50, 100] },
    pools: [pool()],
    relay: { addresses: ['127.0.0.1:7000'], upstream: '127.0.0.1:5432', state: 'streaming', alarm: false, upstream_end: '0/5000000', log: { timeline: 1, oldest: '0/1000000', written: '0/5000000', flushed: '0/5000000', acknowledged: '0/5000000', lag_bytes: 0, bytes: 33554432, failure: null }, downstreams: [{ name: 'n2', peer: '', slot: 'n2', sent: '0/5000000', flushed: '0/5000000', applied: '0/5000000', lag_bytes: 0 }, { name: 'n3', peer: '', slot: null, sent: '0/5000000', flushed: '0/5000000', applied: '0/5000000', lag_bytes: 0 }], slots: [] },
    registry: { addresses: [], ready: true, store: 'sqlite', store_error: null, revision: 1, instances: 4, critical: 0, isolated: 0, services: 2, watchers: 0, queued: 0, protected: [], counts: {} },
    samples: [sample()],
    ...more,
  }, true);
}
