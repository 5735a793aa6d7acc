//! Queries to a server or a relay, and orders to a relay, over a replication connection of their own.

use std::sync::Arc;
use std::time::Duration;

use watermark::Lsn;
use wire::control::FAILOVER;
use wire::replication::{Identity as Remote, Order};

use crate::error::{Cause, Peer, SessionError};
use crate::memory::Recollection;
use crate::orders::{self, RelayState};
use crate::session::{Login, STEP, Session};

/// Address and login of a relay.
#[derive(Debug, Clone, Copy)]
pub struct RelayAccess<'a> {
    /// Configured name, for errors.
    pub name: &'a str,
    /// `host:port`, or the path of a Unix socket.
    pub address: &'a str,
    /// A user of the relay; for orders an operator.
    pub user: &'a str,
    /// Password of the user.
    pub password: Option<&'a str>,
    /// None for a connection without TLS.
    pub connector: Option<&'a Arc<tls::Connector>>,
}

impl RelayAccess<'_> {
    pub(crate) fn open(&self, application_name: &str) -> Result<Session, SessionError> {
        self.open_within(application_name, STEP)
    }

    fn open_within(&self, application_name: &str, step: Duration) -> Result<Session, SessionError> {
        let login = Login {
            peer: Peer::Relay(self.name.into()),
            address: self.address,
            user: self.user,
            password: self.password,
            application_name,
            connector: self.connector.cloned(),
            host_timeout: STEP,
            step,
        };
        Session::open(&login, |_| Ok(()))
    }
}

/// Has a relay carry out an operator's order; returns the relay's state afterwards. Blocking. The relay has a limit of 20 s for an order; the answer
/// is waited for a little longer, so that the relay itself reports what it could not do in time.
///
/// # Errors
/// The relay cannot be reached, refuses, or is no relay. [`Cause::NoAnswer`]: the order may still be carried out.
pub fn order(relay: &RelayAccess<'_>, order: &Order) -> Result<RelayState, SessionError> {
    order_within(relay, order, STEP, orders::LIMIT + Duration::from_secs(5))
}

/// Queries the state of a relay. Blocking: each step of the login, and the answer, for at most `limit`.
///
/// # Errors
/// The errors of [`order`].
pub fn look(relay: &RelayAccess<'_>, limit: Duration) -> Result<RelayState, SessionError> {
    order_within(relay, &Order::Look, limit, limit)
}

fn order_within(
    relay: &RelayAccess<'_>,
    order: &Order,
    step: Duration,
    limit: Duration,
) -> Result<RelayState, SessionError> {
    let mut session = relay.open_within(FAILOVER, step)?;
    session.set_patience(limit, limit)?;
    let text = order.text();
    let words: Vec<&str> = text.split(' ').take(2).collect();
    let rows = session.ask(&text).map_err(|error| error.unanswered(&words.join(" "), limit))?;
    let relay_state = rows.first().and_then(RelayState::read);
    relay_state.ok_or_else(|| session.failed(Cause::Protocol(format!("the answer to {text} is none"))))
}

/// Creates a physical slot on a relay, which from then on keeps WAL for a standby; no effect if it exists. Blocking; a few seconds at most.
///
/// # Errors
/// The relay cannot be reached, or refuses.
pub fn make_slot(relay: &RelayAccess<'_>, slot: &str) -> Result<(), SessionError> {
    let mut session = relay.open(FAILOVER)?;
    match session.ask(&format!("CREATE_REPLICATION_SLOT \"{slot}\" PHYSICAL RESERVE_WAL")) {
        Ok(_) => Ok(()),
        // duplicate_object
        Err(error) if error.sqlstate() == Some("42710") => Ok(()),
        Err(error) => Err(error),
    }
}

/// Drops a physical slot on a relay, if it exists.
///
/// # Errors
/// The relay cannot be reached, or refuses: a standby may use the slot.
pub fn drop_slot(relay: &RelayAccess<'_>, slot: &str) -> Result<(), SessionError> {
    let mut session = relay.open("kingpost node")?;
    match session.ask(&format!("DROP_REPLICATION_SLOT \"{slot}\"")) {
        Ok(_) => Ok(()),
        // undefined_object
        Err(error) if error.sqlstate() == Some("42704") => Ok(()),
        Err(error) => Err(error),
    }
}

/// Status of a relay, as any user may query it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// Identifier of the cluster.
    pub system: u64,
    /// The timeline that it is on.
    pub timeline: u32,
    /// End of the WAL that it serves.
    pub position: Lsn,
    /// Number of downstreams that stream from it.
    pub downstreams: u64,
    /// `streaming`, or the obstacle between the relay and its upstream.
    pub upstream: String,
}

