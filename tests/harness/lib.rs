//! End-to-end harness: starts real PostgreSQL servers and the real binary on system-chosen ports, kills and cuts them, and
//! cleans up.
//!
//! ```text
//! test ── Endpoint ──▶ Kingpost ── (Cut) ──▶ Cluster: Node n0 (primary) ──WAL──▶ n1, n2 … (replicas)
//! ```
//!
//! All processes of a test end with it: by drop, also when it panics; by the parent-death signal of each child and a watchdog (see [`run_dir`]) when
//! the whole test process is killed. Every wait has a limit and, when that is reached, shows the last lines of all logs involved.
//!
//! Environment: `KINGPOST_BIN` (binary under test), `KINGPOST_TEST_DRIVER=io_uring` (its `proxy.driver`), `PG_BIN` (directory of PostgreSQL's
//! programs), `KINGPOST_TESTS_MYSQLD` (MySQL's `mysqld`), `KINGPOST_TESTS_SKIPPED` (file to which each skipped test adds a line, see [`skipped()`]), `KINGPOST_TESTS_DIRECT=1` or
//! `KINGPOST_TESTS_PGBOUNCER=1` (run the tests against a stand-in, see [`Subject`]).

mod aurora;
/// Certificates, and TLS for clients of tests.
pub mod certs;
mod cluster;
mod cut;
mod endpoint;
mod etcd;
mod failover;
mod kingpost;
mod mariadb;
mod metrics;
mod mysql;
mod node;
pub mod oracle;
mod port;
mod process;
/// The wire protocol, message by message.
pub mod raw;
mod registry;
mod relay;
mod root;
mod run;
mod skipped;
mod slow_disk;
mod template;
mod wait;

pub use aurora::{PROBED, PROBER, Tells};
pub use cluster::{Cluster, ClusterBuilder};
pub use cut::{Cut, Link};
pub use endpoint::{DATABASE, Endpoint, SCRAM_PASSWORD, SCRAM_USER, USER, sqlstate};
pub use etcd::{ETCD_PASSWORD, ETCD_USER, Etcd};
pub use failover::{Failover, Ran};
pub use kingpost::{Kingpost, KingpostBuilder, Subject, database, kingpost_bin, subject, user};
pub use mariadb::{BinlogRelay, MariaDb};
pub use metrics::{Labels, Metrics, Sample, get as http_get};
pub use mysql::{MySql, mysqld};
pub use node::Node;
pub use port::Port;
pub use process::{Process, RunAs, command, signal};
pub use registry::{HttpResponse, RegistryNode};
pub use relay::Relay;
pub use run::{new_dir, run_dir, unique};
pub use skipped::skipped;
pub use slow_disk::SlowDisk;
pub use template::pg_bin;
pub use wait::{SOON, ShowLogs, tails, wait_until, within};
