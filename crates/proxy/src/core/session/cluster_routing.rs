//! Assignment of clients to clusters, in a process with several.
//!
//! The cluster of a client is given by its start-up packet (and by the host name in its TLS handshake), that of a cancel request by its process ID.
//! If the worker that has accepted the connection belongs to another cluster, the connection moves to the right one, with the packet: the other
//! worker reads it as if it had accepted the connection itself. Until then the client has only got the answer to its request for TLS.

use std::sync::atomic::Ordering;

use wire::Sqlstate;
use wire::startup::{self, Startup};

use super::client::Phase;
use super::replication::Replication;
use crate::core::directory::{Asked, CLUSTER, Lead, console_of};
use crate::core::memory::Token;
use crate::core::{Core, Destination, Newcomer, Peer};

impl Core {
    /// Decides if a connection leaves for another cluster, after the arrival of this packet. It leaves at the end of this step, with all of its
    /// input.
    pub(super) fn leads_elsewhere(&mut self, c: usize, packet: &Startup<'_>) -> bool {
        let Phase::Startup { led: false, .. } = self.clients[c].phase else { return false };
        let cluster = match packet {
            Startup::Cancel { pid, .. } => self.cluster_of(*pid),
            Startup::Login { parameters, .. } => match self.lead(c, parameters) {
                Some(Lead::To(cluster)) if *cluster != *self.shared.membership.cluster => Some(cluster),
                // `begin_login` reports the reason why a client has no cluster.
                Some(Lead::To(_) | Lead::Nowhere(_)) | None => None,
            },
            Startup::Ssl | Startup::Gss => None,
        };
        match cluster {
            Some(cluster) => {
                self.leaving.push((self.clients[c].token, Destination::Cluster(cluster)));
                true
            }
            None => false,
        }
    }

    /// Returns the reason why a client of this cluster's worker has no cluster; `None` if it has one.
    pub(super) fn led_nowhere(&self, c: usize, parameters: &[u8]) -> Option<String> {
        match self.lead(c, parameters)? {
            Lead::Nowhere(text) => Some(text),
            Lead::To(_) => None,
        }
    }

    /// Returns the cluster of a client with these start-up parameters; `None`: the client stays, because there is only one cluster, or another
    /// cluster's worker has handed it over.
    fn lead(&self, c: usize, parameters: &[u8]) -> Option<Lead> {
        let directory = self.shared.membership.clusters.directory();
        let client = &self.clients[c];
        if !directory.has_several() || !matches!(client.phase, Phase::Startup { led: false, .. }) {
            return None;
        }
        let server_name = client.identity.as_ref().and_then(|identity| identity.server_name.as_deref());
        let wanted = Wanted::read(parameters);
        directory.lead(Asked {
            server_name,
            database: wanted.database,
            physical: wanted.physical,
            cluster: wanted.cluster.as_deref(),
        })
    }

    /// True if a client with this database wants the console: of all clusters, or of this one (`kingpost.billing`).
    pub(super) fn is_console(&self, database: &str) -> bool {
        self.settings.is_console(database)
            || (console_of(database).is_some_and(|name| *name == *self.shared.membership.cluster)
                && !self.settings.lists(database))
    }

    /// True if the console of this name is that of all clusters: the first cluster's worker has it.
    pub(super) fn is_whole(&self, console: &str) -> bool {
        let membership = &self.shared.membership;
        let directory = membership.clusters.directory();
        let first = directory.names().next().is_some_and(|first| *first == *membership.cluster);
        directory.has_several() && first && console_of(console).is_none()
    }

    /// Removes a client that leaves for another cluster from all counters of this one.
    pub(super) fn part_with(&mut self, c: usize) -> Newcomer {
        self.count_out(c);
        self.metrics.clients.sub(1);
        self.metrics.clients_handed_over.add(1);
        self.shared.clients.fetch_sub(1, Ordering::Relaxed);
        let mut client = self.clients.remove(c);
        client.output.retract(&mut self.buffers);
        let unsent = client.output.writable().to_vec();
        client.output.clear(&mut self.buffers);
        let peer =
            Peer { route: client.route, local: client.local, address: client.address, system: client.system.take() };
        Newcomer { peer, identity: client.identity, input: client.input, unsent }
    }

    /// Adopts a client that another cluster's worker has accepted.
    pub(in crate::core) fn adopt_newcomer(&mut self, newcomer: Newcomer) -> Token {
        let token = self.accept(newcomer.peer);
        // There may be no room for the client.
        if self.is_client(token) {
            let client = &mut self.clients[token.index()];
            client.identity = newcomer.identity;
            client.input = newcomer.input;
            client.phase = Phase::Startup { refused: 0, led: true };
            if !newcomer.unsent.is_empty() {
                self.write_client(token.index(), |out| out.extend_from_slice(&newcomer.unsent));
            }
        }
        token
    }
}

/// Parts of a start-up packet that decide on the client's cluster.
#[derive(Debug, PartialEq, Eq)]
struct Wanted<'a> {
    /// The database; if none is named, the user's name, as in PostgreSQL; `None` for a physical replication connection that names none.
    database: Option<&'a str>,
    physical: bool,
    cluster: Option<String>,
}

impl<'a> Wanted<'a> {
    fn read(parameters: &'a [u8]) -> Wanted<'a> {
        let value = |wanted: &[u8]| {
            let mut last = None;
            for (name, value) in startup::parameters(parameters).map_while(Result::ok) {
                if name == wanted {
                    last = std::str::from_utf8(value).ok();
                }
            }
            last.filter(|value| !value.is_empty())
        };
        let replication = value(b"replication").and_then(|value| Replication::read(value).ok().flatten());
        let physical = replication == Some(Replication::Physical);
        let named = || {
            let options = startup::options(value(b"options")?).ok()?;
            options.into_iter().rev().find_map(|(name, value)| (name == CLUSTER).then_some(value))
        };
        let cluster = replication.and_then(|_| named());
        Wanted { database: value(b"database").or_else(|| value(b"user").filter(|_| !physical)), physical, cluster }
    }
}

/// Error code for a client without a cluster.
pub(super) const NOWHERE: Sqlstate = Sqlstate::INVALID_CATALOG_NAME;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for() {
        for (parameters, database, physical, cluster) in [
            ("user\0a\0database\0shop\0\0", Some("shop"), false, None),
            ("database\0shop\0user\0a\0\0", Some("shop"), false, None),
            ("user\0a\0\0", Some("a"), false, None),
            ("user\0a\0database\0\0\0", Some("a"), false, None),
            ("user\0a\0replication\0true\0\0", None, true, None),
            ("user\0a\0database\0replication\0replication\0true\0\0", Some("replication"), true, None),
            ("user\0a\0replication\0true\0options\0-c kingpost.cluster=b\0\0", None, true, Some("b")),
            ("user\0a\0replication\0database\0database\0shop\0\0", Some("shop"), false, None),
            ("user\0a\0replication\0database\0options\0-ckingpost.cluster=b\0\0", Some("a"), false, Some("b")),
            // Ignored without replication.
            ("user\0a\0replication\0off\0options\0-c kingpost.cluster=b\0\0", Some("a"), false, None),
            ("\0", None, false, None),
        ] {
            let cluster = cluster.map(str::to_owned);
            assert_eq!(Wanted::read(parameters.as_bytes()), Wanted { database, physical, cluster }, "{parameters:?}");
        }
    }
}
