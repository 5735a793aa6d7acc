//! A load generator for a registry that runs, and for etcd: requests of HTTP/1.1 over connections that stay, one at a time each,
//! and streams of heartbeats over gRPC. Several addresses, with commas, share the connections. `bench/registry` runs it; by hand:
//!
//! ```sh
//! cargo run --release -p registry --example http -- register 127.0.0.1:8632 0 20000 256 8 20
//! cargo run --release -p registry --example http -- heartbeat 127.0.0.1:8632 0 20000 256 5
//! cargo run --release -p registry --example http -- streamed 127.0.0.1:8632 0 20000 16 5 1 64
//! cargo run --release -p registry --example http -- discover 127.0.0.1:8632 256 5
//! cargo run --release -p registry --example http -- find 127.0.0.1:8632 16 5
//! cargo run --release -p registry --example http -- visible 127.0.0.1:8632 127.0.0.1:8632 500
//! cargo run --release -p registry --example http -- get 127.0.0.1:8632 1 5 /eureka/apps/delta 'Accept: application/json'
//! cargo run --release -p registry --example http -- renewed 127.0.0.1:8632 50 /eureka/apps
//! cargo run --release -p registry --example http -- paced 127.0.0.1:8632 heartbeat 20000 500 5
//! cargo run --release -p registry --example http -- watchers 127.0.0.1:8632 8 5
//! cargo run --release -p registry --example http -- listen 127.0.1.1:9999,127.0.1.2:9999
//! cargo run --release -p registry --example http -- etcd 127.0.0.1:2379 0 20000 256 8 20
//! ```
//!
//! The last line is JSON: operations, seconds, the rate, latencies in ms, and the seconds of CPU that this program used meanwhile.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use common::connection::{Connection, SERVICES, get, report, request};
use common::{Arguments, host, metadata, value};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use tokio::net::{TcpListener, TcpStream};

fn instance(n: usize, entries: usize, bytes: usize) -> String {
    format!(
        "{{\"host\":\"{}\",\"port\":8080,\"protocol\":\"grpc\",\"version\":\"1.0.0\",\
         \"check\":{{\"type\":\"ttl\",\"ttl\":\"1h\"}},\"metadata\":{}}}",
        host(n),
        metadata(n, entries, bytes).to_json()
    )
}

fn register(n: usize, entries: usize, bytes: usize) -> Vec<u8> {
    let path = format!("/v1/namespaces/default/services/service-{:05}/instances/i{n:08}", n % SERVICES);
    request("PUT", &path, &instance(n, entries, bytes))
}

async fn run(
    address: &str,
    clients: usize,
    next: impl Fn() -> Option<usize> + Send + Sync + 'static,
    make: impl Fn(usize) -> Vec<Vec<u8>> + Send + Sync + 'static,
) {
    run_many(address, clients, 1, next, make).await;
}

/// Runs `clients` in parallel until `next` returns None; `make` returns the requests of `each` operations.
async fn run_many(
    address: &str,
    clients: usize,
    each: usize,
    next: impl Fn() -> Option<usize> + Send + Sync + 'static,
    make: impl Fn(usize) -> Vec<Vec<u8>> + Send + Sync + 'static,
) {
    let (next, make) = (Arc::new(next), Arc::new(make));
    let mut connections = Vec::new();
    for (_, address) in (0..clients).zip(address.split(',').cycle()) {
        connections.push(Connection::open(address).await);
    }
    let (begun, cpu) = (Instant::now(), common::cpu());
    let mut tasks = tokio::task::JoinSet::new();
    for mut connection in connections {
        let (next, make) = (Arc::clone(&next), Arc::clone(&make));
        tasks.spawn(async move {
            let mut times = Vec::new();
            while let Some(n) = next() {
                let requests = make(n);
                let began = Instant::now();
                for request in requests {
                    let (status, body) = connection.ask(&request, false).await;
                    assert!((200..300).contains(&status), "{status} {body}");
                }
                times.push(began.elapsed());
            }
            times
        });
    }
    let times: Vec<Duration> = tasks.join_all().await.into_iter().flatten().collect();
    report(times, begun.elapsed(), cpu, each);
}

/// Returns `count` numbers from `first` on.
fn counted(first: usize, count: usize) -> impl Fn() -> Option<usize> {
    let taken = AtomicUsize::new(0);
    move || Some(taken.fetch_add(1, Ordering::Relaxed)).filter(|n| *n < count).map(|n| first + n)
}

