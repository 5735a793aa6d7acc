// Several clusters: which one the page is for, and how the others are. Pure.

/** The cluster that the page's address names, or null: the first one. */
export function chosen(search) {
  return new URLSearchParams(search).get('cluster') || null;
}

/** A path of the server's, perhaps with a query, for a cluster. */
export function to(path, cluster) {
  return cluster === null ? path : `${path}${path.includes('?') ? '&' : '?'}cluster=${encodeURIComponent(cluster)}`;
}

/** The cluster that an action is for: the one that is seen, which need not be the first one any more. */
export function seen(state) {
  return state.clusters && state.cluster ? state.cluster.name : null;
}

/** Other clusters without a primary, by name. */
export function broken(state) {
  return (state.clusters ?? []).filter((one) => one.name !== state.cluster?.name && !one.primary).map((one) => one.name);
}

/** What there is to choose from: `{name, href, here, severity, text}`; nothing where there is only one. */
export function choices(state) {
  const all = state.clusters ?? [];
  if (all.length < 2) return [];
  return all.map(({ name, primary }) => ({
    name,
    href: to('/', name),
    here: name === state.cluster?.name,
    severity: primary ? 'good' : 'bad',
    text: primary ? name : `${name}: no primary`,
  }));
}
