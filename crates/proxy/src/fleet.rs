//! Several clusters behind the same addresses.
//!
//! ```text
//!  client ──▶ worker of the first cluster ── start-up packet: Fleet::lead ──▶ worker of the client's cluster
//! ```
//!
//! Each cluster has a proxy of its own: a topology, workers, pools, prepared statements, limits, a console. They share only the listening sockets,
//! which the first cluster's proxy has. So no state of one cluster can reach a client of another one, and a cluster that is down delays no other
//! cluster's clients.
//!
//! The cluster of a client is a pure function of the client's request ([`Directory::lead`]). A connection is handed over once, at its start-up packet
//! or its cancel request, before any answer to it.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

use crate::config::ProxyConfig;
use crate::console::{self, Changes, ConsoleHandle};
use crate::core::MOST_WORKERS;
use crate::driver::mailbox::{Mailbox, WorkerCommand};
use crate::metrics::Metrics;

/// Name of the first cluster if no clusters are configured.
pub const ALONE: &str = "main";

/// A cluster, as far as it matters for the assignment of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Name of the cluster, unique among the clusters.
    pub name: String,
    /// Host names by which clients request the cluster over TLS (SNI): `db.example.org`, or `*.db.example.org` for one label more.
    pub server_names: Vec<String>,
}

/// Request of a client, as far as it decides on the cluster.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The host name in the client's TLS handshake, in lower case.
    pub server_name: Option<&'a str>,
    /// The database in the start-up packet; `None`: a physical replication connection that names none.
    pub database: Option<&'a str>,
    /// True for a physical replication connection, which is to a server and not to a database. libpq names `replication` as its database.
    pub physical: bool,
    /// The cluster named by a replication connection itself.
    pub cluster: Option<&'a str>,
}

/// Assignment of a client.
#[derive(Debug, PartialEq, Eq)]
pub enum Lead {
    /// The cluster of this name.
    To(Arc<str>),
    /// No cluster: the request is ambiguous, or names an unknown cluster. The text is for the client.
    Nowhere(String),
}

/// The clusters in the order of the configuration, and the databases assigned to each of them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Directory {
    entries: Vec<Entry>,
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    name: Arc<str>,
    server_names: Vec<String>,
    databases: HashSet<String>,
    /// True if databases that are not listed are assigned to this cluster.
    others: bool,
}

/// State shared by the proxies of a process: the directory, and the mailboxes of each cluster's workers.
#[derive(Default)]
pub struct Fleet {
    state: ArcSwap<State>,
    /// Number of handed-over connections, which distributes them over equally busy workers of a cluster.
    handed: AtomicU64,
    /// Changes by operators, in any cluster.
    pub(crate) changes: Changes,
}

#[derive(Default)]
struct State {
    directory: Arc<Directory>,
    clusters: HashMap<Arc<str>, ClusterWorkers>,
}

/// Workers of one cluster's proxy.
#[derive(Clone)]
struct ClusterWorkers {
    /// Numbers of the workers among those of all clusters.
    numbers: Range<usize>,
    mailboxes: Arc<Vec<Mailbox>>,
    metrics: Vec<Arc<Metrics>>,
    console: ConsoleHandle,
}

/// Place of a cluster's proxy among those of its process.
#[derive(Clone)]
pub struct Membership {
    pub(crate) fleet: Arc<Fleet>,
    /// Name of the cluster.
    pub(crate) cluster: Arc<str>,
    /// Number of its first worker among the workers of all clusters.
    pub(crate) first_worker: usize,
}

// === impl ProxyConfig ===

impl ProxyConfig {
    /// Returns the configuration for one cluster: databases and users that name it, or name none (a database that names none is assigned to the first
    /// cluster). `first`: it is the first cluster, which has the listening sockets.
    #[must_use]
    pub fn of_cluster(&self, name: &str, first: bool) -> ProxyConfig {
        let mut of = self.clone();
        of.databases.retain(|database| leads_to(database.cluster.as_deref(), name, first));
        of.users.retain(|user| user.cluster.as_deref().is_none_or(|cluster| cluster == name));
        // A user's entry for one cluster replaces there the entry for all clusters.
        let own: HashSet<String> =
            of.users.iter().filter(|user| user.cluster.is_some()).map(|user| user.name.clone()).collect();
        of.users.retain(|user| user.cluster.is_some() || !own.contains(&user.name));
        of.traffic.retain(|rule| rule.cluster.as_deref().is_none_or(|cluster| cluster == name));
        if !first {
            of.listen.clear();
        }
        of
    }
}

