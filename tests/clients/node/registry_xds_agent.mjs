// grpc-js as a client that finds its servers by xDS (`xds:///NAME`). Reads a command a line, writes an answer a line, both JSON.
// GRPC_XDS_BOOTSTRAP says where the registry is.
import { createRequire } from 'node:module';
import readline from 'node:readline';

const require = createRequire(process.env.NODE_PATH + '/');
const grpc = require('@grpc/grpc-js');
require('@grpc/grpc-js-xds').register();

const WHO = '/kingpost.test.Echo/Who';
const clients = new Map();

function ask(client) {
  return new Promise((resolve) => {
    const bytes = (it) => it;
    client.makeUnaryRequest(WHO, bytes, bytes, Buffer.alloc(0), { deadline: Date.now() + 2000 }, (error, answer) => {
      resolve(error ? { failed: `${grpc.status[error.code]}: ${error.details}` } : { answered: answer.toString() });
    });
  });
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  const { name, times } = JSON.parse(line);
  if (!clients.has(name)) clients.set(name, new grpc.Client(`xds:///${name}`, grpc.credentials.createInsecure()));
  const said = { answered: {}, failed: {} };
  for (let n = 0; n < times; n++) {
    const one = await ask(clients.get(name));
    for (const [kind, what] of Object.entries(one)) said[kind][what] = (said[kind][what] ?? 0) + 1;
  }
  console.log(JSON.stringify(said));
}
