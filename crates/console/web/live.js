// Is anything heard? Pure: from what came when to what the pill says.

import { millis } from './format.js';

/** Nothing heard for this long: the connection is as good as lost. */
export const SILENT = 12_000;

/** Of a page that has heard nothing yet. All times are in milliseconds. */
export function unheard() {
  return { heard: 0, tried: 0, lost: null };
}

/** Something came at `now`. */
export function hears(link, now) {
  return { ...link, heard: now, lost: null };
}

/** The connection ended at `now`; a server that was lost before is lost since then. */
export function loses(link, now) {
  return { ...link, lost: link.lost ?? now };
}

/** The page connects again at `now`. That alone is nothing heard. */
export function tries(link, now) {
  return { ...link, tried: now };
}

/** What is to be said at `now`: `kind` and `text`, and whether to `connect` again. `null`: nothing yet, for there is no picture. */
export function standing(link, now, hasPicture) {
  if (link.lost !== null) {
    const gone = now - link.lost;
    const text = gone < 2000 ? 'Connection lost' : `Lost for ${whole(gone)}, trying again`;
    return { kind: 'bad', text, connect: false };
  }
  if (link.heard > 0 && now - link.heard > SILENT) {
    return { kind: 'bad', text: `Nothing is heard for ${whole(now - link.heard)}, trying again`, connect: now - Math.max(link.heard, link.tried) > SILENT };
  }
  return hasPicture ? { kind: 'good', text: 'Live', connect: false } : null;
}

/** A time in whole seconds. */
function whole(time) {
  return millis(Math.round(time / 1000) * 1000).replace('.0', '');
}