/// True if a database with this `cluster` is assigned to the cluster of this name.
fn leads_to(cluster: Option<&str>, name: &str, first: bool) -> bool {
    cluster.map_or(first, |cluster| cluster == name)
}

// === impl Directory ===

impl Directory {
    /// Creates the directory of all clusters, the first one first; `config` has the databases of all of them.
    #[must_use]
    pub fn new(config: &ProxyConfig, clusters: &[Listed]) -> Directory {
        let entry = |(at, listed): (usize, &Listed)| {
            let own = config.databases.iter().filter(|of| leads_to(of.cluster.as_deref(), &listed.name, at == 0));
            let databases: HashSet<String> = own.map(|database| database.name.clone()).collect();
            Entry {
                name: listed.name.as_str().into(),
                server_names: listed.server_names.iter().map(|name| name.to_ascii_lowercase()).collect(),
                others: databases.contains("*") || (at == 0 && config.databases.is_empty()),
                databases,
            }
        };
        Directory { entries: clusters.iter().enumerate().map(entry).collect() }
    }

    /// Returns the cluster of a client. The host name of its TLS handshake is considered first, then the database by its name, then `*`. A client
    /// without a match is assigned to the first cluster, which reports the error.
    #[must_use]
    pub fn lead(&self, asked: Asked<'_>) -> Option<Lead> {
        let first = self.entries.first()?;
        let database = asked.database.unwrap_or_default();
        if let Some(name) = asked.cluster {
            let named = self.entries.iter().find(|entry| *entry.name == *name);
            return Some(named.map_or_else(|| Lead::Nowhere(unknown(name)), |entry| Lead::To(entry.name.clone())));
        }
        if let Some(of) = console_of(database).and_then(|name| self.entries.iter().find(|entry| *entry.name == *name))
            && !self.entries.iter().any(|entry| entry.databases.contains(database))
        {
            return Some(Lead::To(of.name.clone()));
        }
        if let Some(wanted) = asked.server_name
            && let Some(of) = self.entries.iter().find(|entry| entry.is_called(wanted))
        {
            return Some(Lead::To(of.name.clone()));
        }
        if console::DATABASES.contains(&database)
            && !self.entries.iter().any(|entry| entry.databases.contains(database))
        {
            return Some(Lead::To(first.name.clone()));
        }
        // A backup of the wrong cluster would look like the right one, so there is no default.
        if asked.physical && !self.entries.iter().any(|entry| entry.databases.contains(database)) {
            return Some(Lead::Nowhere(WHICH.into()));
        }
        for fits in
            [&(|entry: &&Entry| entry.databases.contains(database)) as &dyn Fn(&&Entry) -> bool, &|entry| entry.others]
        {
            let fitting: Vec<&Entry> = self.entries.iter().filter(|entry| fits(entry)).collect();
            return Some(match fitting.as_slice() {
                [] => continue,
                [one] => Lead::To(one.name.clone()),
                // The first cluster is the default.
                [one, ..] if one.name == first.name => Lead::To(one.name.clone()),
                several => Lead::Nowhere(ambiguous(database, several)),
            });
        }
        Some(Lead::To(first.name.clone()))
    }

    /// Returns the clusters' names, the first one first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| &*entry.name)
    }

    /// True if there is more than one cluster.
    #[must_use]
    pub fn has_several(&self) -> bool {
        self.entries.len() > 1
    }
}

impl Entry {
    /// True if a client that requests this host name means this cluster.
    fn is_called(&self, wanted: &str) -> bool {
        self.server_names.iter().any(|name| match name.strip_prefix("*.") {
            Some(rest) => wanted.split_once('.').is_some_and(|(label, parent)| !label.is_empty() && parent == rest),
            None => name == wanted,
        })
    }
}

