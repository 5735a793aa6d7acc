//! Storage services for the archive's tests: a server of S3, Azurite for Azure's Blob storage, and fake-gcs-server for Google's. `make clients` installs them.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use kingpost_tests::certs::{Authority, Pair};
use kingpost_tests::{Cluster, Cut, Link, Port, Process, RunAs, SOON, command, new_dir, skipped, wait_until};
use ring::hmac;
use ring::signature::{KeyPair as _, RSA_PKCS1_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey};
use tokio::net::TcpListener;

/// Kind of a storage service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    S3,
    Azure,
    Google,
}

/// An access token that the stand-in for Google's service accepts before and after a rotation.
const TOKENS: [&str; 2] = ["ya29.first-token", "ya29.second-token"];

/// A storage service behind a link, with two sets of credentials.
pub(crate) struct Storage {
    kind: Kind,
    program: PathBuf,
    dir: PathBuf,
    logs: PathBuf,
    port: Port,
    link: Cut,
    authority: Authority,
    pair: Pair,
    door: Option<Door>,
    credentials: [String; 2],
    process: Option<Process>,
}

impl Storage {
    /// Starts a service with an empty bucket; None, with a report, if it is not installed.
    pub(crate) async fn start(kind: Kind, cluster: &Cluster) -> Option<Storage> {
        let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        let target = target.unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../target").into()).join("clients");
        let (program, why) = match kind {
            Kind::S3 => ("s3/versitygw", "there is no server of S3: tests/clients/setup --s3 builds it, with Go"),
            Kind::Azure => (
                "azure/node_modules/azurite/dist/src/blob/main.js",
                "there is no server of Azure's storage: tests/clients/setup --azure installs it",
            ),
            Kind::Google => (
                "google/fake-gcs-server",
                "there is no server of Google's storage: tests/clients/setup --google builds it, with Go",
            ),
        };
        let program = target.join(program);
        if !program.exists() {
            skipped(why);
            return None;
        }
        let authority = Authority::new();
        let pair = authority.issue("storage", &["127.0.0.1"]);
        let port = Port::reserve();
        let mut door = None;
        let credentials = match kind {
            Kind::S3 => ["AKIAONE:first-secret".to_owned(), "AKIAONE:second-secret".to_owned()],
            Kind::Azure => [account_key("first"), account_key("second")],
            Kind::Google => {
                let keys = [(); 2].map(|()| ServiceAccount::new());
                let json = [keys[0].json.clone(), keys[1].json.clone()];
                door = Some(Door::start(port.number(), keys).await);
                json
            }
        };
        let link = Cut::to(door.as_ref().map_or(port.number(), |door| door.serving.port));
        let (dir, logs, process) = (new_dir("storage"), cluster.dir().to_owned(), None);
        let mut storage = Storage { kind, program, dir, logs, port, link, authority, pair, door, credentials, process };
        if kind == Kind::S3 {
            std::fs::create_dir(storage.dir.join("bucket")).unwrap();
        }
        storage.run(0).await;
        match kind {
            Kind::S3 => {}
            Kind::Azure => storage.make_container().await,
            Kind::Google => {
                let made = storage.http(
                    "POST",
                    "/storage/v1/b",
                    "content-type: application/json\r\n",
                    "{\"name\": \"bucket\"}",
                );
                assert!(made.await.starts_with("HTTP/1.1 200"));
            }
        }
        Some(storage)
    }

    /// Starts the program, with these credentials of its owner.
    async fn run(&mut self, generation: usize) {
        let address = format!("127.0.0.1:{}", self.port.number());
        let server = match self.kind {
            Kind::S3 => {
                let (key, secret) = self.credentials[generation].split_once(':').unwrap();
                let mut server = command(&self.program, RunAs::Tests, "KILL");
                server.env("ROOT_ACCESS_KEY", key).env("ROOT_SECRET_KEY", secret).args(["--port", &address]);
                server.arg("--cert").arg(&self.pair.cert).arg("--key").arg(&self.pair.key).arg("posix").arg(&self.dir);
                server
            }
            Kind::Azure => {
                let mut server = command(Path::new("node"), RunAs::Tests, "KILL");
                server.env("AZURITE_ACCOUNTS", format!("account:{}", self.credentials[generation]));
                server.arg(&self.program).args([
                    "--blobHost",
                    "127.0.0.1",
                    "--silent",
                    "--skipApiVersionCheck",
                    "--disableTelemetry",
                ]);
                server.args(["--blobPort", &self.port.number().to_string()]).arg("--location").arg(&self.dir);
                server
            }
            Kind::Google => {
                let mut server = command(&self.program, RunAs::Tests, "KILL");
                server.args(["-scheme", "http", "-host", "127.0.0.1", "-backend", "memory", "-log-level", "warn"]);
                server.args(["-port", &self.port.number().to_string(), "-public-host", &address]);
                server
            }
        };
        let name = format!("{:?}", self.kind).to_lowercase();
        self.process = Some(Process::start(&name, server, &self.logs.join(format!("{name}.log"))));
        let listens = async || tokio::net::TcpStream::connect(("127.0.0.1", self.port.number())).await.ok().map(drop);
        wait_until("the storage service", SOON, &self.logs, listens).await;
    }

