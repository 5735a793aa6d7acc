// Numbers, times and positions as people read them. Pure.

const NONE = '–';

function fixed(value, digits) {
  return value.toLocaleString('en-US', { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** A whole number with groups: 12,345. */
export function count(value) {
  return value === null || value === undefined ? NONE : fixed(Math.round(value), 0);
}

/** Three figures or so: 0, 0.4, 7.3, 940, 12.3k, 1.25M. */
export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  if (value === 0) return '0';
  if (value < 0.1) return '<0.1';
  if (value < 9.95) return fixed(value, 1);
  if (value < 9999.5) return fixed(value, 0);
  for (const [unit, size] of [['k', 1e3], ['M', 1e6], ['G', 1e9]]) {
    const scaled = value / size;
    if (scaled < 999.5 || unit === 'G') return fixed(scaled, scaled < 9.995 ? 2 : scaled < 99.95 ? 1 : 0) + unit;
  }
  return NONE;
}

/** Bytes in powers of 1024. */
export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  if (value < 1024) return `${fixed(value, 0)} B`;
  let scaled = value;
  for (const unit of ['KiB', 'MiB', 'GiB', 'TiB', 'PiB']) {
    scaled /= 1024;
    if (scaled < 1023.5 || unit === 'PiB') return `${fixed(scaled, scaled < 9.95 ? 1 : 0)} ${unit}`;
  }
  return NONE;
}

/** A duration of so many microseconds. */
export function micros(value) {
  if (value === null || value === undefined) return NONE;
  if (value < 1000) return `${fixed(value, 0)} µs`;
  return millis(value / 1000);
}

/** A duration of so many milliseconds. */
export function millis(value) {
  if (value === null || value === undefined) return NONE;
  if (value === 0) return '0 ms';
  if (value < 9.95) return `${fixed(value, 1)} ms`;
  if (value < 999.5) return `${fixed(value, 0)} ms`;
  const seconds = value / 1000;
  if (seconds < 99.95) return `${fixed(seconds, 1)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, '0')} s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, '0')} min`;
  return `${Math.round(minutes / 1440)} days`;
}

/** A time of day; with the date where it is not today's. */
export function clock(at, now = Date.now()) {
  const two = (number) => String(number).padStart(2, '0');
  const when = new Date(at);
  const time = `${two(when.getHours())}:${two(when.getMinutes())}:${two(when.getSeconds())}`;
  if (when.toDateString() === new Date(now).toDateString()) return time;
  return `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())} ${time}`;
}

/** How long ago; both in milliseconds since 1970. */
export function ago(at, now) {
  const passed = Math.max(0, now - at);
  return passed < 1500 ? 'just now' : `${millis(passed < 99_950 ? Math.round(passed / 1000) * 1000 : passed).replace('.0 s', ' s')} ago`;
}

/** One thing, two things. */
export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** `16/B374D848` as a BigInt; null for anything else. */
export function lsn(text) {
  const parts = /^([0-9A-Fa-f]{1,8})\/([0-9A-Fa-f]{1,8})$/.exec(text ?? '');
  return parts ? (BigInt(`0x${parts[1]}`) << 32n) | BigInt(`0x${parts[2]}`) : null;
}

/** Bytes from one position to another; null if one is none. */
export function between(from, to) {
  const [a, b] = [lsn(from), lsn(to)];
  return a === null || b === null ? null : Number(b > a ? b - a : 0n);
}

/** What an engine calls its positions, its log, and what changes at a failover. */
export function terms(engine) {
  return engine === 'mariadb' || engine === 'mysql'
    ? { position: 'GTID', log: 'binlog', term: 'epoch' }
    : { position: 'LSN', log: 'WAL', term: 'timeline' };
}

/** How much a replica still has to get: bytes, or transactions where only those are known. */
export function distance(node) {
  const transactions = node.lag_transactions ?? null;
  return transactions === null ? bytes(node.lag_bytes) : plural(transactions, 'transaction');
}

/** `lane_redone` as words. */
export function words(name) {
  const text = name.replaceAll('_', ' ');
  return text.charAt(0).toUpperCase() + text.slice(1);
}
