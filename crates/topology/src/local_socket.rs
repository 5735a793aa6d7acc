//! The Unix socket of a server on this host: found over a TCP session of a prober, so that clients' connections need no TCP.
//!
//! A socket's file may be another server's, and a TCP address may lead to another host through a forwarder. So the socket counts only if the server
//! itself names its directory, if it sees the prober's connection with the same two ends as the prober does, and if the server behind the socket began
//! at the same microsecond.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_postgres::{Client, Row};
use wire::control::{PROBE, Settings};

use crate::config::{ClusterConfig, Target};
use crate::probe::{Session, connect};
use crate::view::Address;

/// Both ends of the session's connection as the server sees them, its start, and the directories of its sockets; no directories for a role that may
/// not read the setting.
const ASK: &str = "\
    SELECT pg_catalog.host(pg_catalog.inet_server_addr()), pg_catalog.inet_server_port(), \
           pg_catalog.host(pg_catalog.inet_client_addr()), pg_catalog.inet_client_port(), \
           pg_catalog.pg_postmaster_start_time()::text, \
           (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'unix_socket_directories')";

/// Start of the server behind a socket.
const ASK_START: &str = "SELECT pg_catalog.pg_postmaster_start_time()::text";

/// Longest path of a Unix socket, in bytes, without the zero at its end: `sun_path` of Linux.
const LONGEST: usize = 107;
/// Maximum number of directories that are tried.
const MOST_DIRECTORIES: usize = 8;

/// A server's own words about a TCP session and its sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    server: Option<SocketAddr>,
    client: Option<SocketAddr>,
    start: String,
    directories: String,
}

impl Told {
    fn of(row: &Row) -> Option<Told> {
        let end = |address: usize, port: usize| {
            let address: IpAddr = row.try_get::<_, Option<String>>(address).ok()??.parse().ok()?;
            let port = u16::try_from(row.try_get::<_, Option<i32>>(port).ok()??).ok()?;
            Some(SocketAddr::new(address, port))
        };
        Some(Told {
            server: end(0, 1),
            client: end(2, 3),
            start: row.try_get(4).ok()?,
            directories: row.try_get::<_, Option<String>>(5).ok()??,
        })
    }

    /// Returns the paths of the server's sockets, if the connection from `ours` to `theirs` leads to a server on this host with nothing between.
    fn sockets(&self, ours: SocketAddr, theirs: SocketAddr) -> Vec<PathBuf> {
        let canonical = |end: SocketAddr| (end.ip().to_canonical(), end.port());
        let is = |told: Option<SocketAddr>, end: SocketAddr| told.map(canonical) == Some(canonical(end));
        // A connection to an address of the same host has that address at both ends.
        let is_here = canonical(ours).0 == canonical(theirs).0;
        if !is_here || !is(self.server, theirs) || !is(self.client, ours) {
            return Vec::new();
        }
        directories(&self.directories)
            .map(|directory| directory.join(format!(".s.PGSQL.{}", theirs.port())))
            .filter(|path| path.as_os_str().len() <= LONGEST)
            .take(MOST_DIRECTORIES)
            .collect()
    }
}

/// Parses `unix_socket_directories`: a list, each name perhaps in double quotes. Abstract names (`@…`) are left out.
fn directories(list: &str) -> impl Iterator<Item = PathBuf> {
    list.split(',').map(|name| name.trim().trim_matches('"')).filter(|name| name.starts_with('/')).map(PathBuf::from)
}

/// Returns the Unix socket of the server that this session is with; `None` if it is not on this host, has no socket, or does not let this user in
/// there. The caller bounds the time.
pub(crate) async fn find(session: &Session, config: &ClusterConfig) -> Option<Arc<Path>> {
    let (Some(ours), Address::Tcp(theirs)) = (session.ours, &session.address) else { return None };
    let told = Told::of(&session.client.query_one(ASK, &[]).await.ok()?)?;
    for path in told.sockets(ours, *theirs) {
        let is_socket = tokio::fs::metadata(&path).await.is_ok_and(|found| found.file_type().is_socket());
        if is_socket && start_behind(&path, config).await.as_ref() == Some(&told.start) {
            return Some(path.into());
        }
    }
    None
}

/// Returns the start of the server behind a socket, in the words of the server.
async fn start_behind(path: &Path, config: &ClusterConfig) -> Option<String> {
    let target = Target::Unix(path.to_owned());
    let session = connect(&target, config, None, PROBE, Some(&Settings::catalog())).await.ok()?;
    start(&session.client).await
}

async fn start(client: &Client) -> Option<String> {
    client.query_one(ASK_START, &[]).await.ok()?.try_get(0).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn at(address: &str) -> SocketAddr {
        address.parse().unwrap()
    }

    #[test]
    fn a_socket_counts_on_this_host_with_nothing_between() {
        let one = vec![PathBuf::from("/run/postgresql/.s.PGSQL.5432")];
        for (ours, theirs, client, server, expected) in [
            ("127.0.0.1:40000", "127.0.0.1:5432", Some("127.0.0.1:40000"), Some("127.0.0.1:5432"), &one),
            // An address of this host that is not loopback.
            ("10.0.0.7:40000", "10.0.0.7:5432", Some("10.0.0.7:40000"), Some("10.0.0.7:5432"), &one),
            ("[::1]:40000", "[::1]:5432", Some("[::1]:40000"), Some("[::1]:5432"), &one),
            ("[::ffff:10.0.0.7]:4", "10.0.0.7:5432", Some("10.0.0.7:4"), Some("10.0.0.7:5432"), &one),
            // Another host.
            ("10.0.0.7:40000", "10.0.0.8:5432", Some("10.0.0.7:40000"), Some("10.0.0.8:5432"), &vec![]),
            // A forwarder on this host: to a server here, to one in a container, and one that keeps the client's address.
            ("127.0.0.1:40000", "127.0.0.1:5432", Some("127.0.0.1:50000"), Some("127.0.0.1:5433"), &vec![]),
            ("127.0.0.1:40000", "127.0.0.1:5432", Some("172.17.0.1:40000"), Some("172.17.0.2:5432"), &vec![]),
            ("127.0.0.1:40000", "127.0.0.1:5432", Some("127.0.0.1:40000"), Some("172.17.0.2:5432"), &vec![]),
            // A server that tells no addresses.
            ("127.0.0.1:40000", "127.0.0.1:5432", None, None, &vec![]),
        ] {
            let told = Told {
                server: server.map(at),
                client: client.map(at),
                start: "now".into(),
                directories: "/run/postgresql".into(),
            };
            assert_eq!(&told.sockets(at(ours), at(theirs)), expected, "{ours} {theirs} {client:?} {server:?}");
        }
    }

    #[test]
    fn directories_of_a_list() {
        let long = format!("/{}", "x".repeat(100));
        for (list, expected) in [
            ("", vec![]),
            ("/run/postgresql", vec!["/run/postgresql"]),
            ("/run/postgresql, \"/tmp\"", vec!["/run/postgresql", "/tmp"]),
            ("@abstract, relative,/tmp", vec!["/tmp"]),
            (&long, vec![]),
        ] {
            let (ours, theirs) = (at("127.0.0.1:4"), at("127.0.0.1:5"));
            let told =
                Told { server: Some(theirs), client: Some(ours), start: String::new(), directories: list.into() };
            let expected: Vec<PathBuf> = expected.iter().map(|of| Path::new(of).join(".s.PGSQL.5")).collect();
            assert_eq!(told.sockets(ours, theirs), expected, "{list:?}");
        }
    }
}
