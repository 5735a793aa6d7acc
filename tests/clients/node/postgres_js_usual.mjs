// postgres.js at its usual work: it prepares every statement by name and pipelines what one connection is given.

import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { createRequire } from 'node:module'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'

import { check, run, until } from './tap.mjs'

// ES modules do not look into NODE_PATH; require does.
const require = createRequire(import.meta.url)
const postgres = require('postgres')

const unique = () => `postgresjs_${randomBytes(6).toString('hex')}`

async function connected(work, more = {}) {
  const sql = postgres(process.env.DATABASE_URL, { max: 1, connect_timeout: 20, onnotice: () => {}, ...more })
  try {
    return await work(sql)
  } finally {
    await sql.end({ timeout: 20 })
  }
}

async function table(sql, columns) {
  const name = unique()
  await sql.unsafe(`CREATE TABLE ${name} (${columns})`)
  return name
}

check('parameters, rows and types', () => connected(async (sql) => {
  assert.deepEqual([...await sql`SELECT ${40}::int + ${2}::int AS n, ${'é✓'}::text AS t`], [{ n: 42, t: 'é✓' }])
  const instant = new Date('2024-02-29T12:30:01.005Z')
  const [row] = await sql`SELECT ${sql.json({ a: [1, null] })}::jsonb AS j, ${[1, 2, 3]}::int[] AS a, ${instant}::timestamptz AS at,
    ${Buffer.from([0, 1, 255])}::bytea AS b, ${null}::text AS nothing, ${true}::bool AS yes, 9007199254740993::int8 AS big`
  assert.deepEqual(row.j, { a: [1, null] })
  assert.deepEqual(row.a, [1, 2, 3])
  assert.equal(row.at.getTime(), instant.getTime())
  assert.deepEqual([...row.b], [0, 1, 255])
  assert.deepEqual([row.nothing, row.yes, row.big], [null, true, '9007199254740993'])
  assert.equal((await sql`SELECT n FROM generate_series(1, 10000) n`).length, 10000)
  assert.deepEqual((await sql.unsafe('SELECT 1 AS a; SELECT 2 AS b')).map((result) => [...result]), [[{ a: 1 }], [{ b: 2 }]])
}))

for (const prepare of [true, false]) {
  check(`many connections, ${prepare ? 'prepared' : 'unprepared'}`, () => connected(async (sql) => {
    const name = await table(sql, 'n int PRIMARY KEY, t text')
    await Promise.all(Array.from({ length: 200 }, async (_, n) => {
      await sql`INSERT INTO ${sql(name)} ${sql({ n, t: `row ${n}` })}`
      // Any of the connections answers, so the primary is asked.
      const rows = await sql.unsafe(`/* kingpost.route=primary */ SELECT t FROM ${name} WHERE n = $1`, [n], { prepare })
      assert.deepEqual([...rows], [{ t: `row ${n}` }])
      assert.deepEqual([...await sql`SELECT ${n}::int + 1 AS m`], [{ m: n + 1 }])
    }))
    const [{ count }] = await sql.unsafe(`/* kingpost.route=primary */ SELECT count(*)::int FROM ${name}`)
    assert.equal(count, 200)
  }, { max: 12, prepare }))
}

check('a pipeline on one connection, with an error in it', () => connected(async (sql) => {
  const answers = await Promise.allSettled(Array.from({ length: 100 }, (_, n) => sql`SELECT 100 / (${n}::int - 50) AS q`))
  assert.equal(answers.filter(({ status }) => status === 'rejected').length, 1)
  assert.equal(answers[50].reason.code, '22012')
  assert.equal(answers[60].value[0].q, 10)
}))

check('transactions and savepoints', () => connected(async (sql) => {
  const name = await table(sql, 'n int PRIMARY KEY')
  const kept = await sql.begin(async (sql) => {
    await sql`INSERT INTO ${sql(name)} VALUES (1)`
    await assert.rejects(sql.savepoint((sql) => sql`INSERT INTO ${sql(name)} VALUES (1)`), { code: '23505' })
    await Promise.all([2, 3, 4].map((n) => sql`INSERT INTO ${sql(name)} VALUES (${n})`))
    return 'kept'
  })
  assert.equal(kept, 'kept')
  await assert.rejects(sql.begin(async (sql) => {
    await sql`DELETE FROM ${sql(name)}`
    throw new Error('on purpose')
  }), /on purpose/)
  assert.deepEqual((await sql`SELECT n FROM ${sql(name)} ORDER BY n`).map(({ n }) => n), [1, 2, 3, 4])
  await assert.rejects(sql.begin('read only', (sql) => sql`INSERT INTO ${sql(name)} VALUES (9)`), { code: '25006' })
  const [{ level }] = await sql.begin('isolation level serializable', (sql) => sql`SELECT current_setting('transaction_isolation') AS level`)
  assert.equal(level, 'serializable')
}))

