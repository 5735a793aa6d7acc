// node-postgres for tenants (../tenants/README.md): each statement that is read or has a parameter is a named one.

import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'

// ES modules do not look into NODE_PATH; require does.
const pg = createRequire(import.meta.url)('pg')

const world = JSON.parse(readFileSync(new URL('../tenants/world.json', import.meta.url)))
const { TENANTS_PORT, TENANTS_FIRST = '0', TENANTS_CLIENTS = '48', TENANTS_READS = '10000' } = process.env
const PROGRAM = 'node-postgres'
const READS = 8
const ROUNDS = 9
const FAULTS = 100

const tally = new Map(world.ways.map((way) => [way.name, { reads: 0, inserts: 0, faults: [] }]))
const faults = () => [...tally.values()].reduce((sum, way) => sum + way.faults.length, 0)

// Numbers stay numbers.
function filled(value, who) {
  if (typeof value !== 'string') return value
  const whole = /^\{(\w+)\}$/.exec(value)
  return whole ? who[whole[1]] : value.replace(/\{(tenant|datestyle|timezone)\}/g, (_, name) => who[name])
}

// What is wrong with the rows that a reader of this tenant (none: of nobody's) got.
function wrong(statement, { rows, fields }, tenant, home, database) {
  if (!tenant) return rows.length ? `${rows.length} rows for nobody: ${JSON.stringify(rows[0])}` : null
  const count = statement.rows === 'single' ? 1 : tenant[statement.rows][database]
  if (rows.length !== count) return `${rows.length} rows, not ${count}: ${JSON.stringify(rows[0])}`
  const columns = fields.map((field) => field.name)
  if (columns.join() !== statement.columns[database].join()) return `columns ${columns}`
  const expected = { tenant: tenant.name, place: database, days: home.days, epoch: home.epoch, n: tenant.orders[database] }
  for (const row of rows) {
    for (const [column, value] of Object.entries(row)) {
      if (column in expected && value !== expected[column]) return `${column} is ${value}, not ${expected[column]}`
    }
  }
  return null
}

const names = new Map()
function named(text, values) {
  if (!names.has(text)) names.set(text, `statement_${names.size}`)
  return { name: names.get(text), text, values }
}

class Reader {
  constructor(number) {
    this.number = number
    this.name = `${PROGRAM}-${number}`
    this.database = world.databases[number % 2]
    this.user = world.users[Math.floor(number / 2) % 4 === 3 ? 1 : 0]
    this.reads = 0
  }

  told(round, tenant) {
    return `${this.name} (${this.user}, ${this.database}), round ${round}, as ${tenant ? tenant.name : 'nobody'}`
  }

  who(tenant, round) {
    const { name: home, datestyle, timezone } = this.home(round)
    return { tenant: tenant.name, home, datestyle, timezone, client: this.name, round }
  }

  // Whose DateStyle and TimeZone this connection has.
  home(round) {
    return world.tenants[(Math.floor(this.number / 2) + Math.floor(round / ROUNDS)) % 6]
  }

  run([text, ...values], who) {
    const sql = filled(text, who)
    return values.length ? this.client.query(named(sql, values.map((value) => filled(value, who)))) : this.client.query(sql)
  }

  async read(way, statement, who, tenant) {
    const result = await this.client.query(named(statement.text, statement.args.map((value) => filled(value, who))))
    this.reads += 1
    const counted = tally.get(way.name)
    counted.reads += 1
    const fault = wrong(statement, result, tenant, this.home(who.round), this.database)
    if (fault) counted.faults.push(`${this.told(who.round, tenant)}, ${statement.name}: ${fault}`)
  }

  async work(way, who, tenant, inserts) {
    const { statements } = world
    if (inserts) {
      await this.run(world.insert, who)
      tally.get(way.name).inserts += 1
    }
    for (let n = 0; n < READS; n++) {
      await this.read(way, statements[(this.number + who.round + n) % statements.length], who, tenant)
    }
    if (inserts) await this.read(way, world.entry, who, tenant)
  }

  async round(round) {
    const { tenants, statements, ways } = world
    const at = Math.floor(this.number / 16) + round + Math.floor(round / 24)
    const way = ways[(Math.floor(this.number / 2) + round) % ways.length]
    const tenant = tenants[at % 6]
    // Whose the session is around a transaction that is another tenant's.
    const other = tenants[(at + 1 + (round % 5)) % 6]
    const who = this.who(tenant, round)
    const inserts = (this.number + round) % 4 === 0
    try {
      for (const statement of way.outside) await this.run(statement, way.inside.length ? this.who(other, round) : who)
      if (way.inside.length) {
        await this.client.query('BEGIN')
        for (const statement of way.inside) await this.run(statement, who)
        await this.work(way, who, tenant, inserts)
        await this.client.query(round % 3 === 0 && !inserts ? 'ROLLBACK' : 'COMMIT')
        if (way.outside.length) await this.read(way, statements[round % statements.length], who, other)
      } else {
        await this.work(way, who, tenant, inserts)
      }
      // It leaves with all that it has set.
      if (round % ROUNDS === ROUNDS - 1) return
      for (const statement of way.reset) await this.run(statement, who)
      for (let n = 0; n < 2; n++) await this.read(way, statements[(round + n) % (statements.length - 1)], who, null)
    } catch (error) {
      tally.get(way.name).faults.push(`${this.told(round, tenant)}: ${error.code}: ${error.message}`)
      throw error
    }
  }

  async connect() {
    const where = { host: '127.0.0.1', port: Number(TENANTS_PORT), user: this.user, database: this.database }
    const client = new pg.Client({ ...where, ssl: false, connectionTimeoutMillis: 60000, query_timeout: 60000 })
    // What happens to a connection is told by the statement that was under way.
    client.on('error', () => {})
    await client.connect()
    return client
  }

  async start(reads) {
    for (let round = 0; this.reads < reads && faults() < FAULTS; round++) {
      this.client ??= await this.connect()
      try {
        await this.round(round)
      } catch {
        // Its state is not known: the next round has a new connection.
        await this.client.end()
        this.client = null
      }
      if (this.client && round % ROUNDS === ROUNDS - 1) {
        await this.client.end()
        this.client = null
      }
    }
    await this.client?.end()
  }
}

const clients = Number(TENANTS_CLIENTS)
const share = Math.floor(Number(TENANTS_READS) / clients)
await Promise.all(Array.from({ length: clients }, (_, n) => new Reader(Number(TENANTS_FIRST) + n).start(share)))

let number = 0
let failed = false
for (const [name, way] of tally) {
  // Without a read, nothing was tested.
  const good = !way.faults.length && way.reads > 0
  failed ||= !good
  const end = way.faults.length ? `, ${way.faults.length} faults` : ''
  console.log(`${good ? 'ok' : 'not ok'} ${++number} - ${name}: ${way.reads} reads, ${way.inserts} inserts${end}`)
  for (const fault of way.faults.slice(0, 3)) console.log(`# ${fault}`)
}
console.log(`1..${number}`)
process.exit(failed ? 1 : 0)
