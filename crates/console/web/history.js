// What was: points of a span of time, and how they become curves with axes. Pure.

import { clock } from './format.js';

/** The spans, the finest first. `every`: how often what is new is asked for; the finest comes by itself. */
export const SPANS = {
  minutes: { title: '5 min', ms: 300_000, step: 1000, every: null },
  hour: { title: '1 h', ms: 3_600_000, step: 10_000, every: 5000 },
  day: { title: '24 h', ms: 86_400_000, step: 60_000, every: 30_000 },
};

/** What is known of a span before anything was asked for. */
export function unknown() {
  return { points: [], open: null };
}

/** The time of the last point that is known: what comes after it is asked for. */
export function cursor(known) {
  return known.points.at(-1)?.t ?? 0;
}

/** What is known after an answer of the server, `{series, points: rows, open: row, most}`. */
export function joined(known, answer) {
  const point = (row) => Object.fromEntries([['t', row[0]], ...answer.series.map((name, index) => [name, row[index + 1] ?? null])]);
  const fresh = answer.points.map(point);
  const open = answer.open ? point(answer.open) : null;
  // Where the server's clock was set back, what it says now holds.
  const first = fresh[0]?.t ?? open?.t ?? Infinity;
  const points = [...known.points.filter((one) => one.t < first), ...fresh].slice(-answer.most);
  return { points, open };
}

/** The points to be drawn of what is known, for the time up to `now`. */
export function within(known, span, now) {
  const from = now - SPANS[span].ms - SPANS[span].step;
  return [...known.points, ...(known.open ? [known.open] : [])].filter((point) => point.t >= from && point.t <= now + SPANS[span].step);
}

/** The end of an axis: 1, 2 or 5 times a power of ten, or for bytes of two, that is not below any value. */
export function top(values, binary = false) {
  const most = Math.max(0, ...values.filter((value) => value !== null && value !== undefined));
  if (most <= 0) return 1;
  if (binary) return 2 ** Math.ceil(Math.log2(Math.max(1, most)));
  const power = 10 ** Math.floor(Math.log10(most));
  // Whole numbers of things have no halves on their axis.
  return [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= most * 0.999999) ?? 10 * power;
}

/** Distances between two marks on the axis of time that people find round. */
const ROUND = [60_000, 120_000, 300_000, 600_000, 1_200_000, 3_600_000, 10_800_000, 14_400_000, 21_600_000, 43_200_000];

/** Marks on the axis of time, at most `most` of them: `{t, label}`, round in the time of the place. */
export function times(from, to, most) {
  const step = ROUND.find((one) => (to - from) / one <= most) ?? 86_400_000;
  const offset = new Date(to).getTimezoneOffset() * 60_000;
  const marks = [];
  for (let t = Math.ceil((from - offset) / step) * step + offset; t <= to; t += step) marks.push({ t, label: clock(t, t).slice(0, 5) });
  return marks;
}

/** A line through the points' values of `name` in a box `{x, y, w, h}`; what is not known, and a pause, is a gap. */
export function curve(points, name, { from, to, most, step }, box) {
  const x = (t) => box.x + (Math.max(0, t - from) / (to - from)) * box.w;
  const y = (value) => box.y + box.h - (value / most) * box.h;
  let path = '';
  let before = null;
  for (const point of points) {
    const value = point[name] ?? null;
    if (value === null) {
      before = null;
      continue;
    }
    const joinedUp = before !== null && point.t - before <= step * 2.5;
    path += `${joinedUp ? 'L' : 'M'}${round(x(point.t))} ${round(y(value))}`;
    // A point that stands alone is to be seen, too.
    if (!joinedUp) path += 'h0.1';
    before = point.t;
  }
  return path;
}

/** Which point is nearest to a time; -1: there is none. */
export function nearest(points, t) {
  let best = -1;
  for (let index = 0; index < points.length; index += 1) {
    if (best < 0 || Math.abs(points[index].t - t) <= Math.abs(points[best].t - t)) best = index;
  }
  return best;
}

/** The time to look at after a key, from a time or none; undefined: the key is none of ours. */
export function stepped(points, t, key) {
  if (key === 'Escape') return null;
  if (!['ArrowLeft', 'ArrowRight', 'Home', 'End', 'PageUp', 'PageDown'].includes(key) || points.length === 0) return undefined;
  const last = points.length - 1;
  const at = t === null ? last + (key === 'ArrowLeft' ? 1 : 0) : nearest(points, t);
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last, PageUp: at - 10, PageDown: at + 10 }[key];
  return points[Math.max(0, Math.min(last, to))].t;
}

function round(value) {
  return Math.round(value * 10) / 10;
}
