//! Orders of operators that are still in force, handed over to a process that takes over.
//!
//! ```text
//!  old: Fleet::orders ──ConsoleTask::Orders──▶ each console's thread ──▶ Orders      new: Proxy::start ──▶ ConsoleContext::follow
//! ```
//!
//! While the [`ChangeFreeze`] lives, every change by an operator is refused with an error. A command under way at the request for the orders completes
//! first, in all clusters: it holds a guard until then, and its tasks for other consoles are in their queues before the request for the orders.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use super::ConsoleContext;
use super::lease::{LONGEST, Lease};
use super::limits::FOR;
use crate::core::report::Operation;
use crate::fleet::Fleet;
use crate::traffic::Rule;

/// Maximum wait for a console's orders: its thread may be waiting for workers' reports.
const PATIENCE: Duration = Duration::from_secs(10);

/// Orders of operators for a cluster that are in force. SUSPEND is not included: it concerns the clients of one process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Orders {
    /// True if PAUSE or KILL has paused all databases.
    pub paused: bool,
    /// Rest of the lease, if PAUSE FOR has paused all databases.
    pub lease: Option<Duration>,
    /// Databases paused by name, by PAUSE or KILL.
    pub paused_databases: BTreeSet<String>,
    /// Databases that refuse logins.
    pub disabled: BTreeSet<String>,
    /// Traffic rules set by operators, each with the time after which it ends by itself.
    pub rules: Vec<(Rule, Option<Duration>)>,
    /// Traffic rules of the configuration that operators have lifted.
    pub lifted: BTreeSet<String>,
}

/// Reason why no orders can be handed over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoOrders {
    /// Another process is receiving them already.
    #[error("another process is taking over already")]
    Taken,
    /// A console does not answer.
    #[error("the console of the cluster {0:?} does not say what operators have ordered")]
    Silent(Arc<str>),
}

/// Refusal of an operator's change during a takeover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("another process is taking over from this one: connect again in a moment, and repeat it there")]
pub struct TakingOver;

/// Admission of operators' changes: refused from the handover of the orders until the other process serves, or has failed.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    held: RwLock<bool>,
}

/// Guard that refuses operators' changes while it lives.
pub struct ChangeFreeze(Arc<Fleet>);

impl Orders {
    /// True if there are no orders.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Orders::default()
    }

    /// Removes orders for databases that do not exist, and returns a description of each.
    fn keep(&mut self, is_there: impl Fn(&str) -> bool) -> Vec<String> {
        let mut gone = Vec::new();
        for (what, databases) in [("PAUSE", &mut self.paused_databases), ("DISABLE", &mut self.disabled)] {
            gone.extend(databases.iter().filter(|name| !is_there(name)).map(|name| format!("{what} {name:?}")));
            databases.retain(|name| is_there(name));
        }
        self.rules.retain(|(rule, _)| {
            let about = rule.whose.database.as_deref().filter(|name| !is_there(name));
            gone.extend(about.map(|name| format!("the traffic rule {:?} of {name:?}", rule.name)));
            about.is_none()
        });
        gone
    }

    /// Returns the operations to be sent to workers.
    fn operations(&self) -> Vec<Operation> {
        let all = self.paused.then_some(Operation::Pause(None));
        let leased = self.lease.map(|_| Operation::PauseLeased);
        let named = self.paused_databases.iter().map(|name| Operation::Pause(Some(name.clone())));
        let disabled = self.disabled.iter().map(|name| Operation::Disable(name.clone()));
        all.into_iter().chain(leased).chain(named).chain(disabled).collect()
    }
}

impl Changes {
    /// Returns the guard to be held during a change. Never waits.
    pub(crate) fn begin(&self) -> Result<RwLockReadGuard<'_, bool>, TakingOver> {
        // A failed lock is held or awaited by a handover of the orders.
        self.held.try_read().ok().filter(|held| !**held).ok_or(TakingOver)
    }

    /// Waits for the changes under way; returns false if the orders have been handed over already.
    fn hold(&self) -> bool {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        !std::mem::replace(&mut *held, true)
    }

    fn release(&self) {
        *self.held.write().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

impl Drop for ChangeFreeze {
    fn drop(&mut self) {
        self.0.changes.release();
    }
}

impl Fleet {
    /// Returns the orders of operators, by cluster. Operators can change nothing until the second part of the result is dropped. Blocks until the
    /// commands under way are complete.
    ///
    /// # Errors
    /// Another process has the orders, or a console does not answer: operators' changes are accepted again.
    pub fn orders(self: &Arc<Fleet>) -> Result<(BTreeMap<String, Orders>, ChangeFreeze), NoOrders> {
        if !self.changes.hold() {
            return Err(NoOrders::Taken);
        }
        let held = ChangeFreeze(self.clone());
        let ask = |(cluster, console): (Arc<str>, super::ConsoleHandle)| {
            let (sender, answer) = sync_channel(1);
            match console.ask_for_orders(sender) {
                true => Ok((cluster, answer)),
                false => Err(NoOrders::Silent(cluster)),
            }
        };
        let asked = self.console_handles().into_iter().map(ask).collect::<Result<Vec<_>, _>>()?;
        let until = Instant::now() + PATIENCE;
        let said = asked.into_iter().map(|(cluster, answer)| {
            match answer.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(orders) => Ok(((*cluster).to_owned(), orders)),
                Err(_) => Err(NoOrders::Silent(cluster)),
            }
        });
        let orders = said.collect::<Result<BTreeMap<_, _>, _>>()?;
        Ok((orders, held))
    }
}