fn ambiguous(database: &str, clusters: &[&Entry]) -> String {
    let names: Vec<String> = clusters.iter().map(|entry| format!("{:?}", entry.name)).collect();
    let names = names.join(" and ");
    format!("database {database:?} is in the clusters {names}: connect with TLS, by a host name of one of them")
}

fn unknown(cluster: &str) -> String {
    format!("{CLUSTER}: no cluster is called {cluster:?}")
}

/// The start-up parameter that names the cluster of a replication connection.
pub(crate) const CLUSTER: &str = "kingpost.cluster";

const WHICH: &str = "a physical replication connection has to say to which cluster: connect with TLS, by a host name of the cluster, or \
                     with options='-c kingpost.cluster=NAME'";

/// Returns the cluster in the database name of its console: `billing` of `kingpost.billing`.
pub(crate) fn console_of(database: &str) -> Option<&str> {
    console::DATABASES.iter().find_map(|name| database.strip_prefix(name)?.strip_prefix('.'))
}

// === impl Fleet ===

impl Fleet {
    /// Creates a fleet with this directory and no workers.
    #[must_use]
    pub fn new(directory: Directory) -> Arc<Fleet> {
        let fleet = Fleet::default();
        fleet.set_directory(directory);
        Arc::new(fleet)
    }

    /// Replaces the directory by which clients are assigned.
    pub fn set_directory(&self, directory: Directory) {
        let directory = Arc::new(directory);
        self.change(|state| State { directory: directory.clone(), clusters: state.clusters.clone() });
    }

    /// Returns the directory by which clients are assigned.
    #[must_use]
    pub fn directory(&self) -> Arc<Directory> {
        self.state.load().directory.clone()
    }

    fn change(&self, mut change: impl FnMut(&State) -> State) {
        self.state.rcu(|state| change(state));
    }

    /// Adds a cluster's workers, and returns the number of the first of them among those of all clusters; `None`: no numbers are left.
    pub(crate) fn enroll(
        &self,
        cluster: &Arc<str>,
        mailboxes: &Arc<Vec<Mailbox>>,
        metrics: &[Arc<Metrics>],
        console: &ConsoleHandle,
    ) -> Option<usize> {
        let mut first = None;
        self.change(|state| {
            let taken: Vec<Range<usize>> = state.clusters.values().map(|workers| workers.numbers.clone()).collect();
            first = free(&taken, mailboxes.len());
            let mut clusters = state.clusters.clone();
            if let Some(first) = first {
                let numbers = first..first + mailboxes.len();
                let (mailboxes, console) = (mailboxes.clone(), console.clone());
                let workers = ClusterWorkers { numbers, mailboxes, metrics: metrics.to_vec(), console };
                clusters.insert(cluster.clone(), workers);
            }
            State { directory: state.directory.clone(), clusters }
        });
        first
    }

    /// Removes a cluster's workers, which end.
    pub(crate) fn dismiss(&self, cluster: &str, first_worker: usize) {
        self.change(|state| {
            let mut clusters = state.clusters.clone();
            // A cluster of the same name may have started meanwhile.
            if clusters.get(cluster).is_some_and(|workers| workers.numbers.start == first_worker) {
                clusters.remove(cluster);
            }
            State { directory: state.directory.clone(), clusters }
        });
    }

    /// Returns the cluster of this worker, by its number among all.
    pub(crate) fn of_worker(&self, number: usize) -> Option<Arc<str>> {
        let state = self.state.load();
        let found = state.clusters.iter().find(|(_, workers)| workers.numbers.contains(&number));
        found.map(|(name, _)| name.clone())
    }

    /// Returns the consoles of the clusters, in the order of the directory.
    pub(crate) fn consoles(&self) -> Vec<(Arc<str>, ConsoleHandle)> {
        let state = self.state.load();
        let console = |entry: &Entry| Some((entry.name.clone(), state.clusters.get(&entry.name)?.console.clone()));
        state.directory.entries.iter().filter_map(console).collect()
    }

