//! The proxy in the web console: its state, and operators' commands.

use std::time::{Duration, Instant};

use ::console::picture::{Client, Clients, PoolNumbers, ProxyNumbers, Statement, Statements};
use ::console::{Action, ProxyPart, Refusal, client_rank};
use proxy::console::{Observer, Operation};
use proxy::metrics::BUCKETS;

/// A running proxy.
pub(crate) struct Observed {
    pub observer: Observer,
    pub addresses: Vec<String>,
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl ProxyPart for Observed {
    fn numbers(&self) -> ProxyNumbers {
        let snapshot = self.observer.metrics();
        let histogram = |wanted: &str| {
            let found = snapshot.histograms.iter().find(|(name, _, _)| *name == wanted);
            found.map(|(_, _, histogram)| histogram.buckets.to_vec()).unwrap_or_default()
        };
        let pairs = |list: &[(&'static str, &'static str, u64)]| {
            list.iter().map(|(name, _, value)| (*name, *value)).collect::<Vec<_>>()
        };
        ProxyNumbers {
            addresses: self.addresses.clone(),
            gauges: pairs(&snapshot.gauges),
            counters: pairs(&snapshot.counters),
            pins: snapshot.pins.clone(),
            statements: histogram("statement_micros"),
            waits: histogram("wait_micros"),
            bounds: &BUCKETS,
        }
    }

    fn pools(&self) -> Vec<PoolNumbers> {
        let pool = |pool: proxy::console::PoolReport| PoolNumbers {
            database: (*pool.database).into(),
            user: (*pool.user).into(),
            mode: pool.mode.name(),
            paused: pool.paused,
            clients: pool.clients,
            waiting: pool.waiting,
            oldest_wait_ms: millis(pool.oldest_wait),
            busy: pool.busy,
            idle: pool.idle,
            connecting: pool.connecting,
            queries: pool.totals.queries,
            transactions: pool.totals.transactions,
            wait_micros: pool.totals.wait_micros,
            query_micros: pool.totals.query_micros,
        };
        self.observer.pools().into_iter().map(pool).collect()
    }

    fn clients(&self, limit: usize) -> Clients {
        let mut all = self.observer.clients();
        let (total, now) = (all.len(), Instant::now());
        // Waiting clients first, then those with the longest running statements.
        all.sort_by_key(|(id, client)| (client_rank(client.state), client.since.unwrap_or(client.connected), *id));
        let shown = all.into_iter().take(limit).map(|(id, client)| Client {
            id: id.to_string(),
            user: (*client.user).into(),
            database: (*client.database).into(),
            state: client.state,
            address: client.address.map(|address| address.to_string()).unwrap_or_default(),
            connected_ms: millis(now.saturating_duration_since(client.connected)),
            since_ms: client.since.map(|since| millis(now.saturating_duration_since(since))),
            pins: client.pinned_by().collect(),
            tls: client.tls,
            application: client.application,
        });
        Clients { clients: shown.collect(), total }
    }

    fn statements(&self, limit: usize) -> Statements {
        let all = self.observer.statements();
        let (total, micros) = (all.len(), all.iter().map(|(_, counts)| counts.micros).sum());
        let statement = |(text, counts): (String, proxy::statistics::Counts)| Statement {
            text,
            calls: counts.calls,
            total_micros: counts.micros,
            longest_micros: counts.longest,
            rows: counts.rows,
            errors: counts.errors,
            on_primary: counts.primary,
        };
        Statements { statements: all.into_iter().take(limit).map(statement).collect(), total, micros }
    }

    fn act(&self, action: &Action) -> Result<String, Refusal> {
        let known = |database: &Option<String>| match database {
            Some(name) if !self.observer.has_database(name) => {
                Err(Refusal::NotFound(format!("no such database: {name:?}")))
            }
            _ => Ok(database.clone()),
        };
        let operate = |operation: Operation| {
            self.observer.operate(&operation).map_err(|error| Refusal::Refused(error.to_string()))
        };
        let of = |database: &Option<String>| database.clone().unwrap_or_else(|| "all databases".into());
        match action {
            Action::Pause { database } => {
                operate(Operation::Pause(known(database)?))?;
                Ok(format!("{} is being paused: transactions end, then clients wait", of(database)))
            }
            Action::Resume { database } => {
                operate(Operation::Resume(known(database)?))?;
                Ok(format!("{} goes on", of(database)))
            }
            Action::Reconnect { database } => {
                operate(Operation::Reconnect(known(database)?))?;
                Ok(format!("server connections of {} are replaced as they become free", of(database)))
            }
            Action::KillClient { id } => {
                let number = id.parse().map_err(|_| Refusal::NotFound(format!("{id:?} is no client's number")))?;
                match self.observer.kill_client(number) {
                    true => Ok(format!("client {id} was closed")),
                    false => Err(Refusal::NotFound(format!("client {id} is not there any more"))),
                }
            }
            Action::Isolate { .. }
            | Action::Restore { .. }
            | Action::Weight { .. }
            | Action::Deregister { .. }
            | Action::RollBack { .. } => Err(Refusal::NotHere("it is the registry's")),
        }
    }

    fn glossary(&self) -> Vec<(&'static str, &'static str)> {
        let snapshot = self.observer.metrics();
        let values = snapshot.counters.iter().chain(&snapshot.gauges);
        values.map(|(name, help, _)| (*name, *help)).collect()
    }
}
