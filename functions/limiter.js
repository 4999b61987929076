#!js api_version=1.0 name=limiter

// The tracker's account, kept inside Redis Stack 7.2 and 7.4 by a keyspace trigger.
//
// Whenever a counter grows, be it Tallygate's or that of an application which has
// never heard of Tallygate, this does for the counter's cell what the tracker's
// apply.lua does: metadata, series and marks move together, exactly once. Keys,
// fields and arithmetic are the same, so the two may work side by side; where the
// trigger has been first, the tracker finds nothing to move and only publishes.
//
// Configuration (TFUNCTION LOAD CONFIG '{...}'), all strings or numbers:
//   namespace   first part of every hash tag; "api"
//   grace       seconds that counters outlive their minute; 600
//   span        minutes in a series; 120
//
// What one sees of a counter {api:T}:<minute>[:<resource>] after INCRBY 5:
//   {api:T}:data              hash    ops += 5, last = now, ...
//   series:{api:T}:<resource> hash    the minute's bucket, absolute
//   applied:{api:T}           hash    what is accounted for

const config = redis.config || {};
const NAMESPACE = String(config.namespace || 'api');
const GRACE = Number(config.grace || 600);
const SPAN = Number(config.span || 120);
// Marks are kept a minute longer than counters live; a foreign counter lives up to
// 59 s past its minute whatever the grace is.
const KEEP = Math.max(GRACE, 60) + 60;

const PREFIX = `{${NAMESPACE}:`;
// A resource as it is written canonically: nothing that could stand for itself is
// percent-encoded, everything else is.
const RESOURCE = /^(?:[A-Za-z0-9._~@-]|%[0-9A-F]{2})*$/;
const NEEDLESS = /%(?:2[DE]|3[0-9]|4[0-9A-F]|5[0-9AF]|6[1-9A-F]|7[0-9AE])/;

// cellOf tells a counter from every other key by its shape alone; null is no
// counter. It reads keys as counters.Namespace.ParseKey does.
function cellOf(key, nowMinute) {
  const end = key.indexOf('}:');
  if (!key.startsWith(PREFIX) || end <= PREFIX.length) {
    return null;
  }
  const token = key.slice(PREFIX.length, end);
  if (/[{}\0]/.test(token)) {
    return null;
  }
  const rest = key.slice(end + 2);
  if (/^\d{1,2}$/.test(rest) && Number(rest) < 60) {
    let ahead = (Number(rest) - nowMinute % 60 + 60) % 60;
    if (ahead >= 30) {
      ahead -= 60;
    }
    return { token, resource: '', minute: nowMinute + ahead };
  }
  const m = /^([1-9]\d{1,11})(?::([^:]*)(:rejected|:refunded)?)?$/.exec(rest);
  if (!m || Number(m[1]) < 60 || (m[2] === '' && !m[3])) {
    return null;
  }
  const resource = m[2] || '';
  if (!RESOURCE.test(resource) || NEEDLESS.test(resource)) {
    return null;
  }
  return { token, resource, minute: Number(m[1]) };
}

// number reads a figure; what is absent or none is null.
function number(text) {
  return text !== null && /^-?\d+$/.test(text) ? Number(text) : null;
}

// figures reads a mark of n figures; what is absent counts as zeros.
function figures(mark, n) {
  const m = mark === null ? [] : mark.split(':').map(Number);
  return m.length === n ? m : new Array(n).fill(0);
}

// call calls a command with whatever can be written as a string; the host
// takes nothing else.
function call(client, ...args) {
  return client.call(...args.map(String));
}

// foreignMove returns the mark of a foreign counter and the units to account for;
// apply.lua says how a counter that began anew in its minute is recognised.
function foreignMove(client, key, value, mark, minute, nowMs) {
  let [total, seen, expiry] = figures(mark, 3);
  const ttl = Number(call(client, 'pttl', key));
  const expires = ttl > 0 ? nowMs + ttl : 0;
  let delta = Math.max(value - seen, 0);
  if (delta === 0 && expiry > 0 && expiry <= nowMs && expiry < (minute + 1) * 60000 && expires > expiry) {
    delta = value;
    seen = 0;
  }
  if (delta === 0) {
    return [mark, 0];
  }
  return [`${total + delta}:${Math.max(value, seen)}:${expires}`, delta];
}

const FIGURES = ['ops', 'rejected', 'refunded', 'first', 'last', 'minute', 'rate', 'peak', 'peak_minute'];

