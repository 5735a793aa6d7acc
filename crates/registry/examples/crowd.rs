//! The clients of all fronts of a registry at once, each kind with the behaviour of its libraries: the load that `bench/registry --only crowd` runs
//! beside heartbeats. By hand:
//!
//! ```sh
//! cargo run --release -p registry --example crowd -- 127.0.0.1:8632 127.0.0.1:8600 10 100
//! ```
//!
//! The arguments: the registry's address, that of its DNS, seconds, and the number of clients of each kind that asks for one service; the kinds that
//! ask for the whole registry have an eighth of it. Prints one line of JSON for each kind: operations, the rate, latencies in ms. The latency of a
//! blocking query is the duration of its wait.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;

use std::time::{Duration, Instant};

use common::Arguments;
use common::connection::{Connection, SERVICES, get};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;

/// The kind of a client: its request and its interval.
#[derive(Clone, Copy)]
enum Kind {
    /// A blocking query for the passing instances of a service.
    ConsulService,
    /// A blocking query for the names of all services, as Traefik and Prometheus make it.
    ConsulWhole,
    /// The delta, which Eureka's clients request every 30 s; here every second.
    EurekaDelta,
    /// The whole registry, compressed, which Eureka's clients request when they start.
    EurekaWhole,
    /// The instances of a service, as requested by Nacos' clients; here every second.
    Nacos,
    /// A watch by the registry's own API.
    Native,
    /// SRV records of a service, over UDP.
    Dns,
}

const KINDS: [(Kind, &str); 7] = [
    (Kind::ConsulService, "Consul, blocking, one service"),
    (Kind::ConsulWhole, "Consul, blocking, all services"),
    (Kind::EurekaDelta, "Eureka, delta"),
    (Kind::EurekaWhole, "Eureka, whole, gzip"),
    (Kind::Nacos, "Nacos, one service"),
    (Kind::Native, "own watch, one service"),
    (Kind::Dns, "DNS, SRV"),
];

/// Pause between two requests of a polling client.
const PAUSE: Duration = Duration::from_secs(1);
/// Time after which an unanswered datagram counts as lost.
const LOST: Duration = Duration::from_secs(2);

/// Runs one client; returns the time of each answer.
async fn client(kind: Kind, n: usize, address: String, dns: String, end: Instant) -> Vec<Duration> {
    let service = format!("service-{:05}", n % SERVICES);
    let mut times = Vec::new();
    if let Kind::Dns = kind {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(&dns).await.unwrap();
        let mut answer = [0; 4096];
        while Instant::now() < end {
            let began = Instant::now();
            socket.send(&question(&service)).await.unwrap();
            if tokio::time::timeout(LOST, socket.recv(&mut answer)).await.is_ok() {
                times.push(began.elapsed());
            }
            tokio::time::sleep(PAUSE).await;
        }
        return times;
    }
    let mut connection = Connection::open(&address).await;
    let mut revision = 0;
    while Instant::now() < end {
        let (path, header) = match kind {
            Kind::ConsulService => {
                (format!("/v1/health/service/{service}?passing&index={}&wait=1s", connection.index), None)
            }
            Kind::ConsulWhole => (format!("/v1/catalog/services?index={}&wait=1s", connection.index), None),
            Kind::EurekaDelta => ("/eureka/apps/delta".to_owned(), Some("Accept: application/json")),
            Kind::EurekaWhole => ("/eureka/apps".to_owned(), Some("Accept-Encoding: gzip")),
            Kind::Nacos => (format!("/nacos/v1/ns/instance/list?namespaceId=default&serviceName={service}"), None),
            Kind::Native | Kind::Dns => {
                (format!("/v1/namespaces/default/services/{service}/instances?after={revision}&wait=1s"), None)
            }
        };
        let began = Instant::now();
        let (status, body) = connection.ask(&get(&path, header), matches!(kind, Kind::Native)).await;
        assert_eq!(status, 200, "{path}");
        times.push(began.elapsed());
        if let Some(found) = body.split("\"revision\":").nth(1) {
            revision = found.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
        }
        if matches!(kind, Kind::EurekaDelta | Kind::EurekaWhole | Kind::Nacos) {
            tokio::time::sleep(PAUSE).await;
        }
    }
    times
}

/// Encodes the question for the SRV records of a service: RFC 1035, section 4.
fn question(service: &str) -> Vec<u8> {
    let mut text = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in [service, "service", "consul"] {
        text.push(u8::try_from(label.len()).unwrap());
        text.extend_from_slice(label.as_bytes());
    }
    text.extend_from_slice(&[0, 0, 33, 0, 1]);
    text
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments = Arguments::get();
    let (address, dns) = (arguments.text(0).to_owned(), arguments.text(1).to_owned());
    let (seconds, clients) = (arguments.number(2), arguments.number(3));
    let end = Instant::now() + Duration::from_secs(seconds as u64);
    let mut kinds = Vec::new();
    for (kind, name) in KINDS {
        let mut tasks = JoinSet::new();
        let many = if matches!(kind, Kind::ConsulWhole | Kind::EurekaWhole) { clients.div_ceil(8) } else { clients };
        for n in 0..many {
            tasks.spawn(client(kind, n, address.clone(), dns.clone(), end));
        }
        kinds.push((name, many, tasks));
    }
    for (name, many, tasks) in kinds {
        let mut times: Vec<Duration> = tasks.join_all().await.into_iter().flatten().collect();
        times.sort_unstable();
        let at =
            |share: f64| times.get((times.len() as f64 * share) as usize).map_or(0.0, |time| time.as_secs_f64() * 1e3);
        let (count, rate) = (times.len(), times.len() as f64 / seconds as f64);
        println!(
            "{{\"what\":\"{name}\",\"clients\":{many},\"operations\":{count},\"rate\":{rate:.1},\"p50\":{:.2},\"p99\":{:.2}}}",
            at(0.5),
            at(0.99)
        );
    }
}