    /// Makes the service refuse the first credentials, and accept the second.
    pub(crate) async fn rotate(&mut self) {
        if let Some(door) = &self.door {
            *door.generation.lock().unwrap() = 1;
            return;
        }
        if let Some(process) = self.process.take() {
            // Azurite keeps its index in memory, and writes it at its end.
            process.signal(libc::SIGTERM);
            process.wait_exit(SOON).await;
        }
        self.run(1).await;
    }

    pub(crate) fn set(&self, link: Link) {
        self.link.set(link);
    }

    pub(crate) fn url(&self) -> &'static str {
        match self.kind {
            Kind::S3 => "s3://bucket/wal/of/main",
            Kind::Azure => "az://account/bucket/wal/of/main",
            Kind::Google => "gs://bucket/wal/of/main",
        }
    }

    /// Returns further settings of `[relay.archive]`.
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        let (scheme, path) = match self.kind {
            Kind::S3 => ("https", ""),
            Kind::Azure => ("http", "/account"),
            Kind::Google => ("http", ""),
        };
        let mut settings = vec![("endpoint", format!("{scheme}://127.0.0.1:{}{path}", self.link.port()))];
        if self.kind == Kind::S3 {
            settings.push(("ca_file", self.authority.ca_file().display().to_string()));
        }
        settings
    }

    /// Returns the credentials that are good before (0) and after (1) a rotation.
    pub(crate) fn credentials(&self, generation: usize) -> String {
        self.credentials[generation].clone()
    }

    /// Returns credentials of another form, with the same rights.
    pub(crate) fn other_form(&self, generation: usize) -> String {
        match self.kind {
            Kind::S3 => self.credentials(generation),
            Kind::Azure => shared_access(&self.credentials[generation]),
            Kind::Google => TOKENS[generation].into(),
        }
    }

    /// Returns words that no log and no error may have.
    pub(crate) fn secrets(&self) -> Vec<String> {
        let mut secrets: Vec<String> = match self.kind {
            Kind::S3 => ["first-secret", "second-secret"].map(String::from).into(),
            Kind::Azure => self.credentials.clone().into(),
            // A line of each key, and the tokens that are signed with it begin alike.
            Kind::Google => self.credentials.iter().map(|json| json.split("\\n").nth(5).unwrap().to_owned()).collect(),
        };
        let other = [0, 1].map(|generation| self.other_form(generation));
        secrets.extend(other.iter().map(|text| text.split("sig=").last().unwrap_or(text).to_owned()));
        secrets.push("Bearer ".into());
        secrets
    }

    /// Sends a request to the program itself; returns its answer.
    async fn http(&self, method: &str, path: &str, headers: &str, body: &str) -> String {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let port = self.port.number();
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    async fn make_container(&self) {
        const STAMP: &str = "x-ms-date:Sun, 29 Nov 2026 08:00:00 GMT\nx-ms-version:2023-11-03\n";
        let signed = format!("PUT{}{STAMP}/account/account/bucket\nrestype:container", "\n".repeat(12));
        let signature = sign(&self.credentials[0], &signed);
        let headers = format!("{}authorization: SharedKey account:{signature}\r\n", STAMP.replace('\n', "\r\n"));
        let made = self.http("PUT", "/account/bucket?restype=container", &headers, "").await;
        assert!(made.starts_with("HTTP/1.1 201"), "{made}");
    }
}

fn account_key(text: &str) -> String {
    STANDARD.encode(text.repeat(16))
}

fn sign(key: &str, text: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &STANDARD.decode(key).unwrap());
    STANDARD.encode(hmac::sign(&key, text.as_bytes()))
}

/// Makes a shared access signature of the container.
fn shared_access(key: &str) -> String {
    let (rights, until, version) = ("rcwdl", "2099-01-01T00:00:00Z", "2023-11-03");
    let mut fields = vec![rights, "", until, "/blob/account/bucket", "", "", "", version, "c"];
    fields.resize(16, "");
    let signature = sign(key, &fields.join("\n")).replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
    format!("sv={version}&sp={rights}&se={}&sr=c&sig={signature}", until.replace(':', "%3A"))
}

/// The key of a service account.
struct ServiceAccount {
    json: String,
    public: Vec<u8>,
}

