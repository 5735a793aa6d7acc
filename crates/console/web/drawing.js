// The picture: applications → proxy → primary → relay → replicas. From the state to boxes and lines; pure.

import { bytes, count, distance, millis, plural, short, terms } from './format.js';
import { downstream, latest } from './state.js';
import { standing } from './verdict.js';

const WIDE = 760;
const BOX = { height: 78, gap: 22 };

/** Boxes `{id, x, y, w, h, title, tag, lines, severity}` and edges `{path, label, x, y, anchor, kind}` in `width`. */
export function picture(state, width) {
  const model = parts(state);
  return width >= WIDE ? wide(model, width) : narrow(model, width);
}

/** What there is to be drawn, without places. */
export function parts(state) {
  const { cluster, proxy, relay } = state;
  const sample = latest(state);
  const nodes = cluster?.nodes ?? [];
  const primary = nodes.find((node) => node.name === cluster?.primary) ?? null;
  const others = nodes.filter((node) => node !== primary);
  const gauges = proxy?.gauges ?? {};
  const boxes = {};
  const { position, log, term } = terms((cluster ?? relay)?.engine);
  if (proxy) {
    const waiting = gauges.clients_waiting ?? 0;
    boxes.apps = { id: 'apps', title: 'Applications', tag: '', lines: [plural(gauges.clients ?? 0, 'client'), waiting > 0 ? `${count(waiting)} waiting` : 'none waiting'], severity: 'plain' };
    boxes.proxy = {
      id: 'proxy', title: 'Proxy', tag: proxy.addresses[0] ?? '', severity: 'good',
      lines: [`${plural(gauges.servers ?? 0, 'server')}, ${count(gauges.servers_busy ?? 0)} busy`, lanes(gauges)],
    };
  }
  if (nodes.length > 0) {
    boxes.primary = primary
      ? { ...box(primary), lines: [`${position} ${primary.position ?? '–'}`, `${term} ${cluster.timeline}`] }
      : { id: 'no-primary', title: 'No primary', tag: '', lines: ['writes wait', `${term} ${cluster.timeline}`], severity: 'bad' };
  }
  if (relay) {
    const receives = relay.state === 'streaming';
    boxes.relay = {
      id: 'relay', title: 'Relay', tag: receives ? 'receiving' : 'not receiving', severity: receives ? 'good' : relay.alarm ? 'bad' : 'warning',
      lines: relay.log ? [`durable ${relay.log.flushed}`, `${bytes(relay.log.lag_bytes)} behind`] : [relay.state, ''],
    };
  }
  boxes.replicas = others.map((node) => {
    const lines = node.role === 'replica'
      ? [`${position} ${node.position ?? '–'}`, `${millis(node.lag_ms)} · ${distance(node)} behind`]
      : [node.error ?? '', node.timeline ? `timeline ${node.timeline}` : ''];
    return { ...box(node), lines, fed: downstream(state, node) ? 'relay' : node.role === 'replica' ? 'primary' : null, reads: node.role === 'replica' && node.usable };
  });
  const rate = (value) => (sample ? `${short(value)}/s` : '');
  return {
    ...boxes,
    labels: {
      statements: sample ? rate(sample.reads + sample.writes + sample.local) : '',
      writes: sample ? `${rate(sample.writes)} to the primary` : '',
      reads: sample ? `${rate(sample.reads)} reads` : '',
      wal: sample?.wal === null || sample?.wal === undefined ? log : `${log} ${bytes(sample.wal)}/s`,
    },
  };
}

function lanes(gauges) {
  const lanes = gauges.lanes ?? 0;
  const pinned = gauges.clients_pinned ?? 0;
  return [lanes > 0 ? plural(lanes, 'lane') : '', pinned > 0 ? `${count(pinned)} pinned` : ''].filter(Boolean).join(' · ');
}

function box(node) {
  const { severity, text } = standing(node);
  return { id: `node-${node.name}`, title: node.name, tag: text, severity };
}

