//! The tables of `SHOW`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use ::settings::{Limit, Takes};
use topology::{Address, Role, Topology, View};

use super::command::{ACTIONS, SHOWS, Show};
use super::table::ColumnType::{Number, Text};
use super::table::{ColumnType, Table, Value};
use super::{PERIOD, durable, inside, limits};
use crate::config::shown_name;
use crate::core::Registry;
use crate::core::paused::Paused;
use crate::core::report::{ClientReport, ConnectError, PoolReport, Report, ServerReport, Totals};
use crate::core::statistics::{self, Counts};
use crate::core::token::Token;
use crate::metrics::{Metrics, Snapshot};
use crate::settings::Settings;
use crate::traffic::{self, Traffic};

/// Sources of all tables.
pub(super) struct Scene<'a> {
    pub(super) reports: &'a [Report],
    pub(super) settings: &'a Settings,
    pub(super) topology: &'a Topology,
    pub(super) traffic: &'a Traffic,
    pub(super) registry: &'a Registry,
    pub(super) view: &'a View,
    pub(super) metrics: &'a [Arc<Metrics>],
    pub(super) averages: &'a Averages,
    pub(super) workers: usize,
    pub(super) driver: &'static str,
    pub(super) now: Instant,
    /// Remaining time of the lease by which everything is paused.
    pub(super) lease: Option<Duration>,
    /// Databases and nodes that operators have paused and disabled.
    pub(super) paused: &'a Paused,
    /// Number of the console that executes the command; `None`: the console of all clusters.
    pub(super) own: Option<u64>,
}

/// Rates of databases per second, averaged over the last full period.
#[derive(Debug)]
pub(super) struct Averages {
    since: Instant,
    before: BTreeMap<Arc<str>, Totals>,
    /// By database: the counts of the last period, and its length.
    last: BTreeMap<Arc<str>, (Totals, Duration)>,
}

/// Returns a connection's number in `SHOW`: unique over the workers of all clusters, and positive as an int8. From the highest bit on: 0, 8 bits of
/// worker, 1 of the kind, 24 of the generation, 30 of the slot.
pub(super) fn public_id(worker: usize, token: Token) -> u64 {
    // From the token: its kind is in the bits from 56 on (1 to 3), its generation in those from 32 on.
    let (kind, generation, slot) = (token.raw() >> 56 & 1, token.raw() >> 32 & 0xff_ffff, token.raw() & 0x3fff_ffff);
    (worker as u64 & 0xff) << 55 | kind << 54 | generation << 30 | slot
}

// === impl Averages ===

impl Averages {
    pub(super) fn new(now: Instant) -> Averages {
        Averages { since: now, before: BTreeMap::new(), last: BTreeMap::new() }
    }

    /// Returns the time until the next sample.
    pub(super) fn due_in(&self, now: Instant) -> Duration {
        PERIOD.saturating_sub(now.saturating_duration_since(self.since))
    }

    pub(super) fn sample(&mut self, reports: &[Report], now: Instant) {
        let time = now.saturating_duration_since(self.since);
        let totals = by_database(reports);
        self.last = totals
            .iter()
            .map(|(name, now)| {
                let before = self.before.get(name).copied().unwrap_or_default();
                (name.clone(), (difference(*now, before), time))
            })
            .collect();
        self.before = totals;
        self.since = now;
    }
}

fn difference(now: Totals, before: Totals) -> Totals {
    Totals {
        assignments: now.assignments.saturating_sub(before.assignments),
        transactions: now.transactions.saturating_sub(before.transactions),
        queries: now.queries.saturating_sub(before.queries),
        received: now.received.saturating_sub(before.received),
        sent: now.sent.saturating_sub(before.sent),
        transaction_micros: now.transaction_micros.saturating_sub(before.transaction_micros),
        query_micros: now.query_micros.saturating_sub(before.query_micros),
        wait_micros: now.wait_micros.saturating_sub(before.wait_micros),
        client_parses: now.client_parses.saturating_sub(before.client_parses),
        server_parses: now.server_parses.saturating_sub(before.server_parses),
        binds: now.binds.saturating_sub(before.binds),
        logins: now.logins.saturating_sub(before.logins),
    }
}

fn by_database(reports: &[Report]) -> BTreeMap<Arc<str>, Totals> {
    let mut totals: BTreeMap<Arc<str>, Totals> = BTreeMap::new();
    for pool in reports.iter().flat_map(|report| &report.pools) {
        *totals.entry(pool.database.clone()).or_default() += pool.totals;
    }
    totals
}

/// Returns the client with this number, and its worker.
pub(super) fn client_of(reports: &[Report], id: u64) -> Option<(usize, Token)> {
    let mut clients =
        reports.iter().flat_map(|report| report.clients.iter().map(|client| (report.worker, client.token)));
    clients.find(|(worker, token)| public_id(*worker, *token) == id)
}

