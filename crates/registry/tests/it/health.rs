//! Health in real time: short times to live, real sockets. Every wait is for a condition; no duration is checked.

use std::sync::Arc;
use std::time::Duration;

use registry::{Beat, Check, CheckKind, Health, Pace, Registration, Registry, Revision, Settings, store};
use tokio::time::Instant;

use crate::common::*;

async fn node(directory: &tempfile::TempDir, settings: Settings) -> Registry {
    let address = format!("sqlite:{}", directory.path().join("registry.db").display());
    Registry::open(settings, store::open(&address).await.unwrap()).await.unwrap()
}

fn with_ttl(n: usize) -> Registration {
    let mut registration = Registration::new(id(n), service(0), "127.0.0.1", 1);
    registration.check = Some(Check::ttl(Duration::from_secs(1)));
    registration
}

/// Waits until `condition` holds of the registry; checks again at each change.
async fn until(registry: &Registry, what: &str, condition: impl Fn(&Registry) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    let mut at = Revision(0);
    while !condition(registry) {
        assert!(Instant::now() < deadline, "{what} did not come");
        let soon = deadline.min(Instant::now() + Duration::from_millis(100));
        at = registry.watch_all(at, soon).await.unwrap();
    }
}

fn health(registry: &Registry, n: usize) -> Option<Health> {
    registry.instance(&id(n)).map(|instance| instance.health)
}

#[tokio::test]
async fn silence_ends_it_and_a_heartbeat_brings_it_back() {
    let directory = tempfile::tempdir().unwrap();
    let registry = node(&directory, Settings::default()).await;
    assert_eq!(registry.heartbeat(&[id(1)]).await, [Beat::Unknown]);
    registry.register(vec![with_ttl(1)]).await.pop().unwrap().unwrap();
    assert_eq!(registry.heartbeat(&[id(1), id(2)]).await, [Beat::Known, Beat::Unknown]);
    until(&registry, "expiry", |r| health(r, 1) == Some(Health::Critical)).await;
    registry.heartbeat(&[id(1)]).await;
    until(&registry, "return", |r| health(r, 1) == Some(Health::Passing)).await;
    until(&registry, "expiry", |r| health(r, 1) == Some(Health::Critical)).await;
    // A registration is a heartbeat even if it changes nothing.
    registry.register(vec![with_ttl(1)]).await.pop().unwrap().unwrap();
    until(&registry, "return", |r| health(r, 1) == Some(Health::Passing)).await;
    let reported = registry.report(&[(id(1), Health::Warning), (id(9), Health::Passing)]).await;
    assert!(reported[0].is_ok() && reported[1].is_err());
    assert_eq!(health(&registry, 1), Some(Health::Warning));
    registry.shutdown().await;
}

#[tokio::test]
async fn who_stays_critical_is_deregistered() {
    let directory = tempfile::tempdir().unwrap();
    let registry = node(&directory, Settings::default()).await;
    let mut registration = with_ttl(1);
    registration.check.as_mut().unwrap().deregister_after = Some(Duration::from_secs(1));
    registry.register(vec![registration, with_ttl(2)]).await.into_iter().for_each(|row| {
        row.unwrap();
    });
    until(&registry, "deregistration", |r| health(r, 1).is_none()).await;
    until(&registry, "expiry", |r| health(r, 2) == Some(Health::Critical)).await;
    assert_eq!(registry.status().counts.reaped, 1);
    registry.shutdown().await;
}

#[tokio::test]
async fn when_much_vanishes_at_once_the_last_good_state_is_kept_for_a_while() {
    let directory = tempfile::tempdir().unwrap();
    let mut settings = Settings::default();
    settings.health.brake.longest = Duration::from_secs(2);
    let registry = node(&directory, settings).await;
    registry.register((0..10).map(with_ttl).collect()).await.into_iter().for_each(|row| {
        row.unwrap();
    });
    // Four of ten go on with heartbeats.
    let beating = registry.clone();
    let beats = tokio::spawn(async move {
        let alive: Vec<_> = (0..4).map(id).collect();
        loop {
            beating.heartbeat(&alive).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    until(&registry, "the brake", |r| !r.status().protected.is_empty()).await;
    let usable = registry.snapshot(&service(0)).unwrap().usable();
    assert_eq!(usable, 10, "the last good state");
    until(&registry, "letting go", |r| r.snapshot(&service(0)).unwrap().usable() == 4).await;
    assert!((0..4).all(|n| health(&registry, n) == Some(Health::Passing)));
    let all: Vec<_> = (0..10).map(id).collect();
    registry.heartbeat(&all).await;
    until(&registry, "return", |r| r.snapshot(&service(0)).unwrap().usable() == 10).await;
    beats.abort();
    registry.shutdown().await;
}

/// Starts a server that sends `first`, and `then` in reply to anything.
async fn scripted(first: &'static [u8], then: &'static [u8]) -> (u16, tokio::task::JoinHandle<()>) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.write_all(first).await;
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(then).await;
        }
    });
    (port, serving)
}

