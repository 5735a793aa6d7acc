// Cards that fold: what is open, and what a folded one says.

import { byId, setText } from './dom.js';
import { isOpen, notes } from './order.js';

const chosen = new Map();
const narrow = () => matchMedia('(max-width: 640px)').matches;
const cards = () => document.querySelectorAll('#page-cluster details.card');

/** Listens to who folds and unfolds, once. */
export function setUp() {
  for (const card of cards()) {
    // Enter and a tap are clicks, too; the page's own doing is none.
    card.querySelector('summary').addEventListener('click', () => chosen.set(card.id, !card.open));
  }
}

/** Opens and folds cards as the state and the reader want it. */
export function show(state) {
  const said = notes(state);
  for (const card of cards()) {
    const name = card.id.replace('card-', '');
    const note = said[name];
    const open = isOpen(name, { narrow: narrow(), unwell: note?.unwell, chosen: chosen.get(card.id) });
    if (card.open !== open) card.open = open;
    const place = byId(`note-${name}`);
    if (!place) continue;
    setText(place, note?.text ?? '');
    place.classList.toggle('warning', Boolean(note?.unwell));
  }
}