/// Merges the workers' parts of each pool.
pub(super) fn wholes(reports: &[Report]) -> Vec<PoolReport> {
    let mut wholes: BTreeMap<(Arc<str>, Arc<str>), PoolReport> = BTreeMap::new();
    for pool in reports.iter().flat_map(|report| &report.pools) {
        match wholes.entry((pool.database.clone(), pool.user.clone())) {
            Entry::Vacant(entry) => {
                entry.insert(pool.clone());
            }
            Entry::Occupied(mut entry) => add(entry.get_mut(), pool),
        }
    }
    wholes.into_values().collect()
}

/// Adds another worker's part to a pool: counts are added; of waits the longest is kept, of errors the last.
fn add(sum: &mut PoolReport, pool: &PoolReport) {
    // Each field is named, so that a new one is not forgotten.
    let PoolReport {
        database: _,
        user: _,
        mode: _,
        paused,
        clients,
        waiting,
        oldest_wait,
        busy,
        idle,
        connecting,
        cancelling,
        connect_error,
        gate,
        totals,
    } = pool;
    sum.paused |= paused;
    sum.clients += clients;
    sum.waiting += waiting;
    sum.oldest_wait = sum.oldest_wait.max(*oldest_wait);
    sum.busy += busy;
    sum.idle += idle;
    sum.connecting += connecting;
    sum.cancelling += cancelling;
    let errors = [sum.connect_error.take(), connect_error.clone()].into_iter().flatten();
    sum.connect_error = errors.max_by_key(|error| error.at);
    durable::add(&mut sum.gate, *gate);
    sum.totals += *totals;
}

/// Columns that `SHOW CLIENTS` and `SHOW SERVERS` have in common, as in PgBouncer.
pub(super) const CONNECTION: &[(&str, ColumnType)] = &[
    ("type", Text),
    ("user", Text),
    ("database", Text),
    ("replication", Text),
    ("state", Text),
    ("addr", Text),
    ("port", Number),
    ("local_addr", Text),
    ("local_port", Number),
    ("connect_time", Text),
    ("request_time", Text),
    ("wait", Number),
    ("wait_us", Number),
    ("close_needed", Number),
    ("ptr", Text),
    ("link", Text),
    ("remote_pid", Number),
    ("tls", Text),
    ("application_name", Text),
    ("prepared_statements", Number),
    ("id", Number),
];

