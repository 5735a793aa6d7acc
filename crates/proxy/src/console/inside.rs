//! Tables of sockets, memory and other proxies.

use std::collections::HashMap;

use topology::Address;

use super::show::{CONNECTION, Scene, place, public_id};
use super::table::ColumnType::{Number, Text};
use super::table::{ColumnType, Table, Value};
use crate::core::report::Report;
use crate::settings::Settings;

/// Columns of `SHOW DNS_HOSTS`. The operating system resolves host names: there is no cache to show.
pub(super) const DNS_HOSTS: &[(&str, ColumnType)] = &[("hostname", Text), ("ttl", Number), ("addrs", Text)];
/// Columns of `SHOW DNS_ZONES`, empty for the same reason.
pub(super) const DNS_ZONES: &[(&str, ColumnType)] = &[("zonename", Text), ("serial", Number), ("count", Number)];
/// Columns of `SHOW PEER_POOLS`. A cancel request to another proxy uses a connection of its own, and no place in a pool.
pub(super) const PEER_POOLS: &[(&str, ColumnType)] = &[
    ("peer_id", Number),
    ("cl_active_cancel_req", Number),
    ("cl_waiting_cancel_req", Number),
    ("sv_active_cancel", Number),
    ("sv_login", Number),
];

/// Columns of `SHOW SOCKETS` beyond `SHOW CLIENTS` and `SHOW SERVERS`: bytes received but not yet handled, and bytes to be sent.
const BUFFERED: &[(&str, ColumnType)] = &[
    ("recv_pos", Number),
    ("pkt_pos", Number),
    ("pkt_remain", Number),
    ("send_pos", Number),
    ("send_remain", Number),
    ("pkt_avail", Number),
    ("send_avail", Number),
];

/// Returns a table of all sockets, or with `active` of those that are not idle.
pub(super) fn sockets(scene: &Scene<'_>, active: bool) -> Table {
    let columns: Vec<_> = CONNECTION.iter().chain(BUFFERED).copied().collect();
    let mut table = Table::new(&columns);
    for report in scene.reports {
        let clients = report.clients.iter().map(|c| (c.state, c.buffered, scene.client(report.worker, c)));
        let servers = report.servers.iter().map(|s| (s.state, s.buffered, scene.server(report.worker, s)));
        for (state, (received, unsent), mut row) in clients.chain(servers) {
            if active && state == "idle" {
                continue;
            }
            let none = 0usize;
            row.extend([received, none, none, none, unsent, received, unsent].map(Value::from));
            table.row(row);
        }
    }
    table
}

/// Returns a table of the sockets' file descriptors. Cancel keys are secrets, and not shown.
pub(super) fn fds(reports: &[Report]) -> Table {
    let mut table = Table::new(&[
        ("fd", Number),
        ("task", Text),
        ("user", Text),
        ("database", Text),
        ("addr", Text),
        ("port", Number),
        ("cancel", Number),
        ("link", Number),
    ]);
    for report in reports {
        let fd = |fd: Option<i32>| Value::from(fd.and_then(|fd| u64::try_from(fd).ok()));
        let clients: HashMap<_, _> = report.clients.iter().map(|c| (public_id(report.worker, c.token), c.fd)).collect();
        let servers: HashMap<_, _> = report.servers.iter().map(|s| (public_id(report.worker, s.token), s.fd)).collect();
        for client in &report.clients {
            let (address, port) = place(client.address);
            let link =
                client.server.and_then(|server| servers.get(&public_id(report.worker, server)).copied()).flatten();
            let (user, database) = ((*client.user).into(), (*client.database).into());
            table.row(vec![fd(client.fd), "client".into(), user, database, address, port, Value::Null, fd(link)]);
        }
        for server in &report.servers {
            let (address, port) = place(server.address);
            let link =
                server.client.and_then(|client| clients.get(&public_id(report.worker, client)).copied()).flatten();
            let (user, database) = ((*server.user).into(), (*server.database).into());
            table.row(vec![fd(server.fd), "server".into(), user, database, address, port, Value::Null, fd(link)]);
        }
    }
    table
}

/// Returns a table of the allocated memory of all workers.
pub(super) fn memory(reports: &[Report]) -> Table {
    let mut table =
        Table::new(&[("name", Text), ("size", Number), ("used", Number), ("free", Number), ("memtotal", Number)]);
    let Some(first) = reports.first() else { return table };
    for kind in &first.memory {
        let all = || reports.iter().flat_map(|report| &report.memory).filter(|other| other.name == kind.name);
        let (used, free) = (all().map(|m| m.used).sum::<usize>(), all().map(|m| m.free).sum::<usize>());
        let total = (used + free).saturating_mul(kind.size);
        table.row(vec![kind.name.into(), kind.size.into(), used.into(), free.into(), total.into()]);
    }
    table
}

/// Returns a table of the other proxies.
pub(super) fn peers(settings: &Settings) -> Table {
    let mut table = Table::new(&[("peer_id", Number), ("host", Text), ("port", Number), ("pool_size", Number)]);
    let mut peers: Vec<_> = settings.peers.iter().collect();
    peers.sort_by_key(|(id, _)| **id);
    for (id, address) in peers {
        let (host, port) = match address {
            Address::Tcp(address) => (address.ip().to_string(), Some(u64::from(address.port()))),
            Address::Unix(path) => (path.display().to_string(), None),
        };
        table.row(vec![u64::from(*id).into(), host.into(), port.into(), Value::Null]);
    }
    table
}