check('cursors', () => connected(async (sql) => {
  const seen = []
  for await (const rows of sql`SELECT n FROM generate_series(1, 250) n`.cursor(100)) seen.push(...rows.map(({ n }) => n))
  assert.deepEqual(seen, Array.from({ length: 250 }, (_, n) => n + 1))
  for await (const rows of sql`SELECT n FROM generate_series(1, 250) n`.cursor(10)) {
    assert.equal(rows.length, 10)
    break
  }
  assert.deepEqual([...await sql`SELECT 7 AS n`], [{ n: 7 }])
}))

check('COPY in and out', () => connected(async (sql) => {
  const name = await table(sql, 'n int, t text')
  const lines = Array.from({ length: 20000 }, (_, n) => `${n}\trow ${n}\n`)
  await pipeline(Readable.from(lines), await sql.unsafe(`COPY ${name} FROM STDIN`).writable())
  let text = ''
  for await (const chunk of await sql.unsafe(`COPY (SELECT * FROM ${name} ORDER BY n) TO STDOUT`).readable()) text += chunk
  assert.ok(text === lines.join(''), 'COPY TO differs from what COPY FROM was given')
}))

check('errors keep the connection', () => connected(async (sql) => {
  for (const [text, code] of [['SELEC 1', '42601'], ['SELECT * FROM no_such_table', '42P01'], ["SELECT 'x'::int", '22P02']]) {
    await assert.rejects(sql.unsafe(text), { code })
    await assert.rejects(sql.unsafe(text, [], { prepare: true }), { code })
    assert.deepEqual([...await sql`SELECT 7 AS n`], [{ n: 7 }])
  }
}))

check('a table that changes', () => connected(async (sql) => {
  const name = await table(sql, 'a int')
  await sql`INSERT INTO ${sql(name)} VALUES (1)`
  const columns = async () => Object.keys((await sql`SELECT * FROM ${sql(name)}`)[0]).length
  for (let turn = 1; turn < 4; turn++) {
    assert.equal(await columns(), turn)
    assert.equal(await columns(), turn)
    await sql.unsafe(`ALTER TABLE ${name} ADD COLUMN c${turn} text`)
  }
}))

check('listening', () => connected(async (sql) => {
  const channel = unique()
  const heard = []
  const { unlisten } = await sql.listen(channel, (payload) => heard.push(payload))
  for (const payload of ['one', 'two']) await sql.notify(channel, payload)
  await until('both are heard', () => heard.length === 2)
  assert.deepEqual(heard, ['one', 'two'])
  await unlisten()
}))

check('cancel', () => connected(async (sql) => {
  for (let turn = 0; turn < 3; turn++) {
    const sleeping = sql`SELECT pg_sleep(600)`
    const outcome = assert.rejects(sleeping, { code: '57014' })
    setTimeout(() => sleeping.cancel(), 200)
    await outcome
    assert.deepEqual([...await sql`SELECT 7 AS n`], [{ n: 7 }])
  }
}))

check('session settings', () => connected(async (sql) => {
  for (let turn = 0; turn < 5; turn++) {
    assert.deepEqual((await sql`SHOW application_name`)[0].application_name, 'postgres.js tests')
    assert.deepEqual((await sql`SHOW statement_timeout`)[0].statement_timeout, '77s')
  }
}, { connection: { application_name: 'postgres.js tests', statement_timeout: 77000 } }))

if (process.env.DATABASE_TLS_URL) {
  check('TLS where it is offered', async () => {
    const sql = postgres(process.env.DATABASE_TLS_URL, { max: 1, ssl: 'prefer' })
    assert.deepEqual([...await sql`SELECT 7 AS n`], [{ n: 7 }])
    await sql.end({ timeout: 20 })
  })
}

await run()