    /// Returns the consoles of all clusters, by the clusters' names.
    pub(crate) fn console_handles(&self) -> Vec<(Arc<str>, ConsoleHandle)> {
        self.state.load().clusters.iter().map(|(name, workers)| (name.clone(), workers.console.clone())).collect()
    }

    /// Posts a message to the worker of the cluster that has the fewest clients; returns the message if the cluster has no workers.
    pub(crate) fn post(&self, cluster: &str, command: WorkerCommand) -> Result<(), WorkerCommand> {
        let state = self.state.load();
        let Some(workers) = state.clusters.get(cluster).filter(|workers| !workers.mailboxes.is_empty()) else {
            return Err(command);
        };
        let turn = self.handed.fetch_add(1, Ordering::Relaxed) as usize;
        let count = workers.mailboxes.len();
        let in_turn = (0..count).map(|i| (turn + i) % count);
        let worker = in_turn.min_by_key(|&worker| workers.metrics.get(worker).map_or(0, |of| of.clients.get()));
        workers.mailboxes[worker.unwrap_or(0)].post(command);
        Ok(())
    }
}

/// Returns the first of `count` consecutive free numbers below [`MOST_WORKERS`].
fn free(taken: &[Range<usize>], count: usize) -> Option<usize> {
    let fits = |first: usize| {
        let (start, end) = (first, first + count);
        end <= MOST_WORKERS && taken.iter().all(|other| end <= other.start || other.end <= start)
    };
    std::iter::once(0).chain(taken.iter().map(|range| range.end)).filter(|&first| fits(first)).min()
}

impl Membership {
    /// Returns the membership of a process with one cluster.
    #[must_use]
    pub fn alone() -> Membership {
        Membership { fleet: Arc::default(), cluster: ALONE.into(), first_worker: 0 }
    }
}

