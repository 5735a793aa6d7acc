//! A registry without the rest of the binary, for the load generators: it compiles in a fraction of the time. A new SQLite store, no login, two
//! threads, as many as in the binary. Ends with its standard input.
//!
//! ```sh
//! cargo run --release -p registry --example serve -- 127.0.0.1:8632
//! ```
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;

use std::io::Read as _;
use std::time::Duration;

use common::Arguments;
use registry::api::{AuditLog, Auth, Context, Front, HttpLimits, Mount, Server};
use registry::{Registry, Settings, store};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let arguments = Arguments::get();
    let directory = tempfile::tempdir().unwrap();
    let store = store::open(&format!("sqlite:{}", directory.path().join("registry.db").display())).await.unwrap();
    let registry = Registry::open(Settings::default(), store).await.unwrap();
    let listener = tokio::net::TcpListener::bind(arguments.text(0)).await.unwrap();
    let fronts = vec![Front::Native, Front::Consul, Front::Eureka, Front::Prometheus];
    let mount = Mount { listener, fronts, tls: None };
    let context =
        Context::new(registry.clone(), Auth::None, HttpLimits::default(), "serve".to_owned(), AuditLog::default());
    let server = Server::start(vec![mount], context);
    println!("serving, pid {}", std::process::id());
    let _ = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await;
    server.shutdown(Duration::from_secs(5)).await;
    registry.shutdown().await;
}