/// Returns the numbers from `first` to `first + count` repeatedly, for so many seconds.
fn timed(first: usize, count: usize, seconds: usize) -> impl Fn() -> Option<usize> {
    let (taken, end) = (AtomicUsize::new(0), Instant::now() + Duration::from_secs(seconds as u64));
    move || (Instant::now() < end).then(|| first + taken.fetch_add(1, Ordering::Relaxed) % count)
}

/// Measures a request right after a registration, `count` times: the answer covers something that has just changed.
async fn renewed(address: &str, count: usize, asked: &[u8]) {
    let mut connection = Connection::open(address).await;
    let salt = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as usize % 1_000_000_000;
    let (begun, cpu) = (Instant::now(), common::cpu());
    let mut times = Vec::new();
    for n in 0..count {
        let changed = request("PUT", &path_of(n), &format!("{{\"host\":\"h{salt}\",\"port\":{n}}}"));
        assert!(connection.ask(&changed, false).await.0 < 300);
        let began = Instant::now();
        assert_eq!(connection.ask(asked, false).await.0, 200);
        times.push(began.elapsed());
    }
    report(times, begun.elapsed(), cpu, 1);
}

fn path_of(n: usize) -> String {
    format!("/v1/namespaces/default/services/service-{:05}/instances/i{n:08}", n % SERVICES)
}

/// Sends heartbeats, or else registrations with a change, at a fixed rate, whether the previous one is answered or not. Measures from the time at
/// which each was due.
async fn paced(address: &str, beats: bool, count: usize, rate: usize, seconds: usize) {
    /// Number of connections used in turn.
    const CONNECTIONS: usize = 64;
    let salt = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as usize % 1_000_000_000;
    let cpu = common::cpu();
    let begun = tokio::time::Instant::now() + Duration::from_millis(100);
    let mut tasks = tokio::task::JoinSet::new();
    for first in 0..CONNECTIONS.min(rate * seconds) {
        let mut connection = Connection::open(address).await;
        tasks.spawn(async move {
            let mut times = Vec::new();
            for n in (first..rate * seconds).step_by(CONNECTIONS) {
                let due = begun + Duration::from_secs_f64(n as f64 / rate as f64);
                tokio::time::sleep_until(due).await;
                let which = n * 7919 % count;
                let asked = if beats {
                    request("PUT", &format!("/v1/namespaces/default/instances/i{which:08}/heartbeat"), "")
                } else {
                    request("PUT", &path_of(which), &format!("{{\"host\":\"h{salt}-{n}\",\"port\":1}}"))
                };
                let (status, body) = connection.ask(&asked, false).await;
                assert!((200..300).contains(&status), "{status} {body}");
                times.push(due.elapsed());
            }
            times
        });
    }
    let times: Vec<Duration> = tasks.join_all().await.into_iter().flatten().collect();
    report(times, begun.elapsed(), cpu, 1);
}

/// Runs clients that wait repeatedly for any change of any service: half of them for the names of services, half for all checks, like Traefik and
/// Fabio.
async fn watchers(address: &str, clients: usize, seconds: usize, header: Option<&str>) {
    let (begun, cpu) = (Instant::now(), common::cpu());
    let end = begun + Duration::from_secs(seconds as u64);
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..clients {
        let mut connection = Connection::open(address).await;
        let path = if n % 2 == 0 { "/v1/catalog/services" } else { "/v1/health/state/any" };
        let header = header.map(str::to_owned);
        tasks.spawn(async move {
            let (mut index, mut times) = (0, Vec::new());
            while Instant::now() < end {
                let began = Instant::now();
                let asked = get(&format!("{path}?index={index}&wait=1s"), header.as_deref());
                assert_eq!(connection.ask(&asked, false).await.0, 200);
                index = connection.index;
                times.push(began.elapsed());
            }
            times
        });
    }
    let times: Vec<Duration> = tasks.join_all().await.into_iter().flatten().collect();
    report(times, begun.elapsed(), cpu, 1);
}

