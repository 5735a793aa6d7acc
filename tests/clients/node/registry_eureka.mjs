// eureka-js-client at its usual work: register, heartbeat, discover, deregister.

import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { createRequire } from 'node:module'
import { check, run, until } from './tap.mjs'

const require = createRequire(import.meta.url)
const { Eureka } = require('eureka-js-client')
const { hostname: host, port } = new URL(process.env.EUREKA_URL)
const unique = (stem) => `${stem}-${randomBytes(4).toString('hex')}`
const quiet = { debug() {}, info() {}, warn() {}, error: console.error, level() {} }

function client(app, more = {}) {
  const it = new Eureka({
    logger: quiet,
    instance: {
      app, instanceId: `${app}:1`, hostName: 'h.example', ipAddr: '10.0.0.1', vipAddress: app, metadata: { k: 'v' },
      port: { $: 8080, '@enabled': 'true' },
      dataCenterInfo: { '@class': 'com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo', name: 'MyOwn' },
      leaseInfo: { durationInSecs: 5 }
    },
    eureka: { host, port, servicePath: '/eureka/apps/', heartbeatInterval: 200, registryFetchInterval: 100, ...more }
  })
  return { it, start: () => new Promise((go, no) => it.start((error) => (error ? no(error) : go()))),
    stop: () => new Promise((go, no) => it.stop((error) => (error ? no(error) : go()))) }
}

check('a client comes, is found by another, beats, and goes', async () => {
  const app = unique('shop')
  const one = client(app)
  const other = client(unique('visitor'), { registerWithEureka: false })
  await one.start()
  await other.start()
  const [found] = other.it.getInstancesByAppId(app)
  assert.deepEqual([found.ipAddr, found.hostName, found.port.$, found.status], ['10.0.0.1', 'h.example', 8080, 'UP'])
  assert.equal(found.metadata.k, 'v')
  assert.equal(other.it.getInstancesByVipAddress(app).length, 1)
  await once(one.it, 'heartbeat')
  await one.stop()
  await until('the other one sees it gone', () => other.it.getInstancesByAppId(app).length === 0)
  await other.stop()
})

check('one that was removed registers again by its heartbeat', async () => {
  const app = unique('again')
  const one = client(app)
  await one.start()
  const path = `${process.env.EUREKA_URL}apps/${app}/${app}:1`
  assert.equal((await fetch(path, { method: 'DELETE' })).status, 200)
  await once(one.it, 'registered')
  assert.equal((await fetch(path, { headers: { accept: 'application/json' } })).status, 200)
  await one.stop()
})

run()