impl ServiceAccount {
    /// Makes a key with openssl, as ring cannot.
    fn new() -> ServiceAccount {
        let made =
            Command::new("openssl").args(["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]).output();
        let pem = String::from_utf8(made.expect("openssl runs").stdout).unwrap();
        let der: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        let public = RsaKeyPair::from_pkcs8(&STANDARD.decode(der).unwrap()).unwrap().public_key().as_ref().to_vec();
        let json = serde_json::json!({
            "type": "service_account", "private_key_id": "id", "private_key": pem, "client_email": "relay@project.example",
        });
        ServiceAccount { json: json.to_string(), public }
    }

    /// True for a token that this key has signed.
    fn has_signed(&self, token: &str) -> bool {
        let Some((signed, signature)) = token.rsplit_once('.') else { return false };
        let Ok(signature) = URL_SAFE_NO_PAD.decode(signature) else { return false };
        let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &self.public);
        key.verify(signed.as_bytes(), &signature).is_ok()
    }
}

/// An HTTP server on the loopback.
pub(crate) struct Serving {
    pub(crate) port: u16,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves HTTP/1.1 by this function.
pub(crate) async fn serve<R>(answer: impl Fn(Request<Incoming>) -> R + Clone + Send + 'static) -> Serving
where
    R: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                let service = service_fn(move |request| {
                    let answered = answer(request);
                    async move { Ok::<_, Infallible>(answered.await) }
                });
                let _ =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    Serving { port, task }
}

/// Makes an answer.
pub(crate) fn answer(status: u16, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::new(body.into())).unwrap()
}

/// Makes an error in XML, as storage services do.
pub(crate) fn refusal(status: u16, code: &str) -> Response<Full<Bytes>> {
    answer(status, format!("<?xml version='1.0'?><Error><Code>{code}</Code><Message>by the test</Message></Error>"))
}

/// The door in front of fake-gcs-server, which knows neither credentials nor the XML API's uploads: it checks tokens, and has an upload done by the JSON API,
/// with the condition of its header.
struct Door {
    serving: Serving,
    generation: Arc<Mutex<usize>>,
}

impl Door {
    async fn start(target: u16, keys: [ServiceAccount; 2]) -> Door {
        let (generation, keys) = (Arc::<Mutex<usize>>::default(), Arc::new(keys));
        let now = Arc::clone(&generation);
        let guarded = move |request: Request<Incoming>| {
            let (now, keys) = (*now.lock().unwrap(), Arc::clone(&keys));
            async move {
                let token =
                    request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
                let is_good = token.is_some_and(|token| token == TOKENS[now] || keys[now].has_signed(token));
                if is_good { pass(request, target).await } else { refusal(401, "AuthenticationRequired") }
            }
        };
        Door { serving: serve(guarded).await, generation }
    }
}

async fn pass(request: Request<Incoming>, target: u16) -> Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let (bucket, object) = parts.uri.path()[1..].split_once('/').unwrap_or((&parts.uri.path()[1..], ""));
    let is_upload = parts.method == Method::PUT;
    let mut path = parts.uri.path_and_query().unwrap().to_string();
    if is_upload {
        path = format!("/upload/storage/v1/b/{bucket}/o?uploadType=media&name={object}");
        if let Some(generation) = parts.headers.get("x-goog-if-generation-match") {
            path.push_str(&format!("&ifGenerationMatch={}", generation.to_str().unwrap()));
        }
    }
    let mut asked = Request::builder()
        .method(if is_upload { Method::POST } else { parts.method.clone() })
        .uri(path)
        .header(HOST, format!("127.0.0.1:{target}"));
    for name in ["range", "content-type"] {
        if let Some(value) = parts.headers.get(name) {
            asked = asked.header(name, value);
        }
    }
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", target)).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let answered = sender.send_request(asked.body(Full::new(body)).unwrap()).await.unwrap();
    let (head, body) = answered.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    match head.status.as_u16() {
        404 if !object.is_empty() => refusal(404, "NoSuchKey"),
        412 => refusal(412, "PreconditionFailed"),
        status if is_upload && status == 200 => {
            let made: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let word = |key: &str| made[key].as_str().unwrap_or("1").to_owned();
            let answer =
                Response::builder().header("etag", word("etag")).header("x-goog-generation", word("generation"));
            answer.body(Full::default()).unwrap()
        }
        status => {
            let mut answer = Response::builder().status(status);
            for name in ["etag", "last-modified", "x-goog-generation", "content-range", CONTENT_TYPE.as_str()] {
                if let Some(value) = head.headers.get(name) {
                    answer = answer.header(name, value);
                }
            }
            answer.body(Full::new(body)).unwrap()
        }
    }
}
