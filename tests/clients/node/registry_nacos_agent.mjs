// The npm package nacos (HTTP) that does as it is told. Addresses (separated by commas) and the namespace are its arguments, the environment has
// NACOS_PASSWORD. Each line of its input is a call, each line of its output an answer, or what a subscription brought.

import { createRequire } from 'node:module'
import { createInterface } from 'node:readline'

const require = createRequire(import.meta.url)
const { NacosConfigClient, NacosNamingClient } = require('nacos')

const say = (fields) => console.log(JSON.stringify(fields))
const log = (...said) => console.error(...said)
const logger = { debug() {}, info() {}, warn: log, error: log }

/** Address, health and metadata of each. */
const told = (hosts) =>
  hosts.map(({ ip, healthy, metadata }) => [ip, healthy, metadata]).sort(([one], [other]) => (one < other ? -1 : 1))

const [serverList, namespace] = process.argv.slice(2)
const client = new NacosNamingClient({ logger, serverList, namespace, username: 'anybody', password: process.env.NACOS_PASSWORD })
// Each request that was in vain at all servers; the client goes on.
client._hostReactor.on('error', log)
await client.ready()
say({ ready: true })

let configs

/** The client of the configuration service. */
const configured = () => {
  const login = { username: 'anybody', password: process.env.NACOS_PASSWORD }
  configs ??= new NacosConfigClient({ serverAddr: serverList, namespace, requestTimeout: 6000, ...login })
  return configs
}

const calls = {
  publish: async ({ service, content }) => ({ published: Boolean(await configured().publishSingle(service, 'g', content)) }),
  get: async ({ service }) => ({ got: (await configured().getConfig(service, 'g')) ?? null }),
  remove: async ({ service }) => ({ removed: Boolean(await configured().remove(service, 'g')) }),
  async listen({ service }) {
    configured().subscribe({ dataId: service, group: 'g' }, (content) => say({ heard: service, content }))
    return { listening: service }
  },
  async register({ service, ip, zone }) {
    await client.registerInstance(service, { ip, port: 80, metadata: zone ? { zone } : {} })
    return { registered: true }
  },
  async deregister({ service, ip }) {
    await client.deregisterInstance(service, { ip, port: 80 })
    return { deregistered: true }
  },
  // What the server says now, past the client's memory.
  list: async ({ service }) => ({ listed: told(await client.getAllInstances(service, undefined, undefined, false)) }),
  services: async () => ({ services: (await client._serverProxy.getServiceList(1, 100, 'DEFAULT_GROUP')).data }),
  async subscribe({ service }) {
    client.subscribe(service, (hosts) => say({ heard: service, hosts: told(hosts) }))
    return { subscribed: service }
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line)
  say(await calls[asked.do](asked).catch((error) => ({ refused: String(error) })))
}
process.exit(0)