/// Measures from a registration at one address to the answer of a blocking query at the other, one at a time.
async fn visible(write: &str, watch: &str, count: usize) {
    let (mut writer, mut watcher) = (Connection::open(write).await, Connection::open(watch).await);
    let service = "/v1/namespaces/default/services/visible/instances";
    let revision = |body: &str| {
        let after = body.split("\"revision\":").nth(1)?;
        after.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()
    };
    // Each run writes new content: unchanged content wakes no watcher.
    let salt = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as usize % 1_000_000_000;
    let (begun, cpu, mut times) = (Instant::now(), common::cpu(), Vec::new());
    let first = request("PUT", &format!("{service}/first"), &instance(salt, 8, 20));
    let written = revision(&writer.ask(&first, true).await.1).expect("a revision");
    let there = request("GET", &format!("{service}?after={}&wait=10s", written - 1), "");
    let mut seen = revision(&watcher.ask(&there, true).await.1).expect("a revision");
    for n in 0..count {
        let wait = request("GET", &format!("{service}?after={seen}&wait=10s"), "");
        let waiting = tokio::spawn(async move {
            let (_, body) = watcher.ask(&wait, true).await;
            (watcher, Instant::now(), body)
        });
        // The watcher's request must arrive before the registration.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let put = request("PUT", &format!("{service}/v{:02}", n % 16), &instance(salt + n, 8, 20));
        let began = Instant::now();
        let (status, _) = writer.ask(&put, false).await;
        assert!((200..300).contains(&status));
        let (back, ended, body) = waiting.await.unwrap();
        watcher = back;
        times.push(ended.saturating_duration_since(began));
        seen = revision(&body).unwrap_or(seen);
    }
    report(times, begun.elapsed(), cpu, 1);
}

/// Runs targets of probes: accepts and drops connections, until the program is ended.
async fn listen(addresses: &str) {
    let mut tasks = tokio::task::JoinSet::new();
    for address in addresses.split(',') {
        let listener = TcpListener::bind(address).await.unwrap();
        tasks.spawn(async move {
            loop {
                drop(listener.accept().await);
            }
        });
    }
    tasks.join_all().await;
}

#[derive(Clone, PartialEq, prost::Message)]
struct HeartbeatRequest {
    #[prost(string, tag = "1")]
    namespace: String,
    #[prost(string, repeated, tag = "2")]
    ids: Vec<String>,
}

