//! The clusters of a process, and the one to which a client is assigned: a pure function of the client's request.

use std::collections::HashSet;
use std::sync::Arc;

use crate::config::ProxyConfig;

/// Names of the console database; the second one is the name that tools for PgBouncer use.
pub const DATABASES: [&str; 2] = ["kingpost", "pgbouncer"];

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
        if DATABASES.contains(&database) && !self.entries.iter().any(|entry| entry.databases.contains(database)) {
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
    DATABASES.iter().find_map(|name| database.strip_prefix(name)?.strip_prefix('.'))
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
}
