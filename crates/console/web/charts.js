// Small pictures of numbers: geometry only. Pure.

/** Values as the path of a line over `width` x `height`; nulls are gaps. `slots`: places on the axis, the last is now. */
export function line(values, width, height, slots = values.length) {
  const top = Math.max(1e-9, ...values.filter((value) => value !== null));
  const step = width / Math.max(1, slots - 1);
  const from = width - (values.length - 1) * step;
  let path = '';
  let pen = 'M';
  values.forEach((value, index) => {
    if (value === null || value === undefined) {
      pen = 'M';
      return;
    }
    path += `${pen}${round(from + index * step)} ${round(height - (value / top) * (height - 2) - 1)}`;
    pen = 'L';
  });
  return path;
}

/** The same, closed along the axis. */
export function area(values, width, height, slots = values.length) {
  if (values.length < 2 || values.some((value) => value === null || value === undefined)) return '';
  const step = width / Math.max(1, slots - 1);
  const from = round(width - (values.length - 1) * step);
  return `${line(values, width, height, slots)}L${round(width)} ${height}L${from} ${height}Z`;
}

/** Means of groups of `size`, counted from the end. */
export function thinned(values, size) {
  if (size <= 1) return values;
  const means = [];
  for (let end = values.length; end > 0; end -= size) {
    const group = values.slice(Math.max(0, end - size), end).filter((value) => value !== null);
    means.unshift(group.length > 0 ? group.reduce((a, b) => a + b, 0) / group.length : null);
  }
  return means;
}

/** Buckets as bars `{share, count, label}`, without the empty ones at both ends. */
export function bars(buckets, bounds, label) {
  const first = buckets.findIndex((n) => n > 0);
  if (first < 0) return [];
  let last = buckets.length - 1;
  while (buckets[last] === 0) last -= 1;
  const total = buckets.reduce((a, b) => a + b, 0);
  const top = Math.max(...buckets);
  return buckets.slice(first, last + 1).map((n, index) => {
    const bound = bounds[first + index];
    return { count: n, part: n / total, share: n / top, label: bound === undefined ? `> ${label(bounds.at(-1))}` : `≤ ${label(bound)}` };
  });
}

function round(value) {
  return Math.round(value * 10) / 10;
}
