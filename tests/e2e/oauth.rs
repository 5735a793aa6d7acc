//! Method `oauth`: tokens of two issuers, for two databases and two users. None is accepted elsewhere, or for another user.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kingpost_tests::certs::Pair;
use kingpost_tests::raw::{Raw, message, query, startup};
use kingpost_tests::{Cluster, Kingpost, ShowLogs, new_dir};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::common::only_kingpost;
use crate::ldap::{readable, table};

/// Part of each token's claims, but of no signature: no log may have it.
pub(crate) const MARK: &str = "mark-of-tokens";

pub(crate) enum Signer {
    Rsa(Box<RsaKeyPair>, Vec<u8>),
    Ec(Box<EcdsaKeyPair>),
}

fn encode(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl Signer {
    /// Makes an RSA key with openssl, as ring cannot.
    pub(crate) fn rsa() -> Signer {
        let made = Command::new("openssl")
            .args(["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-outform", "DER"])
            .output();
        let made = made.expect("openssl runs");
        // OpenSSL 3.0 writes the bare key, later ones write PKCS #8.
        let key = RsaKeyPair::from_pkcs8(&made.stdout).or_else(|_| RsaKeyPair::from_der(&made.stdout));
        let key = key.expect("a key of openssl's");
        let public = key.public_key().as_ref().to_vec();
        Signer::Rsa(Box::new(key), public)
    }

    pub(crate) fn ec() -> Signer {
        let random = SystemRandom::new();
        let made = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        Signer::Ec(Box::new(
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, made.as_ref(), &random).unwrap(),
        ))
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Signer::Rsa(..) => "RS256",
            Signer::Ec(_) => "ES256",
        }
    }

    fn key(&self, id: &str) -> Value {
        match self {
            Signer::Rsa(key, _) => {
                let public = ring::rsa::PublicKeyComponents::<Vec<u8>>::from(key.public());
                json!({"kty": "RSA", "kid": id, "use": "sig", "n": encode(&public.n), "e": encode(&public.e)})
            }
            Signer::Ec(key) => {
                let point = key.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "kid": id, "x": encode(&point[1..33]), "y": encode(&point[33..])})
            }
        }
    }

    fn sign(&self, head: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", encode(head.to_string().as_bytes()), encode(claims.to_string().as_bytes()));
        let random = SystemRandom::new();
        let signature = match (head["alg"].as_str(), self) {
            (Some("none"), _) => Vec::new(),
            // The attack of which the RFC warns: the public key used as a shared secret.
            (Some("HS256"), Signer::Rsa(_, public)) => {
                hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, public), signed.as_bytes()).as_ref().to_vec()
            }
            (_, Signer::Rsa(key, _)) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, signed.as_bytes(), &mut signature).unwrap();
                signature
            }
            (_, Signer::Ec(key)) => key.sign(&random, signed.as_bytes()).unwrap().as_ref().to_vec(),
        };
        format!("{signed}.{}", encode(&signature))
    }
}

/// Behaviour of an issuer.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Mood {
    Well,
    /// Accepts requests, and never answers.
    Hangs,
    /// Sends documents without end.
    Huge,
    /// Redirects requests.
    Redirects,
    /// Answers with an error.
    Fails,
    /// Names an address of its keys without TLS.
    Downgrades,
}

pub(crate) struct Issuer {
    pub(crate) url: String,
    signer: Signer,
    state: Arc<Mutex<(Mood, Value)>>,
    task: tokio::task::JoinHandle<()>,
}

/// Answers one request.
async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, state: &Mutex<(Mood, Value)>, at: &str) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => return,
        }
    }
    let (mood, keys) = state.lock().unwrap().clone();
    let head = |status: &str| format!("HTTP/1.1 {status}\r\nConnection: close\r\n\r\n");
    let document = if request.starts_with(b"GET /.well-known/openid-configuration ") {
        let at_keys = if mood == Mood::Downgrades { at.replace("https", "http") } else { at.to_owned() };
        json!({"issuer": at, "jwks_uri": format!("{at_keys}/keys")})
    } else {
        keys
    };
    let answer = match mood {
        Mood::Hangs => return std::future::pending().await,
        Mood::Huge => head("200 OK") + &" ".repeat(1 << 20) + &document.to_string(),
        Mood::Redirects => format!("HTTP/1.1 302 Found\r\nLocation: {at}/keys\r\nConnection: close\r\n\r\n"),
        Mood::Fails => head("503 Service Unavailable"),
        Mood::Well | Mood::Downgrades => head("200 OK") + &document.to_string(),
    };
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}