/// Runs one stream of heartbeats, `each` ids a message, `window` unanswered messages, until `end`.
async fn stream(
    address: &str,
    next: Arc<dyn Fn() -> Option<usize> + Send + Sync>,
    each: usize,
    window: usize,
) -> Vec<Duration> {
    let socket = TcpStream::connect(address).await.unwrap();
    socket.set_nodelay(true).unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    let (say, said) = tokio::sync::mpsc::channel::<Bytes>(window);
    let body = futures_util::stream::unfold(said, async |mut said| {
        let message = said.recv().await?;
        Some((Ok::<_, Infallible>(Frame::data(message)), said))
    });
    let request = hyper::Request::post(format!("http://{address}/kingpost.registry.v1.Registry/Heartbeat"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(StreamBody::new(Box::pin(body)))
        .unwrap();
    let mut answers = sender.send_request(request).await.unwrap().into_body();
    let (mut sent, mut times, mut buffer) = (VecDeque::new(), Vec::new(), BytesMut::new());
    let mut more = true;
    loop {
        while more && sent.len() < window {
            let Some(n) = next() else {
                more = false;
                break;
            };
            let ids = (n * each..(n + 1) * each).map(|n| format!("i{n:08}")).collect();
            let message = HeartbeatRequest { namespace: String::new(), ids }.encode_to_vec();
            let mut frame = BytesMut::with_capacity(5 + message.len());
            frame.put_u8(0);
            frame.put_u32(message.len() as u32);
            frame.put_slice(&message);
            sent.push_back(Instant::now());
            say.send(frame.freeze()).await.unwrap();
        }
        if sent.is_empty() {
            return times;
        }
        let frame = answers.frame().await.expect("the stream goes on").unwrap();
        buffer.extend_from_slice(frame.data_ref().expect("an answer"));
        while buffer.len() >= 5 && buffer.len() >= 5 + (&buffer[1..5]).get_u32() as usize {
            let length = (&buffer[1..5]).get_u32() as usize;
            assert_eq!(length, 0, "an instance is unknown");
            buffer.advance(5);
            times.push(sent.pop_front().unwrap().elapsed());
        }
    }
}

async fn streamed(
    address: &str,
    next: impl Fn() -> Option<usize> + Send + Sync + 'static,
    streams: usize,
    each: usize,
    window: usize,
) {
    let next: Arc<dyn Fn() -> Option<usize> + Send + Sync> = Arc::new(next);
    let (begun, cpu) = (Instant::now(), common::cpu());
    let mut tasks = tokio::task::JoinSet::new();
    for (_, address) in (0..streams).zip(address.split(',').cycle()) {
        let (address, next) = (address.to_owned(), Arc::clone(&next));
        tasks.spawn(async move { stream(&address, next, each, window).await });
    }
    let times: Vec<Duration> = tasks.join_all().await.into_iter().flatten().collect();
    report(times, begun.elapsed(), cpu, each);
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments = Arguments::get();
    let number = |n| arguments.number(n);
    let (what, address) = (arguments.text(0), arguments.text(1));
    match what {
        "register" => {
            let (first, count, clients, entries, bytes) = (number(2), number(3), number(4), number(5), number(6));
            // Encoded in advance: the encoding is not the registry's cost.
            let made: Vec<Vec<u8>> = (first..first + count).map(|n| register(n, entries, bytes)).collect();
            run(address, clients, counted(0, count), move |n| vec![made[n].clone()]).await;
        }
        "heartbeat" => {
            let (first, count, clients, seconds) = (number(2), number(3), number(4), number(5));
            run(address, clients, timed(first, count, seconds), |n| {
                vec![request("PUT", &format!("/v1/namespaces/default/instances/i{n:08}/heartbeat"), "")]
            })
            .await;
        }
        "heartbeats" => {
            // Many instances in one request, as from an agent for others.
            let (first, count, clients, seconds, each) = (number(2), number(3), number(4), number(5), number(6));
            run_many(address, clients, each, timed(0, count / each, seconds), move |n| {
                let ids: Vec<String> = (0..each).map(|i| format!("\"i{:08}\"", first + n * each + i)).collect();
                let body = format!("{{\"ids\":[{}]}}", ids.join(","));
                vec![request("POST", "/v1/namespaces/default/heartbeats", &body)]
            })
            .await;
        }
        "streamed" => {
            let (first, count, streams, seconds, each, window) =
                (number(2), number(3), number(4), number(5), number(6), number(7));
            streamed(address, timed(first / each, count / each, seconds), streams, each, window).await;
        }
        "find" => {
            // One in fifty instances has each of the values.
            let (clients, seconds) = (number(2), number(3));
            run(address, clients, timed(0, 50, seconds), |n| {
                let pair = format!("key-00000={}", value(n, 0, 20));
                vec![request("GET", &format!("/v1/namespaces/default/instances?meta={pair}&limit=10"), "")]
            })
            .await;
        }
        "discover" => {
            // Compressed, if the last argument names an encoding.
            let (clients, seconds) = (number(2), number(3));
            let packed = arguments.has(4).map(|how| format!("Accept-Encoding: {how}\r\n")).unwrap_or_default();
            run(address, clients, timed(0, SERVICES, seconds), move |n| {
                let path = format!("/v1/namespaces/default/services/service-{n:05}/instances");
                vec![format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{packed}\r\n").into_bytes()]
            })
            .await;
        }
        "get" => {
            let (clients, seconds, path) = (number(2), number(3), arguments.text(4).to_owned());
            let asked = get(&path, arguments.has(5));
            run(address, clients, timed(0, 1, seconds), move |_| vec![asked.clone()]).await;
        }
        "renewed" => renewed(address, number(2), &get(arguments.text(3), arguments.has(4))).await,
        "paced" => paced(address, arguments.text(2) == "heartbeat", number(3), number(4), number(5)).await,
        "watchers" => watchers(address, number(2), number(3), arguments.has(4)).await,
        "visible" => visible(address, arguments.text(2), number(3)).await,
        "etcd" => {
            // A lease, and the instance under it, as etcd's clients register; through its HTTP gateway.
            let (first, count, clients, entries, bytes) = (number(2), number(3), number(4), number(5), number(6));
            run(address, clients, counted(first, count), move |n| {
                let encode = |text: String| base64::engine::general_purpose::STANDARD.encode(text);
                let key = encode(format!("/services/service-{:05}/i{n:08}", n % SERVICES));
                let value = encode(instance(n, entries, bytes));
                let id = n + 1;
                vec![
                    request("POST", "/v3/lease/grant", &format!("{{\"TTL\":\"3600\",\"ID\":\"{id}\"}}")),
                    request(
                        "POST",
                        "/v3/kv/put",
                        &format!("{{\"key\":\"{key}\",\"value\":\"{value}\",\"lease\":\"{id}\"}}"),
                    ),
                ]
            })
            .await;
        }
        "listen" => listen(address).await,
        other => panic!(
            "{other}: expected register, heartbeat, heartbeats, streamed, discover, find, get, renewed, paced, watchers, visible, etcd or listen"
        ),
    }
}
