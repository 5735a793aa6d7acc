// What the page knows. Pure: a message makes a new state of an old one.

export const SAMPLES = 300;
export const EVENTS = 200;

export function empty() {
  return { now: 0, hello: null, clusters: null, cluster: null, proxy: null, pools: null, relay: null, registry: null, samples: [], events: [] };
}

/**
 * The state after a message. `fresh`: the message is the first of a stream, which has everything there is: what it does not
 * have is not there.
 */
export function merge(state, message, fresh) {
  const base = fresh ? empty() : state;
  const next = { ...base, now: message.now ?? base.now };
  for (const section of ['hello', 'clusters', 'cluster', 'proxy', 'pools', 'relay', 'registry']) {
    if (message[section] !== undefined) next[section] = message[section];
  }
  if (message.samples) next.samples = [...base.samples, ...message.samples].slice(-SAMPLES);
  if (message.events) next.events = [...base.events, ...message.events].slice(-EVENTS);
  return next;
}

/** The last sample, or null. */
export function latest(state) {
  return state.samples.at(-1) ?? null;
}

/** Which downstream of the relay a node is, by its name. */
export function downstream(state, node) {
  return state.relay?.downstreams.find((one) => one.name === node.name) ?? null;
}
