// node-postgres at its usual work: parameters, named statements, transactions, pools, COPY, cursors, types, cancel.

import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { createRequire } from 'node:module'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'

// ES modules do not look into NODE_PATH; require does.
const require = createRequire(import.meta.url)
const pg = require('pg')
const Cursor = require('pg-cursor')
const copy = require('pg-copy-streams')

const connectionString = process.env.DATABASE_URL
const checks = []
const check = (name, work) => checks.push({ name, work })

async function connected(work, more = {}) {
  const client = new pg.Client({ connectionString, connectionTimeoutMillis: 20000, ...more })
  await client.connect()
  try {
    return await work(client)
  } finally {
    await client.end()
  }
}

const column = async (client, ...query) => (await client.query(...query)).rows.map((row) => Object.values(row)[0])
const unique = () => `node_${randomBytes(6).toString('hex')}`

async function table(client, columns) {
  const name = unique()
  await client.query(`CREATE TABLE ${name} (${columns})`)
  return name
}

check('parameters and rows', () => connected(async (client) => {
  assert.deepEqual(await column(client, 'SELECT $1::int + $2::int', [40, 2]), [42])
  assert.deepEqual((await client.query('SELECT 1 AS a, $1 AS b', ['é✓'])).rows, [{ a: 1, b: 'é✓' }])
  assert.deepEqual((await client.query({ text: 'SELECT 1, 2', rowMode: 'array' })).rows, [[1, 2]])
  assert.equal((await client.query('SELECT n FROM generate_series(1, 10000) n')).rowCount, 10000)
  const several = await client.query('SELECT 1 AS a; SELECT 2 AS b')
  assert.deepEqual(several.map((result) => result.rows), [[{ a: 1 }], [{ b: 2 }]])
}))

check('named statements in many clients', async () => {
  await Promise.all(Array.from({ length: 10 }, (_, number) => connected(async (client) => {
    for (let turn = 0; turn < 20; turn++) {
      // The same name for another text in each client.
      const rows = await column(client, { name: 'own', text: `SELECT $1::int + ${number}`, values: [turn] })
      assert.deepEqual(rows, [turn + number])
      assert.deepEqual(await column(client, { name: 'common', text: 'SELECT $1::text', values: [`${turn}`] }), [`${turn}`])
    }
  })))
})

check('many queries at once on one client', () => connected(async (client) => {
  const answers = await Promise.all(Array.from({ length: 100 }, (_, n) => column(client, 'SELECT $1::int', [n])))
  assert.deepEqual(answers.flat(), Array.from({ length: 100 }, (_, n) => n))
}))

check('transactions', () => connected(async (client) => {
  const name = await table(client, 'n int PRIMARY KEY')
  await client.query('BEGIN')
  await client.query(`INSERT INTO ${name} VALUES (1)`)
  await client.query('SAVEPOINT a')
  await assert.rejects(client.query(`INSERT INTO ${name} VALUES ($1)`, [1]), { code: '23505' })
  await assert.rejects(client.query('SELECT 1'), { code: '25P02' })
  await client.query('ROLLBACK TO a')
  await client.query(`INSERT INTO ${name} VALUES (2)`)
  await client.query('COMMIT')
  assert.deepEqual(await column(client, `SELECT n FROM ${name} ORDER BY n`), [1, 2])
  await client.query('BEGIN')
  await client.query(`DELETE FROM ${name}`)
  await client.query('ROLLBACK')
  assert.deepEqual(await column(client, `SELECT count(*)::int FROM ${name}`), [2])
  await client.query('BEGIN READ ONLY')
  await assert.rejects(client.query(`INSERT INTO ${name} VALUES (9)`), { code: '25006' })
  await client.query('ROLLBACK')
}))

check('errors keep the connection', () => connected(async (client) => {
  for (const [text, values, code] of [
    ['SELEC 1', undefined, '42601'],
    ['SELECT * FROM no_such_table', [], '42P01'],
    ['SELECT $1::int', ['x'], '22P02'],
    ['SELECT 1 / $1::int', [0], '22012'],
  ]) {
    await assert.rejects(client.query(text, values), { code })
    assert.deepEqual(await column(client, 'SELECT 7 AS n'), [7])
  }
}))

check('pool', async () => {
  const pool = new pg.Pool({ connectionString, max: 12, connectionTimeoutMillis: 20000 })
  const name = await table(pool, 'n int PRIMARY KEY')
  await Promise.all(Array.from({ length: 200 }, async (_, n) => {
    const client = await pool.connect()
    try {
      await client.query(`INSERT INTO ${name} VALUES ($1)`, [n])
      assert.deepEqual(await column(client, `SELECT count(*)::int FROM ${name} WHERE n = $1`, [n]), [1])
    } finally {
      client.release()
    }
  }))
  assert.deepEqual(await column(pool, `/* kingpost.route=primary */ SELECT count(*)::int FROM ${name}`), [200])
  await pool.end()
})

check('COPY in and out', () => connected(async (client) => {
  const name = await table(client, 'n int, t text')
  const lines = Array.from({ length: 20000 }, (_, n) => `${n}\trow ${n}\n`)
  await pipeline(Readable.from(lines), client.query(copy.from(`COPY ${name} FROM STDIN`)))
  let text = ''
  for await (const chunk of client.query(copy.to(`COPY (SELECT * FROM ${name} ORDER BY n) TO STDOUT`))) text += chunk
  assert.ok(text === lines.join(''), 'COPY TO differs from what COPY FROM was given')
  const broken = pipeline(Readable.from(['1\tx\n', 'not a number\ty\n']), client.query(copy.from(`COPY ${name} FROM STDIN`)))
  await assert.rejects(broken, { code: '22P02' })
  assert.deepEqual(await column(client, `SELECT count(*)::int FROM ${name}`), [20000])
}))

