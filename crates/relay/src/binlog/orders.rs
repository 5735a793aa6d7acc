//! Orders of `kingpost failover` to a relay of a binary log: as to one of PostgreSQL, with an epoch of this relay as the timeline.
//!
//! Orders are statements (`KINGPOST FENCE TERM 3 TIMELINE 1`) of an operator; the answer is a row with the relay's state.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ::binlog::Dialect;
use ::binlog::gtid::State;
use ::binlog::protocol::reply::Row;
use tracing::info;
use watermark::{Parker, Waited};
use wire::replication::{Command, Order};

use super::client::{Access, Client, ClientError};
use super::shared::Shared;
use crate::orders::{LIMIT, OrderError};
use crate::promise::Choice;

/// State of a relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BinlogStanding {
    /// The highest promised term.
    pub term: u64,
    /// The epoch that is written; 0 for none yet. Each relay counts its own.
    pub epoch: u32,
    /// `server_id` of the server that wrote it.
    pub source: u32,
    /// True if nothing more is taken from that source.
    pub fenced: bool,
    /// Name of the node chosen as the next source, and the term of the choice.
    pub chosen: Option<(u64, String)>,
    /// The durable transactions.
    pub state: State,
    /// Address of the upstream.
    pub upstream: String,
    /// `streaming`, or the obstacle.
    pub upstream_state: String,
}

/// Parses the order in a statement; None if it is not one.
pub(super) fn order(text: &str) -> Option<Order> {
    match Command::parse(text) {
        Ok(Command::Operate(order)) => Some(order),
        _ => None,
    }
}

/// Carries out one order; orders that change something run one at a time. Blocking.
pub(super) fn carry_out(shared: &Shared, order: &Order) -> Result<BinlogStanding, OrderError> {
    let log = &shared.log;
    if *order == Order::Look {
        return Ok(look(shared));
    }
    let end = Instant::now() + LIMIT;
    let _turn = shared.orders.take(end).ok_or(OrderError::Busy)?;
    let own = epoch(shared);
    if own == 0 {
        return Err(OrderError::Empty);
    }
    match order {
        Order::Look => {}
        Order::Fence { term, timeline } => {
            let flushed = log.flushed.get();
            shared.promise.change(|promise| promise.fence(*term, *timeline, own, flushed))?;
            info!(term, epoch = timeline, "fenced: nothing more is taken of the source of this epoch");
            if !shared.control.interrupt(end) {
                return Err(OrderError::Slow { what: "receiving has not ended" });
            }
            // The last received bytes must be durable: the new source is compared with them.
            let mut parker = Parker::new(Arc::clone(&log.flushed));
            match parker.wait(log.written.get(), Some(end)) {
                Waited::Reached(_) => {}
                _ if log.flushed.get() >= log.written.get() => {}
                _ => {
                    return Err(match log.failure() {
                        Some(failure) => OrderError::Failed(failure.to_string()),
                        None => OrderError::Slow { what: "the disk has not taken what was received" },
                    });
                }
            }
        }
        Order::Choose { term, node } => {
            shared.promise.change(|promise| promise.choose(*term, node, own))?;
            info!(term, node, "this node is to be the source");
        }
        Order::Withdraw { term, node } => {
            shared.promise.change(|promise| promise.withdraw(*term, node, own))?;
            info!(term, node, "this node is not to be the source after all");
        }
        Order::Follow { term, address } => {
            let configured = shared.control.configured();
            shared.promise.change(|promise| promise.follow(*term, &configured, address))?;
            info!(term, upstream = address, "following another source, as an operator says");
            shared.control.follow(|config| config.address.clone_from(address));
        }
        Order::Release { term } => {
            shared.promise.change(|promise| promise.release(*term, own))?;
            info!(term, "the fence is taken away");
            shared.control.interrupt(end);
        }
    }
    Ok(look(shared))
}

fn epoch(shared: &Shared) -> u32 {
    u32::try_from(shared.log.epoch()).unwrap_or(u32::MAX)
}

fn look(shared: &Shared) -> BinlogStanding {
    let (epoch, promise, durable) = (epoch(shared), shared.promise.now(), shared.log.durable());
    let standing = promise.standing(epoch).filter(|_| epoch > 0);
    BinlogStanding {
        term: promise.term(),
        epoch,
        source: durable.file.map_or(0, |(log_file, _)| log_file.source),
        fenced: standing.is_some(),
        chosen: standing.and_then(|(_, chosen)| chosen).map(|Choice { term, node }| (*term, node.clone())),
        state: durable.state,
        upstream: shared.control.address(),
        upstream_state: shared.upstream().state,
    }
}

impl BinlogStanding {
    /// Returns a row of text, with the columns' names.
    pub(super) fn columns(&self) -> Vec<(&'static str, String)> {
        let (term, node) = self.chosen.clone().map_or_else(Default::default, |(term, node)| (term.to_string(), node));
        vec![
            ("term", self.term.to_string()),
            ("epoch", self.epoch.to_string()),
            ("source", self.source.to_string()),
            ("fenced", self.fenced.to_string()),
            ("chosen_term", term),
            ("chosen_node", node),
            ("gtids", self.state.to_string()),
            ("upstream", self.upstream.clone()),
            ("state", self.upstream_state.clone()),
        ]
    }