/// Queries a relay's status over its own protocol. Blocking; a few seconds at most.
///
/// # Errors
/// The relay cannot be reached, refuses, or is no relay.
pub fn probe(relay: &RelayAccess<'_>) -> Result<Probe, SessionError> {
    let mut session = relay.open("kingpost status")?;
    let remote = identify(&mut session)?;
    Ok(Probe {
        system: remote.system,
        timeline: remote.timeline,
        position: Lsn(remote.position),
        downstreams: show(&mut session, "kingpost.downstreams")?.parse().unwrap_or(0),
        upstream: show(&mut session, "kingpost.upstream")?,
    })
}

/// Queries the promises that a relay remembers. Blocking; `step` limits each step.
pub(crate) fn recall(relay: &RelayAccess<'_>, step: Duration) -> Result<Recollection, SessionError> {
    let mut session = relay.open_within("kingpost relay", step)?;
    let rows = session.ask("KINGPOST PROMISE")?;
    let told = rows.first().and_then(Recollection::read);
    told.ok_or_else(|| session.failed(Cause::Protocol("the answer to KINGPOST PROMISE is none".into())))
}

pub(crate) fn identify(session: &mut Session) -> Result<Remote, SessionError> {
    let rows = session.ask("IDENTIFY_SYSTEM")?;
    let identity = rows.first().and_then(|row| row.identity());
    identity.ok_or_else(|| session.failed(Cause::Protocol("IDENTIFY_SYSTEM".into())))
}

pub(crate) fn show(session: &mut Session, name: &str) -> Result<String, SessionError> {
    let rows = session.ask(&format!("SHOW {name}"))?;
    let value = rows.first().and_then(|row| row.text(0)).map(str::to_owned);
    value.ok_or_else(|| session.failed(Cause::Protocol(format!("SHOW {name} gave nothing"))))
}

/// The role of the peer of a replication connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A server that writes its own WAL: no host sends it WAL that it lacks.
    Primary,
    /// A server in recovery, or a relay: it may be behind, and catch up.
    Follower,
}

pub(crate) fn role(session: &mut Session) -> Result<Role, SessionError> {
    if session.is_relay() {
        return Ok(Role::Follower);
    }
    // Before PostgreSQL 14 the role shows only in what recovery forbids; a primary whose default is read-only passes for a standby there.
    let recent = crate::shared::major(session.server_version()) >= 14;
    match show(session, if recent { "in_hot_standby" } else { "transaction_read_only" }) {
        Ok(shown) if shown == "off" => Ok(Role::Primary),
        Ok(_) => Ok(Role::Follower),
        // undefined_object: a relay of an early version.
        Err(error) if error.sqlstate() == Some("42704") => Ok(Role::Follower),
        Err(error) => Err(error),
    }
}

pub(crate) fn history(session: &mut Session, timeline: u32) -> Result<Vec<u8>, SessionError> {
    let mut rows = session.ask(&format!("TIMELINE_HISTORY {timeline}"))?;
    let content = rows.first_mut().and_then(|row| row.0.get_mut(1)).and_then(Option::take);
    content.ok_or_else(|| session.failed(Cause::Protocol(format!("TIMELINE_HISTORY {timeline} gave nothing"))))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// A relay whose disk hangs: it accepts connections, and answers nothing.
    fn mute() -> (String, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let thread = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut buffer = [0; 4096];
            assert!(socket.read(&mut buffer).unwrap() > 0);
            let mut out = Vec::new();
            wire::message::authentication_ok(&mut out);
            wire::message::ready(&mut out, wire::message::Status::Idle);
            socket.write_all(&out).unwrap();
            // Until the client leaves.
            while socket.read(&mut buffer).is_ok_and(|n| n > 0) {}
        });
        (address, thread)
    }

    #[test]
    fn an_order_without_an_answer_may_still_be_carried_out() {
        let (address, thread) = mute();
        let relay = RelayAccess { name: "r1", address: &address, user: "u", password: None, connector: None };
        let fence = Order::Fence { term: 1, timeline: 1 };
        let error = order_within(&relay, &fence, STEP, Duration::from_millis(50)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "relay r1 did not answer to KINGPOST FENCE within 0.05 s; it may still carry it out: ask again"
        );
        thread.join().unwrap();
    }

    #[test]
    fn a_look_has_the_caller_s_limit() {
        let (address, thread) = mute();
        let relay = RelayAccess { name: "r1", address: &address, user: "u", password: None, connector: None };
        let error = look(&relay, Duration::from_millis(50)).unwrap_err().to_string();
        assert!(error.contains("within 0.05 s"), "{error}");
        thread.join().unwrap();
    }

    #[test]
    fn a_relay_that_is_not_there_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let relay = RelayAccess { name: "r1", address: &address, user: "u", password: None, connector: None };
        let error = order(&relay, &Order::Look).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot connect to relay r1 at {address}: ")), "{error}");
    }
}
