// An OpenID provider (oidc-provider), for tests/e2e/oauth_provider.rs. It listens on a port that the system chooses, and prints `issuer URL` when it answers.
// Of its environment: PROVIDER, JSON with
//   alg      what it signs with: RS256, ES256 or EdDSA
//   clients  name and secret of each program that logs in as itself (client_credentials)
//   cert, key  files of TLS; without them it answers without TLS
//   behind   how many seconds its clock is slow; 0
//   lives    how long an access token is good, in seconds
// At SIGHUP it signs with a new key. The key before it is still published, older ones are not. It prints `key NAME` for each one that it signs with.
import { generateKeyPairSync, randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const options = JSON.parse(process.env.PROVIDER);
const now = Date.now.bind(Date);
Date.now = () => now() - (options.behind ?? 0) * 1000;

// NODE_PATH counts for require() only, and the package is for import.
const { default: Provider, errors } = await import(pathToFileURL(createRequire(import.meta.url).resolve('oidc-provider')).href);

// What tokens can be for, by the name that applications ask with (resource), and what an application may have them allow.
const resources = {
  'urn:db': { audience: 'kingpost', accessTokenFormat: 'jwt' },
  'urn:other': { audience: 'another application', accessTokenFormat: 'jwt' },
  'urn:opaque': { audience: 'kingpost', accessTokenFormat: 'opaque' },
};

function newKey() {
  const kinds = { RS256: ['rsa', { modulusLength: 2048 }], ES256: ['ec', { namedCurve: 'P-256' }], EdDSA: ['ed25519', {}] };
  const key = generateKeyPairSync(...kinds[options.alg]).privateKey.export({ format: 'jwk' });
  const name = randomUUID();
  console.log(`key ${name}`);
  return { ...key, kid: name, use: 'sig', alg: options.alg };
}

function provider(issuer, keys) {
  const themselves = Object.entries(options.clients).map(([name, secret]) => ({
    client_id: name,
    client_secret: secret,
    grant_types: ['client_credentials'],
    redirect_uris: [],
    response_types: [],
  }));
  const ofPeople = {
    client_id: 'psql',
    token_endpoint_auth_method: 'none',
    application_type: 'native',
    grant_types: ['authorization_code', 'urn:ietf:params:oauth:grant-type:device_code'],
    redirect_uris: ['http://127.0.0.1/back'],
  };
  return new Provider(issuer, {
    clients: [...themselves, ofPeople],
    clientDefaults: { id_token_signed_response_alg: options.alg },
    cookies: { keys: [randomUUID()] },
    jwks: { keys },
    scopes: ['openid', 'db', 'mail'],
    features: {
      clientCredentials: { enabled: true },
      deviceFlow: { enabled: true },
      resourceIndicators: {
        enabled: true,
        // libpq asks for a token without saying what for.
        defaultResource: (ctx, client, among) => among ?? 'urn:db',
        getResourceServerInfo(ctx, name) {
          if (!resources[name]) throw new errors.InvalidTarget();
          return { ...resources[name], scope: 'db mail', accessTokenTTL: options.lives, jwt: { sign: { alg: options.alg } } };
        },
        useGrantedResource: () => true,
      },
    },
  }).callback();
}

let answer;
const tls = options.cert && { cert: readFileSync(options.cert), key: readFileSync(options.key) };
const listener = (request, response) => answer(request, response);
const server = tls ? https.createServer(tls, listener) : http.createServer(listener);
server.listen(0, '127.0.0.1', () => {
  const issuer = `${tls ? 'https' : 'http'}://127.0.0.1:${server.address().port}`;
  let keys = [newKey()];
  answer = provider(issuer, keys);
  process.on('SIGHUP', () => {
    keys = [newKey(), keys[0]];
    answer = provider(issuer, keys);
    console.log(`signs anew with ${keys[0].kid}`);
  });
  console.log(`issuer ${issuer}`);
});