#[tokio::test]
async fn probes_speak_the_protocols_of_databases() {
    let directory = tempfile::tempdir().unwrap();
    let registry = node(&directory, Settings::default()).await;
    let greeting = b"\x08\0\0\0\x0a8.0.36\0";
    let denied = b"\x09\0\0\x02\xff\x15\x04#28000";
    let full = b"\x09\0\0\0\xff\x10\x04#08004";
    let servers = [scripted(greeting, denied).await, scripted(full, b"").await, scripted(b"", b"-NOAUTH\r\n").await];
    let pace = Pace { interval: Duration::from_secs(1), timeout: Duration::from_secs(1), fall: 1, rise: 1 };
    let kinds = [
        CheckKind::Mysql { target: None, pace: pace.clone() },
        CheckKind::Mysql { target: None, pace: pace.clone() },
        CheckKind::Redis { target: None, pace },
    ];
    let rows = kinds.into_iter().enumerate().map(|(n, kind)| {
        let mut registration = Registration::new(id(n), service(n), "127.0.0.1", servers[n].0);
        registration.check = Some(Check { kind, deregister_after: None });
        registration.health = Some(Health::Critical);
        registration
    });
    registry.register(rows.collect()).await.into_iter().for_each(|row| {
        row.unwrap();
    });
    let expected = [Health::Passing, Health::Warning, Health::Passing];
    until(&registry, "answers", |r| (0..3).all(|n| health(r, n) == Some(expected[n]))).await;
    servers.iter().for_each(|(_, serving)| serving.abort());
    registry.shutdown().await;
}

#[tokio::test]
async fn probes_find_out_who_answers() {
    let directory = tempfile::tempdir().unwrap();
    let registry = node(&directory, Settings::default()).await;
    let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let http = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let ports = [tcp.local_addr().unwrap().port(), http.local_addr().unwrap().port()];
    let broken = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_broken = Arc::clone(&broken);
    let serving = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        loop {
            let (mut stream, _) = http.accept().await.unwrap();
            let _ = stream.read(&mut [0; 1024]).await;
            let broken = is_broken.load(std::sync::atomic::Ordering::Relaxed);
            let _ =
                stream.write_all(if broken { b"HTTP/1.1 500 No\r\n\r\n" } else { b"HTTP/1.1 200 OK\r\n\r\n" }).await;
        }
    });
    let pace = Pace { interval: Duration::from_secs(1), timeout: Duration::from_secs(1), fall: 1, rise: 1 };
    let kinds = [
        CheckKind::Tcp { target: None, tls: None, pace: pace.clone() },
        CheckKind::Http { url: "/health".into(), tls: None, no_redirects: false, request: None, pace },
    ];
    let rows = kinds.into_iter().enumerate().map(|(n, kind)| {
        let mut registration = Registration::new(id(n), service(n), "127.0.0.1", ports[n]);
        registration.check = Some(Check { kind, deregister_after: None });
        registration.health = Some(Health::Critical);
        registration
    });
    registry.register(rows.collect()).await.into_iter().for_each(|row| {
        row.unwrap();
    });
    until(&registry, "answers", |r| (0..2).all(|n| health(r, n) == Some(Health::Passing))).await;
    drop(tcp);
    broken.store(true, std::sync::atomic::Ordering::Relaxed);
    until(&registry, "failures", |r| (0..2).all(|n| health(r, n) == Some(Health::Critical))).await;
    serving.abort();
    registry.shutdown().await;
}