/// A count of the `SHOW STATS*` tables and of `SHOW TOTALS`, under PgBouncer's names: they differ by table.
struct Count {
    /// Columns of `SHOW STATS`: the total and the average.
    stats: [&'static str; 2],
    /// Column of `SHOW STATS_TOTALS`.
    total: &'static str,
    /// Column of `SHOW STATS_AVERAGES`.
    average: &'static str,
    /// Rows of `SHOW TOTALS`: the total and the average.
    rows: [&'static str; 2],
    count: fn(&Totals) -> u64,
    /// For an average of time per thing: the number of things; `None`: the average is per second.
    per: Option<fn(&Totals) -> u64>,
}

/// A count whose names are regular.
macro_rules! count {
    ($name:literal, $count:expr, $per:expr) => {
        Count {
            stats: [concat!("total_", $name), concat!("avg_", $name)],
            total: $name,
            average: $name,
            rows: [concat!("total_", $name), concat!("avg_", $name)],
            count: $count,
            per: $per,
        }
    };
}

const COUNTS: &[Count] = &[
    count!("server_assignment_count", |t| t.assignments, None),
    count!("xact_count", |t| t.transactions, None),
    count!("query_count", |t| t.queries, None),
    Count {
        stats: ["total_received", "avg_recv"],
        rows: ["total_client_bytes", "avg_client_bytes"],
        ..count!("bytes_received", |t| t.received, None)
    },
    Count {
        stats: ["total_sent", "avg_sent"],
        rows: ["total_server_bytes", "avg_server_bytes"],
        ..count!("bytes_sent", |t| t.sent, None)
    },
    count!("xact_time", |t| t.transaction_micros, Some(|t| t.transactions)),
    count!("query_time", |t| t.query_micros, Some(|t| t.queries)),
    count!("wait_time", |t| t.wait_micros, Some(|t| t.assignments)),
    Count {
        average: "avg_client_parse_count",
        rows: ["total_ps_client_parse_count", "avg_ps_client_parse_count"],
        ..count!("client_parse_count", |t| t.client_parses, None)
    },
    Count {
        average: "avg_server_parse_count",
        rows: ["total_ps_server_parse_count", "avg_ps_server_parse_count"],
        ..count!("server_parse_count", |t| t.server_parses, None)
    },
    Count {
        average: "avg_bind_count",
        rows: ["total_ps_bind_count", "avg_ps_bind_count"],
        ..count!("bind_count", |t| t.binds, None)
    },
    Count { average: "avg_client_login_count", ..count!("client_login_count", |t| t.logins, None) },
];

// === impl Scene ===

impl Scene<'_> {
    /// Returns the table for this `SHOW`.
    pub(super) fn table(&self, show: Show) -> Table {
        match show {
            Show::Help => help(),
            Show::Version => {
                let mut table = Table::new(&[("version", Text)]);
                table.row(vec![concat!("Kingpost ", env!("CARGO_PKG_VERSION")).into()]);
                table
            }
            Show::Databases => self.databases(),
            Show::Pools => self.pools(),
            Show::Clients => self.connections(true),
            Show::Servers => self.connections(false),
            Show::Sockets => inside::sockets(self, false),
            Show::ActiveSockets => inside::sockets(self, true),
            Show::Fds => inside::fds(self.reports),
            Show::Memory => inside::memory(self.reports),
            Show::DnsHosts => Table::new(inside::DNS_HOSTS),
            Show::DnsZones => Table::new(inside::DNS_ZONES),
            Show::Peers => inside::peers(self.settings),
            Show::PeerPools => Table::new(inside::PEER_POOLS),
            Show::Stats => self.stats(true, true),
            Show::StatsTotals => self.stats(true, false),
            Show::StatsAverages => self.stats(false, true),
            Show::Totals => self.totals(),
            Show::Lists => self.lists(),
            Show::Users => self.users(),
            Show::Config => self.config(),
            Show::Nodes => self.nodes(),
            Show::Gate => durable::gate(&wholes(self.reports), self.topology),
            Show::Relays => durable::relays(&self.topology.relays()),
            Show::Lanes => self.lanes(),
            Show::Pins => self.pins(),
            Show::Prepared => self.prepared(),
            Show::Statements => statements(self.reports),
            Show::State => self.state(),
            Show::Traffic => limits::table(self.traffic.report(self.now)),
        }
    }

    fn databases(&self) -> Table {
        let mut table = Table::new(&[
            ("name", Text),
            ("host", Text),
            ("port", Number),
            ("database", Text),
            ("force_user", Text),
            ("pool_size", Number),
            ("min_pool_size", Number),
            ("reserve_pool_size", Number),
            ("server_lifetime", Number),
            ("pool_mode", Text),
            ("load_balance_hosts", Text),
            ("max_connections", Number),
            ("current_connections", Number),
            ("max_client_connections", Number),
            ("current_client_connections", Number),
            ("paused", Number),
            ("disabled", Number),
            ("consistency", Text),
            ("route", Text),
            ("transaction_reads", Text),
        ]);
        let wholes = wholes(self.reports);
        let mut names: Vec<&str> = self.settings.databases().map(|(name, _)| name).collect();
        names.extend(wholes.iter().map(|whole| &*whole.database));
        names.sort_unstable();
        names.dedup();
        let (host, port) = match self.view.primary_node().map(|node| &node.address) {
            Some(Address::Tcp(address)) => (Some(address.ip().to_string()), Some(u64::from(address.port()))),
            Some(Address::Unix(path)) => (Some(path.display().to_string()), None),
            None => (None, None),
        };
        for name in names {
            let Some(database) = self.settings.database(name) else { continue };
            let of: Vec<&PoolReport> = wholes.iter().filter(|whole| *whole.database == *name).collect();
            let servers: usize = of.iter().map(|pool| pool.busy + pool.idle + pool.connecting).sum();
            let clients: usize = of.iter().map(|pool| pool.clients).sum();
            table.row(vec![
                name.into(),
                host.clone().into(),
                port.into(),
                database.dbname.as_deref().unwrap_or(name).into(),
                database.server_user.as_ref().map(|user| user.name.to_string()).into(),
                database.pool_size.into(),
                database.min_size.into(),
                database.reserve.into(),
                database.server_lifetime.map_or(0, |lifetime| lifetime.least.as_secs()).into(),
                database.mode.name().into(),
                Value::Null,
                database.max_connections.unwrap_or(0).into(),
                servers.into(),
                database.max_clients.unwrap_or(self.settings.max_clients).into(),
                clients.into(),
                // A database without pools is paused as well.
                u64::from(self.paused.has(name) || of.iter().any(|pool| pool.paused)).into(),
                u64::from(self.paused.is_disabled(name)).into(),
                database.consistency.name().into(),
                database.route.name().into(),
                database.transaction_reads.name().into(),
            ]);
        }
        table
    }

    fn pools(&self) -> Table {
        let mut table = Table::new(&[
            ("database", Text),
            ("user", Text),
            ("cl_active", Number),
            ("cl_waiting", Number),
            ("cl_active_cancel_req", Number),
            ("cl_waiting_cancel_req", Number),
            ("sv_active", Number),
            ("sv_active_cancel", Number),
            ("sv_being_canceled", Number),
            ("sv_idle", Number),
            ("sv_used", Number),
            ("sv_tested", Number),
            ("sv_login", Number),
            ("maxwait", Number),
            ("maxwait_us", Number),
            ("pool_mode", Text),
            ("load_balance_hosts", Text),
            ("connect_error", Text),
            ("connect_error_age", Number),
        ]);
        let age = |error: &ConnectError| self.now.saturating_duration_since(error.at).as_secs();
        for pool in wholes(self.reports) {
            table.row(vec![
                (*pool.database).into(),
                (*pool.user).into(),
                (pool.clients - pool.waiting.min(pool.clients)).into(),
                pool.waiting.into(),
                0usize.into(),
                0usize.into(),
                pool.busy.into(),
                0usize.into(),
                pool.cancelling.into(),
                pool.idle.into(),
                0usize.into(),
                0usize.into(),
                pool.connecting.into(),
                pool.oldest_wait.as_secs().into(),
                u64::from(pool.oldest_wait.subsec_micros()).into(),
                pool.mode.name().into(),
                Value::Null,
                pool.connect_error.as_ref().map(|error| &*error.text).into(),
                pool.connect_error.as_ref().map(age).into(),
            ]);
        }
        table
    }

    fn connections(&self, clients: bool) -> Table {
        let mut table = Table::new(CONNECTION);
        for report in self.reports {
            if clients {
                for client in &report.clients {
                    table.row(self.client(report.worker, client));
                }
            }
            if !clients {
                for server in &report.servers {
                    table.row(self.server(report.worker, server));
                }
            }
        }
        table
    }

    pub(super) fn client(&self, worker: usize, client: &ClientReport) -> Vec<Value> {
        let waits = client.since.filter(|_| client.state == "waiting").map(|since| self.now.duration_since(since));
        let waits = waits.unwrap_or_default();
        let (address, port) = place(client.address);
        let (local, local_port) = place(client.local);
        let id = public_id(worker, client.token);
        vec![
            "C".into(),
            (*client.user).into(),
            (*client.database).into(),
            client.replication.into(),
            client.state.into(),
            address,
            port,
            local,
            local_port,
            wall(client.connected, self.now).into(),
            client.since.map(|since| wall(since, self.now)).into(),
            waits.as_secs().into(),
            u64::from(waits.subsec_micros()).into(),
            0usize.into(),
            format!("{id:#x}").into(),
            client.server.map_or(String::new(), |server| format!("{:#x}", public_id(worker, server))).into(),
            0usize.into(),
            if client.tls { "TLS" } else { "" }.into(),
            client.application.as_str().into(),
            client.prepared.into(),
            id.into(),
        ]
    }

    pub(super) fn server(&self, worker: usize, server: &ServerReport) -> Vec<Value> {
        let (address, port) = place(server.address);
        let (local, local_port) = place(server.local);
        let id = public_id(worker, server.token);
        vec![
            "S".into(),
            (*server.user).into(),
            (*server.database).into(),
            server.replication.into(),
            server.state.into(),
            address,
            port,
            local,
            local_port,
            wall(server.connected, self.now).into(),
            wall(server.since, self.now).into(),
            0usize.into(),
            0usize.into(),
            u64::from(server.state == "closing").into(),
            format!("{id:#x}").into(),
            server.client.map_or(String::new(), |client| format!("{:#x}", public_id(worker, client))).into(),
            u64::from(server.pid).into(),
            if server.tls { "TLS" } else { "" }.into(),
            server.application.as_str().into(),
            server.prepared.len().into(),
            id.into(),
        ]
    }

    fn stats(&self, totals: bool, averages: bool) -> Table {
        let mut columns = vec![("database", Text)];
        match (totals, averages) {
            (true, true) => {
                columns.extend(COUNTS.iter().map(|count| (count.stats[0], Number)));
                columns.extend(COUNTS.iter().map(|count| (count.stats[1], Number)));
            }
            (true, false) => columns.extend(COUNTS.iter().map(|count| (count.total, Number))),
            _ => columns.extend(COUNTS.iter().map(|count| (count.average, Number))),
        }
        let mut table = Table::new(&columns);
        for (name, total) in by_database(self.reports) {
            let mut row = vec![Value::from(&*name)];
            if totals {
                row.extend(COUNTS.iter().map(|each| Value::from((each.count)(&total))));
            }
            if averages {
                let (done, time) = self.averages.last.get(&name).copied().unwrap_or_default();
                row.extend(averages_of(&done, time).into_iter().map(Value::from));
            }
            table.row(row);
        }
        table
    }

    /// Returns the sums over all databases, a row for each count.
    fn totals(&self) -> Table {
        let mut table = Table::new(&[("name", Text), ("value", Number)]);
        let mut total = Totals::default();
        by_database(self.reports).values().for_each(|of_one| total += *of_one);
        let (mut done, mut time) = (Totals::default(), Duration::ZERO);
        for (of_one, over) in self.averages.last.values() {
            done += *of_one;
            time = *over;
        }
        for each in COUNTS {
            table.row(vec![each.rows[0].into(), (each.count)(&total).into()]);
        }
        for (each, average) in COUNTS.iter().zip(averages_of(&done, time)) {
            table.row(vec![each.rows[1].into(), average.into()]);
        }
        table
    }

    fn lists(&self) -> Table {
        let mut table = Table::new(&[("list", Text), ("items", Number)]);
        let wholes = wholes(self.reports);
        let sum = |count: fn(&PoolReport) -> usize| wholes.iter().map(count).sum::<usize>();
        let mut databases: Vec<&str> = wholes.iter().map(|whole| &*whole.database).collect();
        databases.extend(self.settings.databases().map(|(name, _)| name));
        databases.sort_unstable();
        databases.dedup();
        let logins: usize = self.reports.iter().map(|report| report.logging_in).sum();
        for (name, items) in [
            ("databases", databases.len()),
            ("users", self.settings.users().count()),
            ("peers", self.settings.peers.len()),
            ("pools", wholes.len()),
            ("peer_pools", 0),
            ("free_clients", 0),
            ("used_clients", sum(|pool| pool.clients)),
            ("login_clients", logins),
            ("free_servers", sum(|pool| pool.idle)),
            ("used_servers", sum(|pool| pool.busy + pool.connecting + pool.cancelling)),
            ("dns_names", 0),
            ("dns_zones", 0),
            ("dns_queries", 0),
            ("dns_pending", 0),
            ("nodes", self.view.nodes.len()),
            ("workers", self.workers),
        ] {
            table.row(vec![name.into(), items.into()]);
        }
        table
    }

    fn users(&self) -> Table {
        let mut table = Table::new(&[
            ("name", Text),
            ("pool_size", Number),
            ("reserve_pool_size", Number),
            ("pool_mode", Text),
            ("max_user_connections", Number),
            ("current_connections", Number),
            ("max_user_client_connections", Number),
            ("current_client_connections", Number),
            ("role", Text),
        ]);
        let wholes = wholes(self.reports);
        let mut users: Vec<_> = self.settings.users().collect();
        users.sort_by_key(|(name, _)| *name);
        for (name, user) in users {
            let of = || wholes.iter().filter(|pool| *pool.user == *name);
            let most = user.max_connections.map_or(self.settings.max_user_connections, Limit::get);
            table.row(vec![
                name.into(),
                user.pool_size.into(),
                user.reserve.into(),
                user.mode.map(|mode| mode.name()).into(),
                most.unwrap_or(0).into(),
                of().map(|pool| pool.busy + pool.idle + pool.connecting).sum::<usize>().into(),
                self.settings.most_clients_of(name).unwrap_or(0).into(),
                of().map(|pool| pool.clients).sum::<usize>().into(),
                "user".into(),
            ]);
        }
        // Users that were looked up, or came by trust, and have a pool now.
        let mut others: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for pool in wholes.iter().filter(|pool| self.settings.user(&pool.user).is_none()) {
            let (servers, clients) = others.entry(&pool.user).or_default();
            *servers += pool.busy + pool.idle + pool.connecting;
            *clients += pool.clients;
        }
        for (name, (servers, clients)) in others {
            table.row(vec![
                name.into(),
                Value::Null,
                Value::Null,
                Value::Null,
                self.settings.max_user_connections.unwrap_or(0).into(),
                servers.into(),
                self.settings.most_clients_of(name).unwrap_or(0).into(),
                clients.into(),
                "user".into(),
            ]);
        }
        let mut operators: Vec<_> = self.settings.operators().collect();
        operators.sort_by_key(|(name, _)| *name);
        for (name, operator) in operators {
            let mut row = vec![Value::from(name)];
            row.extend(std::iter::repeat_n(Value::Null, table.columns.len() - 2));
            row.push(operator.access.name().into());
            table.row(row);
        }
        table
    }

    fn config(&self) -> Table {
        let mut table = Table::new(&[("key", Text), ("value", Text), ("default", Text), ("changeable", Text)]);
        for row in self.settings.rows.iter().chain(&self.topology.settings()) {
            // In use: a number of workers, and one of two interfaces.
            let value = match row.path.as_str() {
                "proxy.workers" => Some(self.workers.to_string()),
                "proxy.driver" => Some(self.driver.to_owned()),
                _ => row.value.clone(),
            };
            let changeable = if row.takes == Takes::Live { "yes" } else { "no" };
            table.row(vec![shown_name(row).into(), value.into(), row.default.clone().into(), changeable.into()]);
        }
        table
    }

    fn nodes(&self) -> Table {
        let mut table = Table::new(&[
            ("name", Text),
            ("address", Text),
            ("role", Text),
            ("usable", Text),
            ("replayed", Text),
            ("lag_ms", Number),
            ("lag_bytes", Number),
            ("weight", Text),
            ("zone", Text),
            ("settings_differ", Text),
            ("settings_used", Text),
        ]);
        for node in &self.view.nodes {
            let role = match node.role {
                Role::Unknown => "unknown",
                Role::Primary => "primary",
                Role::Replica => "replica",
                Role::Stale => "stale",
            };
            let differ = self.registry.differences(node.node.id);
            let used = match (differ.refused, differ.names.is_empty()) {
                (true, _) => Some("refused"),
                (false, false) => Some("primary"),
                (false, true) => None,
            };
            table.row(vec![
                node.node.name.as_str().into(),
                written(&node.address).into(),
                role.into(),
                if node.usable { "yes" } else { "no" }.into(),
                node.node.replayed.get().to_string().into(),
                node.node.lag_ms.load(Ordering::Relaxed).into(),
                node.node.lag_bytes.load(Ordering::Relaxed).into(),
                format!("{}", f64::from(node.weight) / f64::from(topology::WEIGHT_SCALE)).into(),
                node.zone.as_deref().into(),
                (!differ.names.is_empty()).then(|| differ.names.join(", ")).as_deref().into(),
                used.into(),
            ]);
        }
        table
    }

    fn lanes(&self) -> Table {
        let mut table = Table::new(&[
            ("database", Text),
            ("user", Text),
            ("node", Text),
            ("worker", Number),
            ("server_id", Number),
            ("remote_pid", Number),
            ("statements", Number),
            ("admitted", Number),
            ("running_us", Number),
            ("state", Text),
            ("width", Number),
        ]);
        for report in self.reports {
            for server in &report.servers {
                let Some(lane) = server.lane else { continue };
                let running = self.now.saturating_duration_since(lane.since).as_micros() as u64;
                table.row(vec![
                    (*server.database).into(),
                    (*server.user).into(),
                    self.view.node(server.node).map_or("", |node| node.node.name.as_str()).into(),
                    report.worker.into(),
                    public_id(report.worker, server.token).into(),
                    u64::from(server.pid).into(),
                    lane.statements.into(),
                    u64::from(lane.admitted).into(),
                    running.into(),
                    if lane.closed { "closed" } else { "open" }.into(),
                    lane.width.into(),
                ]);
            }
        }
        table
    }

    fn pins(&self) -> Table {
        let mut table = Table::new(&[
            ("reason", Text),
            ("clients", Number),
            ("total", Number),
            ("database", Text),
            ("user", Text),
            ("id", Number),
        ]);
        // First the counts by reason, then the clients.
        let snapshot = Snapshot::of(self.metrics.iter().map(|metrics| &**metrics));
        let pinned: Vec<(usize, &ClientReport)> = self
            .reports
            .iter()
            .flat_map(|report| report.clients.iter().map(|client| (report.worker, client)))
            .filter(|(_, client)| !client.pins.is_empty())
            .collect();
        for (reason, total) in &snapshot.pins {
            let now = pinned.iter().filter(|(_, client)| client.pinned_by().any(|name| name == *reason)).count();
            table.row(vec![(*reason).into(), now.into(), (*total).into(), Value::Null, Value::Null, Value::Null]);
        }
        for (worker, client) in pinned {
            for reason in client.pinned_by() {
                table.row(vec![
                    reason.into(),
                    1usize.into(),
                    Value::Null,
                    (*client.database).into(),
                    (*client.user).into(),
                    public_id(worker, client.token).into(),
                ]);
            }
        }
        table
    }

    fn prepared(&self) -> Table {
        let mut table = Table::new(&[("name", Text), ("servers", Number), ("database", Text), ("user", Text)]);
        let mut counts: BTreeMap<(u64, &str, &str), u64> = BTreeMap::new();
        for server in self.reports.iter().flat_map(|report| &report.servers) {
            for id in &server.prepared {
                *counts.entry((*id, &server.database, &server.user)).or_default() += 1;
            }
        }
        for ((id, database, user), servers) in counts {
            let name = crate::core::StatementName::of(id).to_string();
            table.row(vec![name.into(), servers.into(), database.into(), user.into()]);
        }
        table
    }

    fn state(&self) -> Table {
        let mut table = Table::new(&[("key", Text), ("value", Text)]);
        let pools = wholes(self.reports);
        let all = self.paused.has_all() || (!pools.is_empty() && pools.iter().all(|whole| whole.paused));
        let any = self.paused.has_any() || pools.iter().any(|whole| whole.paused);
        let yes = |yes: bool| if yes { "yes" } else { "no" };
        let suspended = self.reports.iter().any(|report| report.suspended.is_some());
        table.row(vec!["active".into(), yes(!any && !suspended).into()]);
        table.row(vec!["paused".into(), yes(all).into()]);
        table.row(vec!["suspended".into(), yes(suspended).into()]);
        let lease = self.lease.map(|left| left.as_secs().to_string()).unwrap_or_default();
        table.row(vec!["pause_lease".into(), lease.into()]);
        table.row(vec!["own_id".into(), self.own.map(|own| own.to_string()).into()]);
        table
    }
}

/// Returns the averages of `done` over `time`: each of [`COUNTS`] per second, or per thing.
fn averages_of(done: &Totals, time: Duration) -> Vec<u64> {
    let average = |each: &Count| match each.per {
        Some(things) => (each.count)(done).checked_div(things(done)).unwrap_or(0),
        None => {
            let micros = (time.as_micros() as u64).max(1);
            (u128::from((each.count)(done)) * 1_000_000 / u128::from(micros)) as u64
        }
    };
    COUNTS.iter().map(average).collect()
}

/// Statements that `SHOW STATEMENTS` lists.
const MOST_STATEMENTS: usize = 500;

/// A statement's counts over all workers.
pub(super) struct Sum<'a> {
    /// The text without its literals.
    pub(super) shown: String,
    /// A text that is shown like that, if it is kept.
    text: Option<&'a statistics::Text>,
    pub(super) counts: Counts,
}