impl std::fmt::Debug for Membership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Membership").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::config::{DatabaseConfig, UserConfig};

    fn listed(name: &str, server_names: &[&str]) -> Listed {
        Listed { name: name.into(), server_names: server_names.iter().map(|name| (*name).into()).collect() }
    }

    fn config(databases: &[(&str, Option<&str>)]) -> ProxyConfig {
        let database = |(name, cluster): &(&str, Option<&str>)| DatabaseConfig {
            name: (*name).into(),
            cluster: cluster.map(Into::into),
            ..DatabaseConfig::default()
        };
        ProxyConfig { databases: databases.iter().map(database).collect(), ..ProxyConfig::default() }
    }

    fn led(directory: &Directory, server_name: Option<&str>, database: &str) -> String {
        match directory.lead(Asked { server_name, database: Some(database), physical: false, cluster: None }) {
            Some(Lead::To(name)) => name.to_string(),
            Some(Lead::Nowhere(text)) => text,
            None => "alone".into(),
        }
    }

    #[test]
    fn clients_are_led_by_host_name_then_by_database() {
        let databases = [
            ("shop", None),
            ("bills", Some("billing")),
            ("app", Some("billing")),
            ("app", Some("audit")),
            ("both", None),
            ("both", Some("audit")),
            ("*", Some("audit")),
        ];
        let clusters = [
            listed("main", &[]),
            listed("billing", &["billing.example", "*.bill.example"]),
            listed("audit", &["AUDIT.example"]),
        ];
        let directory = Directory::new(&config(&databases), &clusters);
        for (server_name, database, expected) in [
            (None, "shop", "main"),
            (None, "bills", "billing"),
            (None, "unheard-of", "audit"),
            // The first cluster is the default.
            (None, "both", "main"),
            (Some("audit.example"), "both", "audit"),
            (Some("audit.example"), "shop", "audit"),
            (Some("billing.example"), "app", "billing"),
            (Some("a.bill.example"), "shop", "billing"),
            (Some("a.b.bill.example"), "shop", "main"),
            (Some(".bill.example"), "shop", "main"),
            (Some("bill.example"), "shop", "main"),
            // A host name of no cluster has no effect.
            (Some("db.example"), "bills", "billing"),
            // The consoles.
            (None, "kingpost", "main"),
            (Some("audit.example"), "kingpost", "audit"),
            (None, "kingpost.billing", "billing"),
            (None, "pgbouncer.audit", "audit"),
            (Some("audit.example"), "kingpost.billing", "billing"),
            (None, "kingpost.nobody", "audit"),
        ] {
            assert_eq!(led(&directory, server_name, database), expected, "{server_name:?} {database}");
        }
        let text = led(&directory, None, "app");
        assert!(text.contains("\"billing\" and \"audit\""), "{text}");
    }

    #[test]
    fn where_nothing_is_listed_all_databases_are_the_first_clusters() {
        let directory = Directory::new(&config(&[]), &[listed("a", &[]), listed("b", &["b.example"])]);
        assert_eq!(led(&directory, None, "any"), "a");
        assert_eq!(led(&directory, Some("b.example"), "any"), "b");
        assert_eq!(led(&Directory::default(), None, "any"), "alone");
    }

    #[test]
    fn a_physical_replication_connection_says_which_cluster_or_is_led_nowhere() {
        // `*` is assigned to the second cluster: but not a connection without a database, and not libpq's `replication`.
        let databases = config(&[("shop", None), ("bills", Some("b")), ("*", Some("b"))]);
        let directory = Directory::new(&databases, &[listed("a", &["a.example"]), listed("b", &["b.example"])]);
        for (server_name, database, cluster, expected) in [
            (None, None, None, None),
            (None, Some("replication"), None, None),
            (None, Some("any"), None, None),
            (Some("elsewhere.example"), Some("replication"), None, None),
            (Some("a.example"), Some("replication"), None, Some("a")),
            (Some("b.example"), None, None, Some("b")),
            (None, Some("shop"), None, Some("a")),
            (None, Some("bills"), None, Some("b")),
            (None, Some("replication"), Some("a"), Some("a")),
            (Some("a.example"), Some("shop"), Some("b"), Some("b")),
            (Some("a.example"), Some("shop"), Some("c"), None),
        ] {
            let asked = Asked { server_name, database, physical: true, cluster };
            let led = match directory.lead(asked) {
                Some(Lead::To(name)) => Some(name),
                Some(Lead::Nowhere(text)) => {
                    assert!(text.contains("kingpost.cluster"), "{text}");
                    None
                }
                None => panic!("there are several"),
            };
            assert_eq!(led.as_deref(), expected, "{asked:?}");
        }
    }

    #[test]
    fn what_is_said_for_a_cluster_holds_there_alone() {
        let user = |name: &str, cluster: Option<&str>, password: &str| UserConfig {
            name: name.into(),
            cluster: cluster.map(Into::into),
            password: Some(password.into()),
            ..UserConfig::default()
        };
        let mut config = config(&[("shop", None), ("bills", Some("b")), ("*", Some("b"))]);
        config.users = vec![user("app", None, "1"), user("app", Some("b"), "2"), user("only-b", Some("b"), "3")];
        let of = |name: &str, first: bool| {
            let of = config.of_cluster(name, first);
            let databases: Vec<String> = of.databases.into_iter().map(|database| database.name).collect();
            let users: Vec<String> = of.users.into_iter().map(|u| u.name + ":" + &u.password.unwrap()).collect();
            (databases.join(" "), users.join(" "), of.listen.len())
        };
        assert_eq!(of("a", true), ("shop".into(), "app:1".into(), 1));
        assert_eq!(of("b", false), ("bills *".into(), "app:2 only-b:3".into(), 0));
        assert_eq!(of("c", false), (String::new(), "app:1".into(), 0));
    }

    #[test]
    fn workers_have_numbers_of_their_own() {
        for (taken, count, expected) in [
            (vec![], 2, Some(0)),
            (vec![(0, 2)], 2, Some(2)),
            (vec![(2, 4)], 2, Some(0)),
            (vec![(1, 4)], 2, Some(4)),
            (vec![(0, 128), (128, 254)], 2, Some(254)),
            (vec![(0, 128), (128, 255)], 2, None),
            (vec![(0, 10), (14, 256)], 4, Some(10)),
            (vec![], 257, None),
        ] {
            let ranges: Vec<_> = taken.iter().map(|&(start, end)| start..end).collect();
            assert_eq!(free(&ranges, count), expected, "{taken:?} {count}");
        }
    }
}