impl ConsoleContext {
    /// Returns the orders in force; the console's thread passes its lease.
    pub(super) fn orders(&self, lease: Option<Duration>, now: Instant) -> Orders {
        let paused = self.paused();
        let (rules, lifted) = self.shared.traffic.ordered(now);
        Orders {
            paused: paused.all,
            // RESUME of everything by the web console does not end the console thread's lease.
            lease: lease.filter(|_| paused.leased),
            paused_databases: paused.names,
            disabled: paused.disabled,
            rules,
            lifted: lifted.into_iter().collect(),
        }
    }

    /// Applies the orders of the previous process. Called before the workers start, so that these orders are the first in their mailboxes.
    pub(crate) fn follow(&self, mut orders: Orders, now: Instant) -> Lease {
        let mut lease = Lease::default();
        if orders.is_empty() {
            return lease;
        }
        let (cluster, settings) = (&self.shared.membership.cluster, self.settings());
        for gone in orders.keep(|name| settings.database(name).is_some()) {
            tracing::warn!(%cluster, order = gone, "an order of the old process's console is dropped: no such database");
        }
        orders.operations().iter().for_each(|operation| self.tell_all(operation));
        if let Some(left) = orders.lease {
            lease.renew(now, left.min(LONGEST));
        }
        for name in &orders.lifted {
            if !self.shared.traffic.lift(name) {
                tracing::info!(%cluster, rule = name, "the file does not have a traffic rule any more that was lifted");
            }
        }
        let (mut rules, paused, disabled) = (0, orders.paused_databases.len(), orders.disabled.len());
        for (rule, left) in orders.rules {
            let name = rule.name.clone();
            match self.shared.traffic.set(rule, left.map(|left| now + left.min(FOR.1))) {
                Ok(()) => rules += 1,
                Err(error) => tracing::warn!(%cluster, rule = name, %error, "a traffic rule is dropped"),
            }
        }
        tracing::info!(
            %cluster,
            all_paused = orders.paused,
            leased = orders.lease.is_some(),
            paused,
            disabled,
            rules,
            lifted = orders.lifted.len(),
            "what operators have ordered of the old process holds here"
        );
        lease
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::traffic::Given;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn rule(name: &str, database: Option<&str>) -> (Rule, Option<Duration>) {
        let database = database.map(str::to_owned);
        (Given { name: name.into(), block: true, database, ..Given::default() }.check().unwrap(), None)
    }

    #[test]
    fn what_is_about_no_database_is_left_out() {
        let mut orders = Orders {
            paused: true,
            paused_databases: names(&["a", "gone"]),
            disabled: names(&["b", "gone"]),
            rules: vec![rule("every", None), rule("of-a", Some("a")), rule("of-gone", Some("gone"))],
            lifted: names(&["r"]),
            ..Orders::default()
        };
        let gone = orders.keep(|name| name != "gone");
        assert_eq!(gone, ["PAUSE \"gone\"", "DISABLE \"gone\"", "the traffic rule \"of-gone\" of \"gone\""]);
        let kept = Orders {
            paused: true,
            paused_databases: names(&["a"]),
            disabled: names(&["b"]),
            rules: vec![rule("every", None), rule("of-a", Some("a"))],
            lifted: names(&["r"]),
            ..Orders::default()
        };
        assert_eq!(orders, kept);
    }

    #[test]
    fn workers_that_are_told_are_as_the_old_ones() {
        let orders = Orders {
            paused: true,
            lease: Some(Duration::from_secs(1)),
            paused_databases: names(&["a"]),
            disabled: names(&["b"]),
            ..Orders::default()
        };
        let mut paused = super::super::Paused::default();
        orders.operations().iter().for_each(|operation| paused.note(operation));
        assert!(paused.all && paused.leased);
        assert_eq!((paused.names, paused.disabled), (names(&["a"]), names(&["b"])));
    }

    #[test]
    fn nothing_is_changed_while_the_orders_are_on_their_way() {
        let fleet = Arc::new(Fleet::default());
        let changing = fleet.changes.begin().unwrap();
        // Two commands at a time do not exclude each other.
        drop(fleet.changes.begin().unwrap());
        let (sender, asked) = sync_channel(0);
        let other = fleet.clone();
        let asking = std::thread::spawn(move || {
            sender.send(()).unwrap();
            other.orders()
        });
        asked.recv().unwrap();
        assert!(!asking.is_finished(), "a command is under way");
        drop(changing);
        let (orders, held) = asking.join().unwrap().unwrap();
        assert!(orders.is_empty());
        assert_eq!(fleet.changes.begin().err(), Some(TakingOver));
        assert_eq!(fleet.orders().err(), Some(NoOrders::Taken));
        assert_eq!(fleet.changes.begin().err(), Some(TakingOver), "who came second ends nothing");
        drop(held);
        assert!(fleet.changes.begin().is_ok());
    }
}