/// Returns the counts of statements over all workers, by their texts without literals, those that have taken longest together first.
pub(super) fn sums_of_statements(reports: &[Report]) -> Vec<Sum<'_>> {
    let mut sums: BTreeMap<String, (Option<&statistics::Text>, Counts)> = BTreeMap::new();
    for statement in reports.iter().flat_map(|report| &report.statements) {
        let shown = statement.text.as_ref().map_or_else(|| "(others)".to_owned(), statistics::Text::show);
        let (text, counts) = sums.entry(shown).or_default();
        *text = text.or(statement.text.as_ref());
        *counts += statement.counts;
    }
    let mut sums: Vec<Sum<'_>> = sums.into_iter().map(|(shown, (text, counts))| Sum { shown, text, counts }).collect();
    sums.sort_by_key(|sum| std::cmp::Reverse(sum.counts.micros));
    sums
}

fn statements(reports: &[Report]) -> Table {
    let mut sums = sums_of_statements(reports);
    sums.truncate(MOST_STATEMENTS);
    let mut table = Table::new(&[
        ("calls", Number),
        ("total_us", Number),
        ("mean_us", Number),
        ("max_us", Number),
        ("rows", Number),
        ("errors", Number),
        ("on_primary", Number),
        ("on_replicas", Number),
        ("statement", Text),
        ("fingerprint", Text),
    ]);
    for Sum { shown, text, counts } in sums {
        table.row(vec![
            counts.calls.into(),
            counts.micros.into(),
            counts.micros.checked_div(counts.calls).unwrap_or(0).into(),
            counts.longest.into(),
            counts.rows.into(),
            counts.errors.into(),
            counts.primary.into(),
            counts.calls.saturating_sub(counts.primary).into(),
            shown.into(),
            text.and_then(statistics::Text::fingerprint).map(traffic::digits).into(),
        ]);
    }
    table
}

