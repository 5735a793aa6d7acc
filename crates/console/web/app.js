// Start: the stream of the state, the pages, the theme.

import { actsOn, ask, onSession, refreshSession, session, signIn, signOut } from './actions.js';
import * as cluster from './cluster.js';
import { choices, chosen, seen, to } from './clusters.js';
import * as configuration from './configuration.js';
import { byId, h, replace, setText, state as mark } from './dom.js';
import * as eureka from './eureka.js';
import { clock } from './format.js';
import * as live from './live.js';
import * as services from './services.js';
import { empty, merge } from './state.js';
import { wantsSearch } from './table.js';

/** A page that nobody has seen for this long lets its place go. */
const HIDDEN = 60_000;

let state = empty();
let stream = null;
let heard = live.unheard();
let retry = null;

// === The stream ===

function connect() {
  clearTimeout(retry);
  stream?.close();
  let first = true;
  const mine = new EventSource(to('/api/events', chosen(location.search)));
  stream = mine;
  mine.onmessage = (message) => {
    if (stream !== mine) return;
    heard = live.hears(heard, Date.now());
    state = merge(state, JSON.parse(message.data), first);
    first = false;
    show();
  };
  mine.onopen = () => {
    if (stream === mine) heard = live.hears(heard, Date.now());
    // The browser connects again by itself: what comes then is everything.
    first = true;
  };
  mine.onerror = () => {
    if (stream !== mine) return;
    heard = live.loses(heard, Date.now());
    linkState();
    if (mine.readyState === EventSource.CLOSED) again();
  };
}

/** The stream was refused: not signed in, too many pages, or something else in its place. */
async function again() {
  stream = null;
  try {
    const who = await refreshSession();
    if (!who.may_view) {
      link('bad', 'Sign in to look');
      signIn();
      return;
    }
    const here = chosen(location.search);
    if (here !== null && (await isGone(here))) link('bad', `The cluster ${here} is not served: choose another one. Trying again…`);
    else link('warning', 'No place: too many pages are open. Trying again…');
  } catch {
    linkState();
  }
  clearTimeout(retry);
  retry = setTimeout(connect, 3000);
}

async function isGone(cluster) {
  try {
    await ask(to('/api/state', cluster));
    return false;
  } catch (error) {
    return error.status === 404;
  }
}

function link(kind, text) {
  byId('link').className = `pill ${kind}`;
  setText(byId('link'), text);
  document.body.classList.toggle('lost', kind === 'bad');
}

function linkState() {
  if (document.hidden) return;
  const standing = live.standing(heard, Date.now(), Boolean(state.hello));
  if (!standing) return;
  link(standing.kind, standing.text);
  if (standing.connect) {
    heard = live.tries(heard, Date.now());
    connect();
  }
}

let hiding = null;
document.addEventListener('visibilitychange', () => {
  clearTimeout(hiding);
  if (document.hidden) {
    hiding = setTimeout(() => {
      stream?.close();
      stream = null;
    }, HIDDEN);
  } else if (!stream) {
    connect();
  } else {
    show();
  }
});

// === Pages ===

let due = false;

function show() {
  if (due || document.hidden) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    linkState();
    const { hello } = state;
    if (!hello) return;
    for (const tab of ['tab-services', 'tab-eureka', 'tab-configuration']) byId(tab).hidden = !hello.parts.includes('registry');
    setText(byId('cluster-name'), state.cluster?.name ?? '');
    actsOn(seen(state), choices(state).length > 0);
    showChoices();
    setText(byId('version'), `Kingpost ${hello.version} · ${hello.parts.join(', ')} in this process`);
    setText(byId('clock'), `as of ${clock(state.now, state.now)}`);
    if (!byId('page-cluster').hidden) cluster.show(state);
    services.show(state.registry, state.now);
    eureka.show(state.registry);
  });
}

function showChoices() {
  const list = choices(state);
  byId('clusters').hidden = list.length === 0;
  replace(byId('clusters'), JSON.stringify(list), () => list.map((one) => h('a', { href: one.href, 'aria-current': one.here && 'page' }, mark(one.severity, one.text))));
}

function route() {
  const onServices = /^#\/(services|service|instance)\b/.test(location.hash);
  const onConfiguration = /^#\/(configuration|entry)\b/.test(location.hash);
  const onEureka = /^#\/eureka\b/.test(location.hash);
  const pages = { cluster: !onServices && !onEureka && !onConfiguration, services: onServices, eureka: onEureka, configuration: onConfiguration };
  for (const [page, on] of Object.entries(pages)) {
    byId(`page-${page}`).hidden = !on;
    const tab = `tab-${page}`;
    if (on) byId(tab).setAttribute('aria-current', 'page');
    else byId(tab).removeAttribute('aria-current');
  }
  if (onServices) services.go(location.hash);
  if (onEureka) eureka.go(location.hash);
  if (onConfiguration) configuration.go(location.hash);
  show();
}

// === Keys ===

addEventListener('keydown', (event) => {
  const field = byId(['filter', 'search', 'entry-search'].find((id) => byId(id)?.offsetParent) ?? 'filter');
  const { target } = event;
  if (event.key === 'Escape' && target === field && field.value === '') field.blur();
  const editable = target instanceof HTMLElement && (target.isContentEditable || target.matches('input:not([type=radio]), select, textarea'));
  if (!wantsSearch(event, { editable, dialog: byId('dialog').open }) || !field?.offsetParent) return;
  event.preventDefault();
  field.focus();
  field.select();
});

// === Theme ===

const THEMES = ['system', 'light', 'dark'];

function theme(name) {
  if (name === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  byId('theme').setAttribute('aria-label', `Colours: ${name === 'system' ? 'as the system' : name}`);
  byId('theme').title = byId('theme').getAttribute('aria-label');
  setText(byId('theme'), { system: '◐', light: '☀', dark: '☾' }[name]);
}

function stored() {
  try {
    return THEMES.includes(localStorage.kingpostTheme) ? localStorage.kingpostTheme : 'system';
  } catch {
    return 'system';
  }
}

byId('theme').addEventListener('click', () => {
  const next = THEMES[(THEMES.indexOf(stored()) + 1) % THEMES.length];
  try {
    localStorage.kingpostTheme = next;
  } catch {
    // Private windows may refuse: then it lasts for this page.
  }
  theme(next);
});

// === Start ===

onSession((who) => {
  byId('sign').hidden = !who.can_sign_in;
  setText(byId('sign'), who.name ? `Sign out ${who.name}` : 'Sign in');
  if (who.may_view && !stream) connect();
  show();
  services.load();
  eureka.load();
  configuration.load();
});
byId('sign').addEventListener('click', () => (session().name ? signOut() : signIn()));
addEventListener('hashchange', route);
let resized;
addEventListener('resize', () => {
  clearTimeout(resized);
  resized = setTimeout(show, 100);
});
setInterval(linkState, 1000);
theme(stored());
cluster.setUp();
services.setUp();
eureka.setUp();
configuration.setUp();
route();
connect();
refreshSession().catch(() => {});