    /// Parses a row of [`BinlogStanding::columns`]; None for any other row, also one of a relay of the other family.
    fn read(row: &Row, dialect: Dialect) -> Option<BinlogStanding> {
        let text = |index: usize| row.get(index)?.as_deref();
        Some(BinlogStanding {
            term: text(0)?.parse().ok()?,
            epoch: text(1)?.parse().ok()?,
            source: text(2)?.parse().ok()?,
            fenced: text(3)?.parse().ok()?,
            chosen: match text(4)? {
                "" => None,
                term => Some((term.parse().ok()?, text(5)?.to_owned())),
            },
            state: State::parse(dialect, text(6)?).ok()?,
            upstream: text(7)?.to_owned(),
            upstream_state: text(8)?.to_owned(),
        })
    }
}

/// Address and login of a server with a binary log, or of a relay of one.
#[derive(Clone)]
pub struct BinlogAccess<'a> {
    /// `host:port`, or the path of a Unix socket.
    pub address: &'a str,
    /// Name of the user.
    pub user: &'a str,
    /// Password of the user.
    pub password: &'a str,
    /// None for a connection without TLS.
    pub connector: Option<Arc<tls::Connector>>,
}

/// A session with a server of MariaDB or MySQL, or a relay of one. Blocking; each answer is waited for a few seconds at most, or as long as
/// [`BinlogSession::patience`] sets.
#[derive(Debug)]
pub struct BinlogSession(Client);

impl BinlogSession {
    /// Connects and logs in.
    ///
    /// # Errors
    /// The reason in words.
    pub fn open(access: &BinlogAccess<'_>) -> Result<BinlogSession, String> {
        let BinlogAccess { address, user, password, connector } = access.clone();
        let access = Access { address, user, password, connector, host_timeout: Duration::from_secs(20) };
        let client = Client::open(&access, |_| Ok::<(), ClientError>(()));
        client.map(BinlogSession).map_err(|error| error.to_string())
    }

    /// Sets the time limit of each later answer.
    ///
    /// # Errors
    /// An error of the socket.
    pub fn patience(&mut self, limit: Duration) -> Result<(), String> {
        self.0.set_patience(limit).map_err(|error| error.to_string())
    }

    /// Runs a statement.
    ///
    /// # Errors
    /// The reason in words: with the statement, which must not contain a secret.
    pub fn query(&mut self, statement: &str) -> Result<Vec<Row>, String> {
        self.0.query(statement).map_err(|error| error.to_string())
    }

    /// Runs a statement that contains a secret; `name` stands for it in an error.
    ///
    /// # Errors
    /// The reason in words, without the statement and the secret.
    pub fn query_with_secret(&mut self, statement: &str, secret: &str, name: &str) -> Result<Vec<Row>, String> {
        let done = self.0.ask(&::binlog::protocol::command::query(statement), name);
        done.map_err(
            |error| if secret.is_empty() { error.to_string() } else { error.to_string().replace(secret, "***") },
        )
    }

    /// Has a relay of `dialect` carry out an order.
    ///
    /// # Errors
    /// The reason in words.
    pub fn order(&mut self, order: &Order, dialect: Dialect) -> Result<BinlogStanding, String> {
        if *order != Order::Look {
            self.patience(LIMIT + Duration::from_secs(5))?;
        }
        let rows = self.query(&order.text())?;
        let standing = rows.first().and_then(|row| BinlogStanding::read(row, dialect));
        standing.ok_or_else(|| format!("the answer is not that of a relay of {}", dialect.name()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let fenced = BinlogStanding {
            term: 3,
            epoch: 2,
            source: 7,
            fenced: true,
            chosen: Some((3, "db2".into())),
            state: State::parse(Dialect::MariaDb, "0-1-9,1-2-3").unwrap(),
            upstream: "db1:3306".into(),
            upstream_state: "streaming".into(),
        };
        let free = BinlogStanding { fenced: false, chosen: None, ..fenced.clone() };
        let set = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7,3e11fa47-71ca-11e1-9e33-c80aa9429562:blue:1";
        let mysql = BinlogStanding { state: State::parse(Dialect::MySql, set).unwrap(), ..fenced.clone() };
        for (standing, dialect, other) in [
            (fenced, Dialect::MariaDb, Dialect::MySql),
            (free, Dialect::MariaDb, Dialect::MySql),
            (mysql, Dialect::MySql, Dialect::MariaDb),
        ] {
            let row = standing.columns().into_iter().map(|(_, value)| Some(value)).collect();
            assert_eq!(BinlogStanding::read(&row, other), None);
            assert_eq!(BinlogStanding::read(&row, dialect), Some(standing));
        }
        assert_eq!(BinlogStanding::read(&vec![Some("7".into())], Dialect::MariaDb), None);
        assert_eq!(order("KINGPOST FENCE TERM 3 TIMELINE 2"), Some(Order::Fence { term: 3, timeline: 2 }));
        assert_eq!(order("SELECT 1"), None);
    }
}