fn written(address: &Address) -> String {
    match address {
        Address::Tcp(address) => address.to_string(),
        Address::Unix(path) => path.display().to_string(),
    }
}

fn help() -> Table {
    let mut table = Table::new(&[("command", Text), ("what", Text)]);
    for (name, _, what) in SHOWS {
        table.row(vec![format!("SHOW {name}").into(), (*what).into()]);
    }
    for (command, what) in ACTIONS {
        table.row(vec![(*command).into(), (*what).into()]);
    }
    table
}

pub(super) fn place(address: Option<SocketAddr>) -> (Value, Value) {
    match address {
        Some(address) => (address.ip().to_string().into(), u64::from(address.port()).into()),
        None => ("unix".into(), 0u64.into()),
    }
}

/// Returns a moment in UTC, to the second.
fn wall(at: Instant, now: Instant) -> String {
    let then = SystemTime::now() - now.saturating_duration_since(at);
    humantime::format_rfc3339_seconds(then).to_string().replace('T', " ").replace('Z', " UTC")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{PoolMode, ProxyConfig};
    use crate::console::Operation;
    use crate::core::token::Kind;

    fn pool(database: &str, user: &str, waiting: usize, totals: Totals) -> PoolReport {
        PoolReport {
            database: database.into(),
            user: user.into(),
            mode: PoolMode::Transaction,
            paused: false,
            clients: waiting + 2,
            waiting,
            oldest_wait: Duration::from_millis(1500 * waiting as u64),
            busy: 1,
            idle: 2,
            connecting: 0,
            cancelling: 0,
            connect_error: None,
            gate: None,
            totals,
        }
    }

    fn reports() -> Vec<Report> {
        let totals = |n| Totals { queries: 10 * n, query_micros: 5000 * n, transactions: n, ..Totals::default() };
        vec![
            Report { worker: 0, pools: vec![pool("shop", "app", 1, totals(1))], ..Report::default() },
            Report {
                worker: 1,
                pools: vec![pool("shop", "app", 0, totals(2)), pool("shop", "batch", 0, totals(4))],
                ..Report::default()
            },
        ]
    }

    fn table(show: Show, reports: &[Report], averages: &Averages) -> Table {
        let settings = Settings::new(&ProxyConfig::default()).expect("the defaults are good");
        let view = View { epoch: 1, term: topology::Term::default(), primary: None, nodes: Vec::new() };
        let topology = Topology::fixed(view);
        let view = topology.view();
        let now = Instant::now();
        let own = Some(public_id(0, Token::new(Kind::Client, 1, 0)));
        let metrics = &[];
        let mut paused = Paused::default();
        paused.note(&Operation::Disable("shop".into()));
        let scene = Scene {
            reports,
            settings: &settings,
            topology: &topology,
            traffic: &Traffic::new(now),
            registry: &Registry::default(),
            view: &view,
            metrics,
            averages,
            workers: 2,
            driver: "epoll",
            now,
            lease: None,
            paused: &paused,
            own,
        };
        scene.table(show)
    }

    fn column(table: &Table, name: &str) -> Vec<Value> {
        let at = table.columns.iter().position(|(column, _)| *column == name).expect(name);
        table.rows.iter().map(|row| row[at].clone()).collect()
    }

    #[test]
    fn every_table_has_as_many_values_as_columns() {
        let averages = Averages::new(Instant::now());
        for (name, show, _) in SHOWS {
            let table = table(*show, &reports(), &averages);
            assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{name}");
        }
    }

    #[test]
    fn pools_are_added_up_over_workers() {
        let table = table(Show::Pools, &reports(), &Averages::new(Instant::now()));
        assert_eq!(column(&table, "user"), ["app", "batch"].map(Value::from));
        assert_eq!(column(&table, "cl_waiting"), [1u64, 0].map(Value::from));
        assert_eq!(column(&table, "cl_active"), [4u64, 2].map(Value::from));
        assert_eq!(column(&table, "sv_idle"), [4u64, 2].map(Value::from));
        assert_eq!(column(&table, "maxwait"), [1u64, 0].map(Value::from));
        assert_eq!(column(&table, "maxwait_us"), [500_000u64, 0].map(Value::from));
    }

    #[test]
    fn the_last_error_of_all_workers_is_shown() {
        let mut reports = reports();
        let at = Instant::now().checked_sub(Duration::from_secs(90)).expect("a machine that runs for longer");
        let error = |text: &str, later| ConnectError { at: at + Duration::from_secs(later), text: text.into() };
        reports[0].pools[0].connect_error = Some(error("refused", 60));
        reports[1].pools[0].connect_error = Some(error("timed out", 0));
        for reports in [[&reports[0], &reports[1]], [&reports[1], &reports[0]]] {
            let reports = reports.map(|report| Report {
                worker: report.worker,
                pools: report.pools.clone(),
                ..Report::default()
            });
            let table = table(Show::Pools, &reports, &Averages::new(Instant::now()));
            assert_eq!(column(&table, "connect_error"), ["refused".into(), Value::Null]);
            let ages = column(&table, "connect_error_age");
            assert!(matches!(ages[..], [Value::Number(30..90), Value::Null]), "{ages:?}");
        }
    }

    #[test]
    fn stats_are_of_databases_and_averages_of_the_last_period() {
        let start = Instant::now();
        let mut averages = Averages::new(start);
        averages.sample(&[], start);
        averages.sample(&reports(), start + Duration::from_secs(10));
        let stats = table(Show::Stats, &reports(), &averages);
        for (name, expected) in [
            ("total_query_count", 70u64),
            ("total_query_time", 35_000),
            ("avg_query_count", 7),
            ("avg_query_time", 500),
            ("avg_xact_count", 0),
        ] {
            assert_eq!(column(&stats, name), [Value::from(expected)], "{name}");
        }
        averages.sample(&reports(), start + Duration::from_secs(20));
        assert_eq!(column(&table(Show::StatsAverages, &reports(), &averages), "query_count"), [Value::from(0u64)]);
        assert_eq!(column(&table(Show::StatsTotals, &reports(), &averages), "query_count"), [Value::from(70u64)]);
        let totals = table(Show::Totals, &reports(), &averages);
        let at =
            column(&totals, "name").iter().position(|name| *name == Value::from("total_query_count")).expect("a row");
        assert_eq!(column(&totals, "value")[at], Value::from(70u64));
    }

    #[test]
    fn ids_differ_and_are_positive() {
        let mut ids = std::collections::HashSet::new();
        for worker in 0..256 {
            for kind in [Kind::Client, Kind::Server] {
                for (generation, index) in [(0, 0), (1, 0), (0xff_ffff, 1), (0, 0x3fff_ffff)] {
                    let id = public_id(worker, Token::new(kind, generation, index));
                    assert!(i64::try_from(id).is_ok(), "{id:#x}");
                    assert!(ids.insert(id), "{worker} {kind:?} {generation} {index}");
                }
            }
        }
    }
}
