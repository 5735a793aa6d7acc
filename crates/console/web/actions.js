// Signing in, asking before something is done, and doing it.

import { to } from './clusters.js';
import { byId, h, setText } from './dom.js';

let who = { may_view: true, may_act: false, can_sign_in: false, name: null };
const listeners = [];
/** The cluster that actions are for, or null where there are none; and whether the question says which. */
let cluster = null;
let several = false;

/** Actions are for this cluster from now on. */
export function actsOn(name, oneOfSeveral) {
  cluster = name;
  several = oneOfSeveral;
}

export function session() {
  return who;
}

/** Called with the session each time that it changes. */
export function onSession(listener) {
  listeners.push(listener);
}

function become(next) {
  const changed = JSON.stringify(next) !== JSON.stringify(who);
  who = next;
  if (changed) listeners.forEach((listener) => listener(who));
}

/** Asks for JSON; throws an Error with the server's words. `status` is on it. */
export async function ask(path, body) {
  let response;
  try {
    response = await fetch(path, body === undefined ? { cache: 'no-store' } : {
      method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body),
    });
  } catch {
    throw new Error('the console does not answer');
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw Object.assign(new Error(answer.error ?? `the console answered ${response.status}`), { status: response.status });
  return answer;
}

export async function refreshSession() {
  become(await ask('/api/session'));
  return who;
}

let clearing;

export function toast(text, bad = false) {
  const element = byId('toast');
  element.className = bad ? 'bad' : 'good';
  setText(element, text);
  clearTimeout(clearing);
  clearing = setTimeout(() => setText(element, ''), bad ? 8000 : 4000);
}

function open(title, content, buttons) {
  const dialog = byId('dialog');
  const form = h('form', { method: 'dialog' }, h('h2', { id: 'dialog-title' }, title), content, h('div', { class: 'buttons' }, buttons));
  dialog.replaceChildren(form);
  if (!dialog.open) dialog.showModal();
  return { dialog, form };
}

export function signIn() {
  const field = h('input', { type: 'password', id: 'token', autocomplete: 'current-password', required: true, spellcheck: 'false' });
  const problem = h('p', { class: 'problem', role: 'alert' });
  const submit = h('button', { type: 'submit', class: 'primary' }, 'Sign in');
  const cancel = h('button', { type: 'button', class: 'quiet', onclick: () => byId('dialog').close() }, 'Cancel');
  const { dialog, form } = open('Sign in', [
    h('p', null, 'With a token of the configuration’s [[console.tokens]]. An operator’s token lets you act.'),
    h('label', { for: 'token' }, 'Token'), field, problem,
  ], [cancel, submit]);
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    submit.disabled = true;
    try {
      become(await ask('/api/login', { token: field.value }));
      dialog.close();
      toast(`Signed in as ${who.name}.`);
    } catch (error) {
      setText(problem, `Not signed in: ${error.message}.`);
      field.select();
    } finally {
      submit.disabled = false;
    }
  });
  field.focus();
}

export async function signOut() {
  try {
    become(await ask('/api/logout', {}));
    toast('Signed out.');
  } catch (error) {
    toast(error.message, true);
  }
}

/**
 * Asks, then does it. `question` is the title, `consequence` what will happen, `verb` the button; `field`: a number to be
 * given, `{label, value, name, max}`. Calls `then` when it was done.
 */
export function confirm({ question, consequence, verb, action, field, then }) {
  if (!who.may_act) {
    if (who.can_sign_in) signIn();
    return;
  }
  // As it was when the question was asked.
  const path = to('/api/act', cluster);
  const problem = h('p', { class: 'problem', role: 'alert' });
  const input = field && h('input', { type: 'number', id: 'value', min: 0, max: field.max, value: field.value, required: true });
  const submit = h('button', { type: 'submit', class: 'danger' }, verb);
  const cancel = h('button', { type: 'button', class: 'quiet', onclick: () => byId('dialog').close() }, 'Cancel');
  const { dialog, form } = open(several ? `${question} (cluster ${cluster})` : question, [h('p', null, consequence), field && h('label', { for: 'value' }, field.label), input, problem].filter(Boolean), [cancel, submit]);
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    submit.disabled = true;
    try {
      const { done } = await ask(path, field ? { ...action, [field.name]: Number(input.value) } : action);
      dialog.close();
      toast(`Done: ${done}.`);
      then?.();
    } catch (error) {
      setText(problem, `Not done: ${error.message}.`);
      if (error.status === 401) refreshSession().catch(() => {});
    } finally {
      submit.disabled = false;
    }
  });
  (input ?? cancel).focus();
}

/** A button for who may act; nothing for who may not. */
export function actButton(label, options, name = label) {
  return who.may_act ? h('button', { type: 'button', class: 'small', 'aria-label': name, onclick: () => confirm(options) }, label) : null;
}