function wide(model, width) {
  const columns = [model.apps, model.proxy, model.primary, model.relay, model.replicas.length > 0 ? 'replicas' : null].filter(Boolean);
  const gap = Math.max(44, Math.min(130, width * 0.075));
  const w = Math.min(250, (width - gap * (columns.length - 1) - 4) / columns.length);
  const left = (width - (w * columns.length + gap * (columns.length - 1))) / 2;
  const boxes = [];
  const placed = {};
  columns.forEach((column, index) => {
    const x = left + index * (w + gap);
    if (column === 'replicas') {
      model.replicas.forEach((replica, row) => boxes.push({ ...replica, x, y: 14 + row * (BOX.height + BOX.gap), w, h: BOX.height, replica: true }));
    } else {
      const one = { ...column, x, y: 14, w, h: BOX.height };
      boxes.push(one);
      placed[column === model.primary ? 'primary' : column.id] = one;
    }
  });
  const replicas = boxes.filter((one) => one.replica);
  const trunk = 14 + BOX.height + (replicas.length > 1 ? BOX.gap + BOX.height / 2 : 34);
  const { apps, proxy, primary, relay } = placed;
  const edges = [];
  const across = (from, to, label, kind) => {
    if (!from || !to) return;
    const y = from.y + from.h / 2;
    edges.push({ path: `M${at(from.x + from.w)} ${at(y)}H${at(to.x - 7)}`, label, x: (from.x + from.w + to.x) / 2, y: 9, kind, anchor: 'middle' });
  };
  across(apps, proxy, model.labels.statements, 'flow');
  across(proxy, primary, model.labels.writes, 'flow');
  if (relay) across(primary, relay, model.labels.wal, relay.severity === 'good' ? 'wal' : 'broken');
  for (const replica of replicas) {
    const source = replica.fed === 'relay' ? relay : replica.fed === 'primary' ? primary : null;
    if (source) {
      const [x1, y1, x2, y2] = [source.x + source.w, source.y + source.h * 0.5, replica.x - 7, replica.y + replica.h * 0.36];
      const middle = source === relay || !relay ? (x1 + x2) / 2 : replica.x - gap / 2;
      const over = source === primary && relay ? `M${at(source.x + source.w / 2)} ${source.y}V4H${at(middle)}V${at(y2)}H${at(x2)}` : `M${at(x1)} ${at(y1)}C${at(middle)} ${at(y1)} ${at(middle)} ${at(y2)} ${at(x2)} ${at(y2)}`;
      edges.push({ path: over, label: '', x: 0, y: 0, kind: 'wal', anchor: 'middle' });
    }
    if (proxy && replica.reads) {
      const [x, y] = [replica.x - gap * 0.45, replica.y + replica.h * 0.68];
      const turn = Math.min(10, Math.abs(y - trunk) / 2);
      const up = y < trunk ? -1 : 1;
      const start = `M${at(proxy.x + proxy.w / 2)} ${at(proxy.y + proxy.h)}V${at(trunk - 10)}q0 10 10 10`;
      const end = Math.abs(y - trunk) < 2 ? `H${at(replica.x - 7)}` : `H${at(x - turn)}q${at(turn)} 0 ${at(turn)} ${at(up * turn)}V${at(y - up * turn)}q0 ${at(up * turn)} ${at(turn)} ${at(up * turn)}H${at(replica.x - 7)}`;
      edges.push({ path: start + end, label: '', x: 0, y: 0, kind: 'reads', anchor: 'middle' });
    }
  }
  if (proxy && replicas.some((replica) => replica.reads)) {
    const x = primary ? primary.x + primary.w / 2 : proxy.x + proxy.w + 60;
    edges.push({ path: '', label: model.labels.reads, x, y: trunk - 7, kind: 'reads', anchor: 'middle' });
  }
  const bottom = Math.max(trunk, ...boxes.map((one) => one.y + one.h)) + 8;
  return { width, height: bottom, boxes, edges };
}

function narrow(model, width) {
  const margin = 22;
  const boxes = [];
  const edges = [];
  let y = 6;
  let before = null;
  const put = (one, label, kind) => {
    if (!one) return null;
    if (before) {
      y += 34;
      edges.push({ path: `M${at(width / 2)} ${before.y + before.h}V${y - 7}`, label, x: width / 2 + 10, y: y - 14, kind, anchor: 'start' });
    }
    const placed = { ...one, x: margin, y, w: width - margin - 4, h: 72 };
    boxes.push(placed);
    y += placed.h;
    before = placed;
    return placed;
  };
  put(model.apps, '', 'flow');
  const proxy = put(model.proxy, model.labels.statements, 'flow');
  const primary = put(model.primary, model.labels.writes, 'flow');
  const relay = put(model.relay, model.labels.wal, model.relay?.severity === 'good' ? 'wal' : 'broken');
  const source = relay ?? primary;
  model.replicas.forEach((replica, index) => {
    if (index === 0 && source) {
      y += 34;
      if (replica.fed) edges.push({ path: `M${at(width / 2)} ${source.y + source.h}V${y - 7}`, label: relay ? 'WAL' : model.labels.wal, x: width / 2 + 10, y: y - 14, kind: 'wal', anchor: 'start' });
    } else if (index > 0) {
      y += 12;
    }
    const placed = { ...replica, x: margin, y, w: width - margin - 4, h: 72, replica: true };
    boxes.push(placed);
    if (proxy && replica.reads) {
      const middle = y + placed.h / 2;
      edges.push({ path: `M${margin} ${proxy.y + proxy.h / 2}H14q-8 0 -8 8V${middle - 8}q0 8 8 8H${margin - 5}`, label: '', x: 0, y: 0, kind: 'reads', anchor: 'start' });
    }
    y += placed.h;
  });
  if (proxy && model.replicas.some((replica) => replica.reads)) {
    edges.push({ path: '', label: model.labels.reads, x: 12, y: proxy.y + proxy.h + 20, kind: 'reads', anchor: 'start' });
  }
  return { width, height: y + 8, boxes, edges };
}

function at(value) {
  return Math.round(value * 10) / 10;
}

/** The picture in one sentence, for who does not see it. */
export function told(state) {
  const model = parts(state);
  const said = [];
  for (const one of [model.apps, model.proxy, model.primary, model.relay, ...model.replicas]) {
    if (one) said.push([one.title, one.tag, ...one.lines].filter(Boolean).join(', '));
  }
  return said.join('. ');
}
