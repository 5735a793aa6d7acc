// npm consul at its usual work: register, heartbeat, discover, watch, expire, deregister.

import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { createRequire } from 'node:module'
import { check, run, until } from './tap.mjs'

// ES modules do not look into NODE_PATH; require does.
const require = createRequire(import.meta.url)
const Consul = require('consul')
const consul = new Consul({ host: '127.0.0.1', port: Number(process.env.CONSUL_PORT) })
const unique = (stem) => `${stem}-${randomBytes(4).toString('hex')}`
const passing = async (service) =>
  (await consul.health.service({ service, passing: true })).map((entry) => entry.Service.ID).sort()

check('register, pass, discover, deregister', async () => {
  const name = unique('web')
  const id = `${name}/1`
  await consul.agent.service.register({
    name, id, address: '10.0.0.1', port: 80, tags: ['a'], meta: { version: '2' },
    check: { ttl: '10s', deregistercriticalserviceafter: '1m' }
  })
  assert.deepEqual(await passing(name), [])
  await consul.agent.check.pass(`service:${id}`)
  assert.deepEqual(await passing(name), [id])
  const [entry] = await consul.health.service({ service: name, filter: 'Service.Meta.version == "2" and a in Service.Tags' })
  assert.equal(entry.Service.Meta.version, '2')
  assert.deepEqual(await consul.health.service({ service: name, filter: 'Service.Meta.version == "3"' }), [])
  assert.deepEqual((await consul.catalog.service.list())[name], ['a'])
  assert.equal((await consul.catalog.service.nodes(name))[0].ServiceID, id)
  assert.equal((await consul.agent.service.list())[id].Port, 80)
  assert.ok(await consul.status.leader())
  await consul.agent.service.deregister(id)
  assert.deepEqual(await consul.health.service(name), [])
})

check('a watch sees each change', async () => {
  const name = unique('watched')
  const seen = []
  const watch = consul.watch({ method: consul.health.service, options: { service: name, wait: '10s' } })
  watch.on('change', (entries) => seen.push(entries.map((entry) => entry.Service.ID).sort().join()))
  watch.on('error', (error) => seen.push(`error ${error}`))
  await until('the first answer', () => seen.length === 1)
  for (const id of ['one', 'two']) {
    await consul.agent.service.register({ name, id: `${name}-${id}`, address: 'h', port: 1 })
    await until(`${id} is seen`, () => seen.at(-1).endsWith(`${name}-${id}`))
  }
  await consul.agent.service.deregister(`${name}-one`)
  await until('it is seen to be gone', () => seen.at(-1) === `${name}-two`)
  watch.end()
})

check('who is silent expires', async () => {
  const name = unique('silent')
  await consul.agent.service.register({ name, address: 'h', port: 1, check: { ttl: '1s', status: 'passing' } })
  assert.deepEqual(await passing(name), [name])
  await until('it expires', async () => (await passing(name)).length === 0)
  await consul.agent.check.pass(`service:${name}`)
  assert.deepEqual(await passing(name), [name])
})

check('events are fired and listed', async () => {
  const name = unique('deploy')
  for (const payload of ['v1', 'v2']) await consul.event.fire({ name, payload })
  await consul.event.fire({ name, payload: 'for nobody', service: '^no-such-service$' })
  const events = await consul.event.list(name)
  assert.deepEqual(events.map((event) => event.Payload), ['v1', 'v2'])
  assert.ok(events[0].LTime < events[1].LTime)
})

run()
