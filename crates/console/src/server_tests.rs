#![allow(clippy::unwrap_used)]

use std::sync::Mutex;

use hyper::header::{self, HeaderMap, HeaderValue};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::request::{BODY_BYTES, cookie, pairs, parse};
use super::*;
use crate::config::{RoleName, TokenConfig};
use crate::parts::{Action, ClusterPart, ClustersPart, ProxyPart, Refusal, Served};
use crate::picture::{Client, Clients, Cluster, PoolNumbers, ProxyNumbers, Statement, Statements};
use crate::search::Search;

const SECRET: &str = "kp_an-operator's-token";

/// A proxy that records its calls.
#[derive(Default)]
struct Fake {
    done: Mutex<Vec<String>>,
    looks: std::sync::atomic::AtomicUsize,
    asked: std::sync::atomic::AtomicUsize,
}

impl ProxyPart for Fake {
    fn numbers(&self) -> ProxyNumbers {
        ProxyNumbers { gauges: vec![("clients", 3)], bounds: &[1], statements: vec![0, 0], ..ProxyNumbers::default() }
    }

    fn pools(&self) -> Vec<PoolNumbers> {
        self.looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        vec![PoolNumbers { database: "app".into(), ..PoolNumbers::default() }]
    }

    fn clients(&self, _limit: usize) -> Clients {
        Clients { clients: vec![Client { id: "7".into(), ..Client::default() }], total: 1 }
    }

    fn statements(&self, _limit: usize) -> Statements {
        self.asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let statements = vec![Statement { text: "select ?".into(), calls: 2, ..Statement::default() }];
        Statements { statements, total: 1, micros: 9 }
    }

    fn act(&self, action: &Action) -> Result<String, Refusal> {
        if matches!(action, Action::Pause { database: Some(name) } if name == "none") {
            return Err(Refusal::NotFound("no such database".into()));
        }
        self.done.lock().unwrap().push(action.describe());
        Ok("done".into())
    }

    fn glossary(&self) -> Vec<(&'static str, &'static str)> {
        Vec::new()
    }
}

struct Running {
    console: Console,
    fake: Arc<Fake>,
}

