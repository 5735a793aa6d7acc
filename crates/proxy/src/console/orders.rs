//! What operators have ordered and what still holds, on its way to a process that takes over.
//!
//! ```text
//!  old: Fleet::orders ──Errand::Orders──▶ each console's thread ──▶ Orders      new: Proxy::start ──▶ Room::follow
//! ```
//!
//! From then on, as long as the [`Held`] lives, no operator changes anything: whoever tries is told so. A command under way when the
//! orders are asked for is carried out first, in all clusters: it holds a guard for as long as it is, and what it passes on to other
//! consoles lies in their queues before the question for the orders does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use super::Room;
use super::lease::{LONGEST, Lease};
use super::limits::FOR;
use super::report::Operation;
use crate::fleet::Fleet;
use crate::traffic::Rule;

/// Longest wait for a console's orders: its thread may be waiting for workers' reports.
const PATIENCE: Duration = Duration::from_secs(10);

/// What operators have ordered of a cluster, as far as it holds. SUSPEND is not in it: it is about the clients of one process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Orders {
    /// Everything is paused, by PAUSE or KILL.
    pub paused: bool,
    /// Everything is paused by PAUSE FOR, for so long from now on.
    pub lease: Option<Duration>,
    /// Databases that are paused by their names, by PAUSE or KILL.
    pub paused_databases: BTreeSet<String>,
    /// Databases to which nobody may log in.
    pub disabled: BTreeSet<String>,
    /// Traffic rules that operators have set, and after which time each ends by itself.
    pub rules: Vec<(Rule, Option<Duration>)>,
    /// Traffic rules of the configuration that operators have lifted.
    pub lifted: BTreeSet<String>,
}

/// Why there are no orders to be handed over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoOrders {
    /// They are being handed over to somebody else.
    #[error("another process is taking over already")]
    Taken,
    /// A console does not answer.
    #[error("the console of the cluster {0:?} does not say what operators have ordered")]
    Silent(Arc<str>),
}

/// An operator may change nothing at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("another process is taking over from this one: connect again in a moment, and repeat it there")]
pub struct TakingOver;

/// Whether operators may change something: not from when their orders were handed over until the other process serves, or has failed.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    held: RwLock<bool>,
}

/// No operator changes anything as long as this lives.
pub struct Held(Arc<Fleet>);

impl Orders {
    /// True if nothing was ordered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Orders::default()
    }

    /// Leaves out what is about databases that are not there, and says of each what it was.
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

    /// What workers have to be told.
    fn operations(&self) -> Vec<Operation> {
        let all = self.paused.then_some(Operation::Pause(None));
        let leased = self.lease.map(|_| Operation::PauseLeased);
        let named = self.paused_databases.iter().map(|name| Operation::Pause(Some(name.clone())));
        let disabled = self.disabled.iter().map(|name| Operation::Disable(name.clone()));
        all.into_iter().chain(leased).chain(named).chain(disabled).collect()
    }
}

impl Changes {
    /// Whoever changes something holds this until it is done. Never waits.
    pub(crate) fn begin(&self) -> Result<RwLockReadGuard<'_, bool>, TakingOver> {
        // Somebody waits for the lock, or has it: orders are about to be handed over.
        self.held.try_read().ok().filter(|held| !**held).ok_or(TakingOver)
    }

    /// Waits until what is being changed is changed. False: the orders have been handed over already.
    fn hold(&self) -> bool {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        !std::mem::replace(&mut *held, true)
    }

    fn release(&self) {
        *self.held.write().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.changes.release();
    }
}

impl Fleet {
    /// What operators have ordered, by cluster. They order nothing more until the other part of the result is dropped. Blocks until what is
    /// being carried out is carried out.
    ///
    /// # Errors
    /// Somebody else has the orders, or a console does not answer: operators go on.
    pub fn orders(self: &Arc<Fleet>) -> Result<(BTreeMap<String, Orders>, Held), NoOrders> {
        if !self.changes.hold() {
            return Err(NoOrders::Taken);
        }
        let held = Held(self.clone());
        let ask = |(cluster, desk): (Arc<str>, super::Desk)| {
            let (sender, answer) = sync_channel(1);
            match desk.ask_for_orders(sender) {
                true => Ok((cluster, answer)),
                false => Err(NoOrders::Silent(cluster)),
            }
        };
        let asked = self.desks().into_iter().map(ask).collect::<Result<Vec<_>, _>>()?;
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

impl Room {
    /// What holds of operators' orders, but for a lease, which the console's thread has.
    pub(super) fn orders(&self, lease: Option<Duration>, now: Instant) -> Orders {
        let paused = self.paused();
        let (rules, lifted) = self.shared.traffic.ordered(now);
        Orders {
            paused: paused.all,
            // Whoever has resumed everything by the web console has left the lease to itself.
            lease: lease.filter(|_| paused.leased),
            paused_databases: paused.names,
            disabled: paused.disabled,
            rules,
            lifted: lifted.into_iter().collect(),
        }
    }

    /// Goes on with the orders that another process was given. Before the workers run: what they find in their mailboxes first is this.
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
        // Two commands at a time do not keep each other away.
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
