//! Orders of `kingpost failover` to a relay of a binary log: as to one of PostgreSQL, with an epoch of this relay as the timeline.
//!
//! Orders are statements (`KINGPOST FENCE TERM 3 TIMELINE 1`) of an operator; the answer is a row with the relay's state.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ::binlog::gtid::{self, mariadb};
use ::binlog::protocol::reply::Row;
use tracing::info;
use watermark::{Parker, Waited};
use wire::replication::{Command, Order};

use super::client::{Access, Client, ClientError};
use super::shared::Shared;
use crate::orders::{LIMIT, OrderError};
use crate::promise::Choice;

/// State of a relay. `S`: the type of its transactions, of MariaDB or of either family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BinlogStanding<S = mariadb::State> {
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
    pub state: S,
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
pub(super) fn carry_out(shared: &Shared, order: &Order) -> Result<BinlogStanding<gtid::State>, OrderError> {
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

fn look(shared: &Shared) -> BinlogStanding<gtid::State> {
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

impl<S: std::fmt::Display> BinlogStanding<S> {
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
}

impl BinlogStanding {
    /// Parses a row of [`BinlogStanding::columns`]; None for any other row.
    fn read(row: &Row) -> Option<BinlogStanding> {
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
            state: text(6)?.parse().ok()?,
            upstream: text(7)?.to_owned(),
            upstream_state: text(8)?.to_owned(),
        })
    }
}

/// Address and login of a MariaDB server, or of a relay of one.
#[derive(Clone)]
pub struct MariaDbAccess<'a> {
    /// `host:port`, or the path of a Unix socket.
    pub address: &'a str,
    /// Name of the user.
    pub user: &'a str,
    /// Password of the user.
    pub password: &'a str,
    /// None for a connection without TLS.
    pub connector: Option<Arc<tls::Connector>>,
}

/// A session with a MariaDB server, or a relay of one. Blocking; each answer is waited for a few seconds at most, or as long as
/// [`MariaDbSession::patience`] sets.
#[derive(Debug)]
pub struct MariaDbSession(Client);

impl MariaDbSession {
    /// Connects and logs in.
    ///
    /// # Errors
    /// The reason in words.
    pub fn open(access: &MariaDbAccess<'_>) -> Result<MariaDbSession, String> {
        let MariaDbAccess { address, user, password, connector } = access.clone();
        let access = Access { address, user, password, connector, host_timeout: Duration::from_secs(20) };
        let client = Client::open(&access, |_| Ok::<(), ClientError>(()));
        client.map(MariaDbSession).map_err(|error| error.to_string())
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

    /// Has a relay carry out an order.
    ///
    /// # Errors
    /// The reason in words.
    pub fn order(&mut self, order: &Order) -> Result<BinlogStanding, String> {
        if *order != Order::Look {
            self.patience(LIMIT + Duration::from_secs(5))?;
        }
        let rows = self.query(&order.text())?;
        rows.first().and_then(BinlogStanding::read).ok_or_else(|| "the answer is not that of a relay of MariaDB".into())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let fenced: BinlogStanding = BinlogStanding {
            term: 3,
            epoch: 2,
            source: 7,
            fenced: true,
            chosen: Some((3, "db2".into())),
            state: "0-1-9,1-2-3".parse().unwrap(),
            upstream: "db1:3306".into(),
            upstream_state: "streaming".into(),
        };
        let free = BinlogStanding { fenced: false, chosen: None, ..fenced.clone() };
        for standing in [fenced, free] {
            let row = standing.columns().into_iter().map(|(_, value)| Some(value)).collect();
            assert_eq!(BinlogStanding::read(&row), Some(standing));
        }
        assert_eq!(BinlogStanding::read(&vec![Some("7".into())]), None);
        assert_eq!(order("KINGPOST FENCE TERM 3 TIMELINE 2"), Some(Order::Fence { term: 3, timeline: 2 }));
        assert_eq!(order("SELECT 1"), None);
    }
}