// moveMetadata is metadata_move of metadata.lua for one minute.
function moveMetadata(client, key, token, minute, admitted, rejected, refunded, at) {
  const old = call(client, 'hmget', key, 'token', 'percent', ...FIGURES);
  const fresh = old[0] === null;
  const was = {};
  const now = {};
  FIGURES.forEach((name, i) => {
    was[name] = now[name] = number(old[i + 2]) || 0;
  });
  now.ops += admitted;
  now.rejected += rejected;
  now.refunded += refunded;
  if (admitted > 0) {
    if (now.first === 0 || at < now.first) {
      now.first = at;
    }
    now.last = Math.max(now.last, at);
    if (minute > now.minute) {
      now.minute = minute;
      now.rate = 0;
    }
    if (minute === now.minute) {
      now.rate += admitted;
      if (now.rate > now.peak) {
        now.peak = now.rate;
        now.peak_minute = minute;
      }
    }
  }
  const set = fresh ? ['token', token, 'percent', old[1] || '0'] : [];
  for (const name of FIGURES) {
    if (fresh || now[name] !== was[name]) {
      set.push(name, now[name]);
    }
  }
  if (set.length > 0) {
    call(client, 'hset', key, ...set);
  }
}

// putSeries is series_put of series.lua.
function putSeries(client, key, minute, admitted, rejected, refunded) {
  const field = minute % SPAN;
  let old;
  try {
    old = call(client, 'hget', key, field);
  } catch (wrongType) {
    call(client, 'del', key);
    old = null;
  }
  const [m, a, r, f] = old === null ? [-1, 0, 0, 0] : figures(old, 4);
  if (m > minute) {
    return;
  }
  if (m === minute) {
    admitted = Math.max(admitted, a);
    rejected = Math.max(rejected, r);
    refunded = Math.max(refunded, f);
  }
  const bucket = `${minute}:${admitted}:${rejected}:${refunded}`;
  if (bucket !== old) {
    call(client, 'hset', key, field, bucket);
  }
  if (m !== minute) {
    call(client, 'expire', key, SPAN * 60);
  }
}

// prune removes the marks of minutes that are out of grace.
function prune(client, applied, now) {
  const gone = call(client, 'hkeys', applied).filter((field) => {
    const m = /@(\d+)$/.exec(field) || /^(\d+)/.exec(field);
    return m && Number(m[1]) * 60 + 60 + KEEP <= now;
  }).slice(0, 1000);
  if (gone.length > 0) {
    call(client, 'hdel', applied, ...gone);
  }
  call(client, 'expire', applied, KEEP + 180);
}

// account accounts for what the counters of one cell hold.
function account(client, cell, nowMs) {
  const { token, resource, minute } = cell;
  const now = Math.floor(nowMs / 1000);
  const ends = minute * 60 + 60;
  if (ends + GRACE <= now - 60) {
    return; // its marks are gone
  }
  const tag = `${PREFIX}${token}}`;
  const applied = `applied:${tag}`;
  const field = resource === '' ? String(minute) : `${minute}:${resource}`;
  const fields = [field];
  const counters = [`${tag}:${field}`, `${tag}:${minute}:${resource}:rejected`, `${tag}:${minute}:${resource}:refunded`];
  if (resource === '') {
    const m = String(minute % 60);
    for (const name of m.length === 1 ? [m, `0${m}`] : [m]) {
      fields.push(`${name}@${minute}`);
      counters.push(`${tag}:${name}`);
    }
  }
  // Whatever can fail comes before the first write.
  const marks = call(client, 'hmget', applied, ...fields);
  const values = call(client, 'mget', ...counters);
  const [a0, r0, f0, last0] = figures(marks[0], 4);
  const a = Math.max(number(values[0]) || 0, a0);
  const r = Math.max(number(values[1]) || 0, r0);
  const f = Math.max(number(values[2]) || 0, f0);
  let admitted = a - a0;
  let total = a;
  let fresh = marks[0] === null;
  const set = [];
  for (let i = 1; i < fields.length; i++) {
    const value = number(values[i + 2]);
    let mark = marks[i];
    if (value !== null && value >= 0 && Math.abs(minute - Math.floor(now / 60)) < 30) {
      const [moved, delta] = foreignMove(client, counters[i + 2], value, mark, minute, nowMs);
      if (delta > 0) {
        set.push(fields[i], moved);
        fresh = fresh || mark === null;
        mark = moved;
        admitted += delta;
      }
    }
    total += figures(mark, 3)[0];
  }
  const rejected = r - r0;
  const refunded = f - f0;
  if (admitted + rejected + refunded === 0) {
    return;
  }
  const last = admitted > 0 ? Math.max(last0, Math.min(now, ends - 1)) : last0;
  set.push(field, `${a}:${r}:${f}:${last}`);
  moveMetadata(client, `${tag}:data`, token, minute, admitted, rejected, refunded, last);
  call(client, 'hset', applied, ...set);
  if (fresh) {
    prune(client, applied, now);
  }
  putSeries(client, `series:${tag}:${resource}`, minute, total, r, f);
}

redis.registerKeySpaceTrigger('account', PREFIX, (client, data) => {
  // Every event of every key under the prefix comes here: also expire and keymiss.
  if (data.event !== 'incrby' || data.key === null) {
    return;
  }
  const [seconds, micros] = call(client, 'time');
  const nowMs = Number(seconds) * 1000 + Math.floor(Number(micros) / 1000);
  const cell = cellOf(data.key, Math.floor(nowMs / 60000));
  if (cell !== null) {
    account(client, cell, nowMs);
  }
}, { description: 'Accounts for usage counters: metadata, series, marks.' });