impl Issuer {
    pub(crate) async fn start(signer: Signer, id: &str) -> Issuer {
        Issuer::start_with(signer, id, None).await
    }

    /// Starts an issuer over TLS, with this certificate.
    pub(crate) async fn start_secure(signer: Signer, id: &str, pair: &Pair) -> Issuer {
        let config = tls::ListenConfig {
            mode: tls::ListenMode::Require,
            cert_file: Some(pair.cert.clone()),
            key_file: Some(pair.key.clone()),
            ..tls::ListenConfig::default()
        };
        let acceptor = tls::Acceptor::new(&config).unwrap().unwrap();
        Issuer::start_with(signer, id, Some(TlsAcceptor::from(acceptor.speaking(&[b"http/1.1"])))).await
    }

    async fn start_with(signer: Signer, id: &str, acceptor: Option<TlsAcceptor>) -> Issuer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let scheme = if acceptor.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new((Mood::Well, json!({"keys": [signer.key(id)]}))));
        let (serving, at) = (state.clone(), url.clone());
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (state, at, acceptor) = (serving.clone(), at.clone(), acceptor.clone());
                tokio::spawn(async move {
                    match acceptor {
                        None => serve(stream, &state, &at).await,
                        Some(acceptor) => {
                            if let Ok(stream) = acceptor.accept(stream).await {
                                serve(stream, &state, &at).await;
                            }
                        }
                    }
                });
            }
        });
        Issuer { url, signer, state, task }
    }

    pub(crate) fn set(&self, mood: Mood) {
        self.state.lock().unwrap().0 = mood;
    }

    /// Makes a token with other claims than a valid one of this user.
    fn token_with(&self, id: &str, user: &str, change: &Value) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let mut claims = json!({
            "iss": self.url, "aud": "kp", "sub": user, "scope": "openid db", "exp": now + 3600, "jti": MARK,
        });
        let mut head = json!({"alg": self.signer.algorithm(), "kid": id, "typ": "at+jwt"});
        for (name, value) in change.as_object().unwrap() {
            match name.as_str() {
                "alg" => head["alg"] = value.clone(),
                "late" => claims["exp"] = json!(now - 3600),
                "early" => claims["nbf"] = json!(now + 3600),
                name => claims[name] = value.clone(),
            }
        }
        self.signer.sign(&head, &claims)
    }

    pub(crate) fn token(&self, id: &str, user: &str) -> String {
        self.token_with(id, user, &json!({}))
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn initial(response: &[u8]) -> Vec<u8> {
    let length = u32::try_from(response.len()).unwrap().to_be_bytes();
    message(b'p', &[b"OAUTHBEARER\0", &length[..], response].concat())
}

async fn asked(port: u16, database: &str, user: &str) -> Raw {
    let mut raw = Raw::connect(port).await;
    raw.send(&startup(3 << 16, &[("user", user), ("database", database)])).await;
    let first = raw.next().await.unwrap();
    assert_eq!((first.kind, &first.body[..]), (b'R', &b"\0\0\0\x0aOAUTHBEARER\0\0"[..]));
    raw
}

/// Logs in with a token: returns the user's name, or the error's code and text. With the challenge before it, if there was one.
pub(crate) async fn login(
    port: u16,
    database: &str,
    user: &str,
    token: &str,
) -> (Option<Value>, Result<String, String>) {
    let mut raw = asked(port, database, user).await;
    let bearer = if token.is_empty() { String::new() } else { format!("Bearer {token}") };
    raw.send(&initial(format!("n,,\x01auth={bearer}\x01\x01").as_bytes())).await;
    let mut answer = raw.next().await.unwrap();
    let mut challenge = None;
    if answer.kind == b'R' && answer.body.starts_with(&[0, 0, 0, 11]) {
        challenge = Some(serde_json::from_slice(&answer.body[4..]).unwrap());
        raw.send(&message(b'p', b"\x01")).await;
        answer = raw.next().await.unwrap();
    }
    if answer.kind == b'E' {
        let (code, text) = (answer.field(b'C').unwrap(), answer.field(b'M').unwrap());
        assert!(raw.next().await.is_none(), "the connection stays open");
        return (challenge, Err(format!("{code} {text}")));
    }
    assert_eq!((answer.kind, &answer.body[..]), (b'R', &[0; 4][..]), "{answer:?}");
    raw.until(b'Z').await;
    raw.send(&query("SELECT current_user")).await;
    let row = raw.until(b'Z').await.into_iter().find(|message| message.kind == b'D').expect("a row");
    (challenge, Ok(String::from_utf8_lossy(&row.body[6..]).into_owned()))
}

pub(crate) const UNABLE: &str = "08006 the issuer of tokens could not be asked about the token: try again";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_lets_in_its_user_where_its_issuer_counts_and_nobody_else() {
    if only_kingpost() {
        return;
    }
    let (one, mut two) = (Issuer::start(Signer::rsa(), "a").await, Issuer::start(Signer::ec(), "b").await);
    let third = Issuer::start(Signer::ec(), "c").await;
    let dir = new_dir("oauth");
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    cluster.primary().execute("CREATE ROLE bob LOGIN").await;
    for database in ["one", "two", "three"] {
        cluster.primary().execute(&format!("CREATE DATABASE {database}")).await;
    }
    let line = |database: &str, issuer: &Issuer, more: &str| {
        format!("host {database} all 127.0.0.1/32 oauth issuer=\"{}\" scope=\"db\" {more}\n", issuer.url)
    };
    let rules =
        line("one", &one, "") + &line("two", &two, "map=corp") + &line("three", &third, "delegate_ident_mapping=1");
    readable(&dir.join("rules"), &rules);
    readable(&dir.join("maps"), "corp /^(.*)@corp$ \\1\n");
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.hba_file", dir.join("rules").display().to_string())
        .set("proxy.ident_file", dir.join("maps").display().to_string())
        .set("proxy.oauth.audience", toml::Value::Array(vec!["kp".into()]))
        .set("proxy.oauth.users_claim", "users")
        .set("proxy.oauth.timeout", "2s")
        .set("proxy.log_logins", "all")
        .set("log.level", "debug")
        .add("proxy.users", table(&[("name", "alice")]))
        .add("proxy.users", table(&[("name", "bob")]));
    let kingpost = kingpost.start().await;
    let port = kingpost.port();
    let decide = async |database: &str, user: &str, token: &str| login(port, database, user, token).await.1;
    let refused = |user: &str| Err(format!("28000 OAuth bearer authentication failed for user {user:?}"));

    // Each user by its own token, of the database's issuer; under the name of the map.
    for user in ["alice", "bob"] {
        assert_eq!(decide("one", user, &one.token("a", user)).await.as_deref(), Ok(user));
        assert_eq!(decide("two", user, &two.token("b", &format!("{user}@corp"))).await.as_deref(), Ok(user));
    }
    for (database, user, token) in [
        ("one", "alice", one.token("a", "bob")),
        ("one", "bob", one.token("a", "alice")),
        ("one", "bob", one.token("a", "bob@corp")),
        ("two", "alice", two.token("b", "bob@corp")),
        ("two", "alice", two.token("b", "alice")),
        ("two", "alice", one.token("a", "alice@corp")),
        ("one", "alice", two.token("b", "alice")),
        ("one", "alice", two.token_with("b", "alice", &json!({"iss": one.url}))),
        ("one", "alice", two.token_with("a", "alice", &json!({"iss": one.url}))),
        // A user unknown to the proxy, with a valid token.
        ("one", "carol", one.token("a", "carol")),
    ] {
        assert_eq!(decide(database, user, &token).await, refused(user), "{user} in {database}");
    }
    // The issuer itself names the users.
    let named = |users: Value| third.token_with("c", "somebody", &json!({"users": users}));
    assert_eq!(decide("three", "alice", &named(json!(["alice", "carol"]))).await.as_deref(), Ok("alice"));
    assert_eq!(decide("three", "bob", &named(json!(["alice", "carol"]))).await, refused("bob"));
    assert_eq!(decide("three", "alice", &third.token("c", "alice")).await, refused("alice"));

    // Invalid tokens.
    for change in [
        json!({"late": 1}),
        json!({"early": 1}),
        json!({"exp": null}),
        json!({"aud": "another application"}),
        json!({"aud": null}),
        json!({"scope": "openid"}),
        json!({"iss": "http://127.0.0.1:1"}),
        json!({"alg": "none"}),
        json!({"alg": "HS256"}),
        json!({"alg": "PS256"}),
    ] {
        let token = one.token_with("a", "alice", &change);
        assert_eq!(decide("one", "alice", &token).await, refused("alice"), "{change}");
    }
    let token = one.token("a", "alice");
    let (signed, _) = token.rsplit_once('.').unwrap();
    for token in [signed, "x", "a.b.c", &format!("{signed}.")] {
        assert_eq!(decide("one", "alice", token).await, refused("alice"), "{token}");
    }
    let said = decide("one", "alice", &"x".repeat(17 << 10)).await.unwrap_err();
    assert!(said.starts_with("08P01"), "{said}");
    let mut raw = asked(port, "one", "alice").await;
    raw.send(&initial(b"n,a=bob,\x01auth=Bearer x\x01\x01")).await;
    assert_eq!(raw.next().await.unwrap().field(b'C').as_deref(), Some("0A000"));

    // The challenge names the issuer and the scope.
    for (database, issuer) in [("one", &one), ("two", &two)] {
        let (challenge, said) = login(port, database, "alice", "").await;
        let expected = json!({
            "status": "invalid_token", "scope": "db",
            "openid-configuration": format!("{}/.well-known/openid-configuration", issuer.url),
        });
        assert_eq!((challenge, said), (Some(expected), refused("alice")));
    }
    // A client may hold its token back until it is asked again.
    let mut raw = asked(port, "one", "alice").await;
    raw.send(&message(b'p', b"OAUTHBEARER\0\xff\xff\xff\xff")).await;
    assert_eq!(raw.next().await.unwrap().body, [0, 0, 0, 11]);
    raw.send(&message(b'p', format!("n,,\x01auth=Bearer {token}\x01\x01").as_bytes())).await;
    assert_eq!(raw.next().await.unwrap().body, [0; 4]);

    // Another key: it is requested, and the old one is no longer valid.
    let old = two.token("b", "alice@corp");
    two.signer = Signer::ec();
    two.state.lock().unwrap().1 = json!({"keys": [two.signer.key("new")]});
    let new = two.token("new", "alice@corp");
    cluster.wait("the new key to count", async || decide("two", "alice", &new).await.ok()).await;
    assert_eq!(decide("two", "alice", &old).await, refused("alice"));

    // An unreachable issuer: known keys stay in use, other issuers are not affected; without keys no login succeeds.
    for mood in [Mood::Hangs, Mood::Fails, Mood::Huge, Mood::Redirects] {
        two.set(mood);
        let unknown = two.token("unknown", "alice@corp");
        let (stranger, known, other) = tokio::join!(
            decide("two", "alice", &unknown),
            decide("two", "alice", &new),
            decide("one", "alice", &token)
        );
        assert!(stranger.is_err());
        assert_eq!((known.as_deref(), other.as_deref()), (Ok("alice"), Ok("alice")));
        // A reload drops the keys.
        kingpost.reload("proxy.oauth.max_questions", if mood == Mood::Fails { 7 } else { 8 + mood as i64 });
        let unable = async || decide("two", "alice", &new).await.err().filter(|said| said == UNABLE);
        cluster.wait("the keys to be forgotten", unable).await;
        assert_eq!(decide("one", "alice", &token).await.as_deref(), Ok("alice"));
        two.set(Mood::Well);
        cluster.wait("the issuer to be asked again", async || decide("two", "alice", &new).await.ok()).await;
    }

    // No log has a token, and the log has the refusal.
    let log = std::fs::read_to_string(kingpost.process().log()).unwrap();
    assert!(log.contains("OAuth bearer authentication failed"), "no refusal in the log");
    for secret in [MARK, &token, signed, signed.split_once('.').unwrap().1] {
        assert!(!log.contains(secret), "the log has {secret}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Go and the network: make clients"]
async fn clients_in_go_log_in_with_a_token() {
    if only_kingpost() || !crate::clients::there("go") {
        return;
    }
    let program = new_dir("go").join("oauth");
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(&program).arg("./oauth");
    let built = go.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/go/pgx")).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let issuer = Issuer::start(Signer::rsa(), "a").await;
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    cluster.primary().execute("CREATE ROLE bob LOGIN").await;
    let method = format!("oauth issuer={} scope=db", issuer.url);
    let rule =
        [("type", "host"), ("database", "all"), ("user", "all"), ("address", "127.0.0.1/32"), ("method", &method)];
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.oauth.audience", toml::Value::Array(vec!["kp".into()]))
        .add("proxy.hba", table(&rule))
        .add("proxy.users", table(&[("name", "alice")]))
        .add("proxy.users", table(&[("name", "bob")]))
        .start()
        .await;
    for (user, other) in [("alice", "bob"), ("bob", "alice")] {
        let url = format!("postgres://{user}@127.0.0.1:{}/postgres?sslmode=disable", kingpost.port());
        let mut run = Command::new(&program);
        run.env("DATABASE_URL", url).env("GOOD", issuer.token("a", user)).env("BAD", issuer.token("a", other));
        let ran = tokio::task::spawn_blocking(move || run.output()).await.unwrap().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        assert_eq!(String::from_utf8_lossy(&ran.stdout).trim(), user);
    }
}