/// A response.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Running {
    async fn start(change: impl FnOnce(&mut ConsoleConfig)) -> Running {
        let fake = Arc::new(Fake::default());
        let parts = Parts { proxy: Some(fake.clone()), ..Parts::default() };
        let config = Running::config(change);
        Running { console: Console::start(&config, parts).await.unwrap(), fake }
    }

    fn config(change: impl FnOnce(&mut ConsoleConfig)) -> ConsoleConfig {
        let hash = |text: &str| {
            sha2::Digest::finalize(sha2::Digest::chain_update(<sha2::Sha256 as sha2::Digest>::new(), text))
        };
        let token = |name: &str, secret: &str, role| TokenConfig {
            name: name.into(),
            sha256: hash(secret).iter().map(|byte| format!("{byte:02x}")).collect(),
            role,
        };
        let mut config = ConsoleConfig {
            listen: "127.0.0.1:0".into(),
            tokens: vec![token("olga", SECRET, RoleName::Operator), token("eve", "kp_eve", RoleName::Viewer)],
            ..ConsoleConfig::default()
        };
        change(&mut config);
        config
    }

    fn host(&self) -> String {
        self.console.address().to_string()
    }

    async fn send(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(self.console.address()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{request}: {text:?}"));
        let status = head.split_whitespace().nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    async fn get(&self, path: &str, headers: &str) -> Answer {
        let host = self.host();
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n")).await
    }

    /// Sends a request like the page itself, except for `headers`.
    async fn post(&self, path: &str, headers: &str, body: &str) -> Answer {
        let host = self.host();
        let origin = if headers.contains("Origin:") { String::new() } else { format!("Origin: http://{host}\r\n") };
        let kind = if headers.contains("Content-Type:") { "" } else { "Content-Type: application/json\r\n" };
        let length = body.len();
        self.send(&format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{origin}{kind}{headers}Content-Length: {length}\r\n\r\n{body}"
        ))
        .await
    }

    /// Signs in; returns the header with the cookie.
    async fn sign_in(&self, token: &str) -> String {
        let answer = self.post("/api/login", "", &json!({ "token": token }).to_string()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let cookie = answer.header("set-cookie").unwrap();
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
        format!("Cookie: other=1; {}\r\n", cookie.split(';').next().unwrap())
    }
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

#[tokio::test]
async fn the_page_and_what_protects_it() {
    let running = Running::start(|_| {}).await;
    let page = running.get("/", "").await;
    assert!(page.status == 200 && page.body.contains("<title>Kingpost</title>"));
    for path in ["/", "/app.js", "/api/session", "/nothing", "/api/nothing"] {
        let answer = running.get(path, "").await;
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{path}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(answer.header("access-control-allow-origin"), None, "{path}");
    }
    assert_eq!(running.get("/api/nothing", "").await.status, 404);
    let tag = page.header("etag").unwrap();
    assert_eq!(running.get("/", &format!("If-None-Match: {tag}\r\n")).await.status, 304);
    let squeezed = running.get("/app.js", "Accept-Encoding: gzip, br\r\n").await;
    assert_eq!(squeezed.header("content-encoding"), Some("gzip"));
    // A name that an attacker has made point here.
    let rebound = running.send("GET /api/state HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n").await;
    assert_eq!(rebound.status, 421, "{rebound:?}");
}

#[tokio::test]
async fn who_may_what() {
    let running = Running::start(|_| {}).await;
    assert_eq!(running.get("/api/state", "").await.status, 200, "on loopback anybody may look");
    let pause = r#"{"action":"pause","database":"app"}"#;
    assert_eq!(running.post("/api/act", "", pause).await.status, 401);
    let viewer = running.sign_in("kp_eve").await;
    assert_eq!(running.post("/api/act", &viewer, pause).await.status, 403);
    let operator = running.sign_in(SECRET).await;
    assert_eq!(running.post("/api/act", &operator, pause).await.status, 200);
    // The same by a page from elsewhere, in every way that it could try.
    for headers in [
        "Origin: http://evil.example\r\n",
        "Origin: null\r\n",
        "Origin: http://127.0.0.1:1\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
        "Content-Type: text/plain\r\n",
        "Content-Type: application/x-www-form-urlencoded\r\n",
    ] {
        let answer = running.post("/api/act", &format!("{operator}{headers}"), pause).await;
        assert!(matches!(answer.status, 403 | 415), "{headers} {answer:?}");
    }
    assert_eq!(running.get("/api/act", &operator).await.status, 404, "looking does nothing");
    assert_eq!(*running.fake.done.lock().unwrap(), ["pause app"], "only the one that was allowed");
    let out = running.post("/api/logout", &operator, "{}").await;
    assert!(out.status == 200 && out.header("set-cookie").unwrap().contains("Max-Age=0"));
    assert_eq!(running.post("/api/act", &operator, pause).await.status, 401, "a session that has ended");

    // Configuration entries are for operators: everybody else is refused before it is asked whether they exist.
    for path in ["/api/entries?namespace=default", "/api/entry?namespace=default&group=g&id=a", "/api/entry/compare"] {
        let status = async |who: &str| running.get(path, who).await.status;
        let operator = running.sign_in(SECRET).await;
        assert_eq!([status("").await, status(&viewer).await, status(&operator).await], [401, 403, 404], "{path}");
    }

    let closed = Running::start(|config| config.anonymous_view = false).await;
    for path in ["/api/state", "/api/events", "/api/clients", "/api/services", "/api/statements", "/api/history"] {
        assert_eq!(closed.get(path, "").await.status, 401, "{path}");
    }
    assert_eq!(closed.get("/", "").await.status, 200, "the page is there to sign in");
    let viewer = closed.sign_in("kp_eve").await;
    assert_eq!(closed.get("/api/state", &viewer).await.status, 200);
}

#[tokio::test]
async fn what_is_refused_says_why() {
    let running = Running::start(|_| {}).await;
    let operator = running.sign_in(SECRET).await;
    let large = format!(r#"{{"action":"pause","database":"{}"}}"#, "x".repeat(BODY_BYTES));
    for (body, status, words) in [
        (r#"{"action":"pause","database":"none"}"#, 404, "no such database"),
        (r#"{"action":"isolate","instance":"n/i"}"#, 404, "no registry"),
        (r#"{"action":"explode"}"#, 400, "not what was expected"),
        (r#"{"action":"pause","database":"a","more":1}"#, 400, "not what was expected"),
        ("", 400, "not what was expected"),
        (&large, 413, "bytes"),
    ] {
        let answer = running.post("/api/act", &operator, body).await;
        assert!(answer.status == status && answer.body.contains(words), "{body}: {answer:?}");
    }
    assert_eq!(running.get("/api/services", "").await.status, 404, "no registry runs here");
    // Wrong tokens are refused, then delayed. No response repeats a token.
    let statuses = async {
        let mut statuses = Vec::new();
        for _ in 0..6 {
            let answer = running.post("/api/login", "", r#"{"token":"kp_wrong-secret"}"#).await;
            assert!(!answer.body.contains("wrong-secret"));
            statuses.push(answer.status);
        }
        statuses
    };
    assert_eq!(statuses.await, [401, 401, 401, 401, 401, 429]);
}

/// Reads events until `enough` is true for the text received.
async fn read_until(stream: &mut TcpStream, enough: impl Fn(&str) -> bool) -> String {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while !enough(&text) {
        let read = tokio::time::timeout(Duration::from_secs(30), stream.read(&mut buffer))
            .await
            .expect("events in time")
            .unwrap();
        assert!(read > 0, "it ended: {text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    text
}

#[tokio::test]
async fn viewers_are_told_and_bounded() {
    let running = Running::start(|config| config.viewers = 1).await;
    assert_eq!(running.fake.looks.load(std::sync::atomic::Ordering::Relaxed), 0, "nobody looks: no worker is asked");
    let mut stream = TcpStream::connect(running.console.address()).await.unwrap();
    let request = format!("GET /api/events HTTP/1.1\r\nHost: {}\r\n\r\n", running.host());
    stream.write_all(request.as_bytes()).await.unwrap();
    let text = read_until(&mut stream, |text| text.contains("\"pools\":[{\"database\":\"app\"")).await;
    assert!(text.contains("content-type: text/event-stream") && text.contains("\"clients\":3"), "{text}");
    let full = running.get("/api/events", "").await;
    assert!(full.status == 503 && full.body.contains("console.viewers"), "{full:?}");
    // The place is free again when the browser is gone.
    drop(stream);
    let free = async {
        loop {
            let mut stream = TcpStream::connect(running.console.address()).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let text = read_until(&mut stream, |text| text.contains("\r\n\r\n")).await;
            if text.starts_with("HTTP/1.1 200") {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), free).await.expect("the place becomes free");
}

#[tokio::test]
async fn statements_and_history_are_asked_for() {
    let running = Running::start(|_| {}).await;
    let mut stream = TcpStream::connect(running.console.address()).await.unwrap();
    let request = format!("GET /api/events HTTP/1.1\r\nHost: {}\r\n\r\n", running.host());
    stream.write_all(request.as_bytes()).await.unwrap();
    read_until(&mut stream, |text| text.contains("\"pools\"") && text.contains("\"samples\"")).await;
    assert_eq!(running.fake.asked.load(std::sync::atomic::Ordering::Relaxed), 0, "a page that is open asks for none");
    let statements = running.get("/api/statements", "").await;
    assert!(statements.status == 200 && statements.body.contains(r#""text":"select ?","calls":2"#), "{statements:?}");
    assert_eq!(running.fake.asked.load(std::sync::atomic::Ordering::Relaxed), 1);
    for (query, status, words) in [
        ("span=hour", 200, "\"step\":10000"),
        ("span=day&after=0", 200, "\"step\":60000"),
        ("span=day&after=x", 200, "\"open\":["),
        ("span=hour&after=99999999999999999999999", 200, "\"step\""),
        ("span=year", 404, "no such span"),
        ("", 404, "no such span"),
    ] {
        let answer = running.get(&format!("/api/history?{query}"), "").await;
        assert!(answer.status == status && answer.body.contains(words), "{query}: {answer:?}");
    }
}

#[tokio::test]
async fn a_stream_ends_with_its_session_and_with_the_console() {
    let running = Running::start(|config| config.anonymous_view = false).await;
    let viewer = running.sign_in("kp_eve").await;
    let open = async |cookie: &str| {
        let mut stream = TcpStream::connect(running.console.address()).await.unwrap();
        let request = format!("GET /api/events HTTP/1.1\r\nHost: {}\r\n{cookie}\r\n", running.host());
        stream.write_all(request.as_bytes()).await.unwrap();
        read_until(&mut stream, |text| text.contains("data: ")).await;
        stream
    };
    let end = async |mut stream: TcpStream| {
        let mut rest = Vec::new();
        tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut rest)).await.expect("it ends in time")
    };
    let stream = open(&viewer).await;
    assert_eq!(running.post("/api/logout", &viewer, "{}").await.status, 200);
    // The chunked body ends, but the connection may stay: so wait for the last chunk.
    let mut stream = stream;
    read_until(&mut stream, |text| text.contains("0\r\n\r\n")).await;
    let viewer = running.sign_in("kp_eve").await;
    let stream = open(&viewer).await;
    drop(running);
    let _ = end(stream).await;
}

#[tokio::test]
async fn an_address_for_all_needs_tokens() {
    let config = ConsoleConfig { listen: "0.0.0.0:0".into(), ..ConsoleConfig::default() };
    let error = Console::start(&config, Parts::default()).await.unwrap_err();
    assert!(error.to_string().contains("console.anonymous_view"), "{error}");
}

struct Named(&'static str, Option<&'static str>);

impl ClusterPart for Named {
    fn look(&self) -> Cluster {
        Cluster { name: self.0.into(), primary: self.1.map(str::to_owned), ..Cluster::default() }
    }
}

/// Clusters that come and go.
struct Fleet(Mutex<Vec<Served>>);

impl ClustersPart for Fleet {
    fn now(&self) -> Vec<Served> {
        self.0.lock().unwrap().clone()
    }
}

fn served(name: &'static str, primary: Option<&'static str>) -> (Served, Arc<Fake>) {
    let fake = Arc::new(Fake::default());
    let cluster = Arc::new(Named(name, primary));
    (Served { name: name.into(), identity: fake.clone(), cluster, proxy: Some(fake.clone()) }, fake)
}

#[tokio::test]
async fn each_cluster_has_a_hub_of_its_own() {
    let ((shop, of_shop), (billing, of_billing)) = (served("shop", Some("s1")), served("billing", None));
    let fleet = Arc::new(Fleet(Mutex::new(vec![shop.clone(), billing])));
    let parts = Parts { clusters: Some(fleet.clone()), ..Parts::default() };
    let console = Console::start(&Running::config(|config| config.viewers = 1), parts).await.unwrap();
    let running = Running { console, fake: of_shop.clone() };
    let operator = running.sign_in(SECRET).await;
    // An action reaches the cluster that the request names; without a name, the first one.
    let kill = r#"{"action":"kill_client","id":"7"}"#;
    let pause = r#"{"action":"pause"}"#;
    assert_eq!(running.post("/api/act?cluster=billing", &operator, kill).await.status, 200);
    assert_eq!(*of_billing.done.lock().unwrap(), ["close client 7"]);
    assert!(of_shop.done.lock().unwrap().is_empty(), "the other cluster's clients stay");
    assert_eq!(running.post("/api/act", &operator, pause).await.status, 200);
    assert_eq!(*of_shop.done.lock().unwrap(), ["pause all databases"]);
    assert_eq!(of_billing.done.lock().unwrap().len(), 1);
    assert_eq!(running.get("/api/statements?cluster=billing", "").await.status, 200);
    let asked = [&of_shop, &of_billing].map(|fake| fake.asked.load(std::sync::atomic::Ordering::Relaxed));
    assert_eq!(asked, [0, 1], "one cluster's statements are nothing of the other's");
    assert_eq!(running.get("/api/history?span=hour&cluster=billing", "").await.status, 200);
    for path in ["/api/state", "/api/events", "/api/clients", "/api/statements", "/api/history"] {
        let answer = running.get(&format!("{path}?cluster=none"), "").await;
        assert!(answer.status == 404 && answer.body.contains("no such cluster"), "{path} {answer:?}");
    }
    assert_eq!(running.post("/api/act?cluster=none", &operator, pause).await.status, 404);
    // A viewer of one cluster receives the status of the others; only its own cluster's workers are asked. Places are for all clusters together.
    let mut stream = TcpStream::connect(running.console.address()).await.unwrap();
    let request = format!("GET /api/events?cluster=billing HTTP/1.1\r\nHost: {}\r\n\r\n", running.host());
    stream.write_all(request.as_bytes()).await.unwrap();
    let text = read_until(&mut stream, |text| text.contains("\"pools\":[")).await;
    let clusters = r#""clusters":[{"name":"shop","primary":"s1"},{"name":"billing","primary":null}]"#;
    assert!(text.contains(clusters) && text.contains(r#""cluster":{"name":"billing""#), "{text}");
    assert_eq!(of_shop.looks.load(std::sync::atomic::Ordering::Relaxed), 0, "nobody looks at shop");
    assert_eq!(running.get("/api/events", "").await.status, 503);
    // The removal of a cluster ends its viewers' streams; an added one is there at once.
    *fleet.0.lock().unwrap() = vec![shop, served("stock", Some("k1")).0];
    read_until(&mut stream, |text| text.contains("0\r\n\r\n")).await;
    assert_eq!(running.get("/api/state?cluster=billing", "").await.status, 404);
    assert_eq!(running.get("/api/state?cluster=stock", "").await.status, 200);
}

proptest::proptest! {
    #[test]
    fn queries_cookies_and_actions_of_strangers(text in "\\PC{0,200}", bytes in proptest::collection::vec(0u8.., 0..200)) {
        proptest::prop_assert!(pairs(&text).len() <= 16);
        let _ = Search::parse(Some(&text), &text);
        let _ = parse::<Action>(&bytes);
        let mut headers = HeaderMap::new();
        if let Ok(value) = HeaderValue::from_bytes(&bytes) {
            headers.insert(header::COOKIE, value);
        }
        let _ = cookie(&headers, "a");
    }
}