check('cursors', () => connected(async (client) => {
  await client.query('BEGIN')
  const cursor = client.query(new Cursor('SELECT n FROM generate_series(1, $1::int) n', [250]))
  const seen = []
  for (;;) {
    const rows = await cursor.read(100)
    if (rows.length === 0) break
    seen.push(...rows.map((row) => row.n))
  }
  await cursor.close()
  await client.query('COMMIT')
  assert.deepEqual(seen, Array.from({ length: 250 }, (_, n) => n + 1))
  // Closed before its end, and outside of a transaction.
  const half = client.query(new Cursor('SELECT n FROM generate_series(1, 1000) n'))
  assert.equal((await half.read(10)).length, 10)
  await half.close()
  assert.deepEqual(await column(client, 'SELECT 7 AS n'), [7])
}))

check('notices and notifications', () => connected(async (client) => {
  const notices = []
  client.on('notice', (notice) => notices.push(`${notice.severity} ${notice.message}`))
  await client.query(`DO $$ BEGIN RAISE NOTICE 'one'; RAISE WARNING 'two'; END $$`)
  assert.deepEqual(notices, ['NOTICE one', 'WARNING two'])
  const channel = unique()
  await client.query(`LISTEN ${channel}`)
  const heard = once(client, 'notification', { signal: AbortSignal.timeout(20000) })
  await connected((other) => other.query(`SELECT pg_notify($1, 'hello')`, [channel]))
  assert.equal((await heard)[0].payload, 'hello')
  // It goes on with its work, and hears what comes meanwhile, also from itself.
  const more = []
  client.on('notification', (notification) => more.push(notification.payload))
  for (const payload of ['one', 'two']) {
    await client.query(`SELECT pg_notify($1, $2)`, [channel, payload])
    await client.query('SELECT 1')
  }
  for (const end = Date.now() + 20000; more.length < 2 && Date.now() < end;) await client.query('SELECT 1')
  assert.deepEqual(more, ['one', 'two'])
}))

check('cancel', () => connected(async (client) => {
  const name = unique()
  const sleeping = client.query(`SELECT pg_sleep(600) AS ${name}`)
  const outcome = assert.rejects(sleeping, { code: '57014' })
  await connected(async (watcher) => {
    // On whichever node it runs, it is the only one there that sleeps under this name.
    const text = `SELECT pg_cancel_backend(pid) AS hit FROM pg_stat_activity
      WHERE wait_event = 'PgSleep' AND query LIKE '%' || $1 || '%'`
    for (const end = Date.now() + 20000; ;) {
      const hits = []
      for (const route of ['primary', 'replica']) hits.push(...await column(watcher, `/* kingpost.route=${route} */ ${text}`, [name]))
      if (hits.includes(true)) break
      assert.ok(Date.now() < end, 'the sleeper was not found')
    }
  })
  await outcome
  assert.deepEqual(await column(client, 'SELECT 7 AS n'), [7])
}))

check('query time-out', () => connected(async (client) => {
  await assert.rejects(client.query('SELECT pg_sleep(600)'), { code: '57014' })
  assert.deepEqual(await column(client, 'SELECT 7 AS n'), [7])
}, { statement_timeout: 200 }))

check('JSON, arrays and dates', () => connected(async (client) => {
  const one = async (kind, value) => (await column(client, `SELECT $1::${kind} AS v`, [value]))[0]
  assert.deepEqual(await one('jsonb', { a: [1, { b: null }] }), { a: [1, { b: null }] })
  assert.deepEqual(await one('int[]', [1, null, 3]), [1, null, 3])
  assert.deepEqual(await one('text[]', [['a', 'b,'], ['"c"', '{d}']]), [['a', 'b,'], ['"c"', '{d}']])
  assert.deepEqual(await one('bytea', Buffer.from([0, 1, 255])), Buffer.from([0, 1, 255]))
  const instant = new Date('2024-02-29T12:30:01.005Z')
  assert.equal((await one('timestamptz', instant)).getTime(), instant.getTime())
  assert.equal(await one('numeric', '12345678901234567890.123456789'), '12345678901234567890.123456789')
  assert.equal(await one('int8', '9007199254740993'), '9007199254740993')
  assert.equal(await one('bool', true), true)
  assert.equal(await one('text', null), null)
}))

check('session settings', () => connected(async (client) => {
  for (let turn = 0; turn < 5; turn++) {
    assert.deepEqual(await column(client, 'SHOW application_name'), ['node tests'])
    assert.deepEqual(await column(client, 'SHOW work_mem'), ['6MB'])
  }
}, { application_name: 'node tests', options: '-c work_mem=6MB' }))

let failed = 0
for (const [index, { name, work }] of checks.entries()) {
  let timer
  const late = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error('not done after 60 s')), 60000) })
  try {
    await Promise.race([work(), late])
    console.log(`ok ${index + 1} - ${name}`)
  } catch (error) {
    failed += 1
    console.log(`not ok ${index + 1} - ${name}`)
    console.error(error)
  } finally {
    clearTimeout(timer)
  }
}
console.log(`1..${checks.length}`)
process.exit(failed ? 1 : 0)
