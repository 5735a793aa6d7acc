//! Degraded mode of the commit gate: with too few confirming relays, commits wait or pass, or writes are refused.

use std::time::Duration;

use topology::MOST_RELAYS;

use crate::core::pool::Pool;
use crate::core::report::GateReport;
use crate::core::{Core, over};

impl Core {
    /// True if fewer than `relays` relays have confirmed anything for longer than `degraded_after`.
    pub(super) fn is_degraded(&self, relays: usize) -> bool {
        let since = self.commits.short.get(relays).copied().flatten();
        since.is_some_and(|since| over(since, self.settings.gate_degraded_after, self.now))
    }

    /// Returns the report of a pool's commit gate, without the held clients; `None` for a pool without a gate.
    pub(in crate::core) fn gate_report(&self, pool: &Pool) -> Option<GateReport> {
        let settings = pool.gate;
        let report = || GateReport {
            settings,
            lazy: pool.lazy,
            degraded: self.is_degraded(settings.relays),
            held: 0,
            longest: Duration::ZERO,
        };
        (settings.relays > 0).then(report)
    }

    /// Updates the time since when there have been too few relays. Called at each tick.
    pub(in crate::core) fn watch_relays(&mut self) {
        let flushes = self.shared.topology.flushes();
        if std::mem::replace(&mut self.commits.flushes, flushes) != flushes {
            for p in self.pools.ids() {
                if self.pools[p].gate.relays > 0 {
                    self.retire_all(p);
                }
            }
        }
        let confirming = self.shared.topology.confirming();
        let mut worst = false;
        for relays in 1..=MOST_RELAYS {
            if confirming < relays {
                self.commits.short[relays].get_or_insert(self.now);
            } else {
                self.commits.short[relays] = None;
            }
        }
        for p in self.pools.ids() {
            let gate = self.pools[p].gate;
            worst |= gate.relays > 0 && self.is_degraded(gate.relays);
        }
        self.metrics.gate_degraded.set(u64::from(worst));
        if worst != self.commits.was_degraded {
            self.commits.was_degraded = worst;
            match (worst, self.id) {
                (true, 0) => tracing::error!(
                    confirming,
                    "DEGRADED: too few relays confirm commits; by on_degraded they wait and new writes are refused, or they \
                     are acknowledged though only the primary has them"
                ),
                (false, 0) => tracing::warn!(confirming, "no longer degraded: relays confirm commits again"),
                _ => {}
            }
        }
        if self.commits.waiters.is_some() {
            let held = self.clients.iter().filter(|(_, client)| client.output.gates() > 0).count();
            self.metrics.gate_held.set(held as u64);
            if worst {
                self.review_gates();
            }
        }
    }

    /// Returns the reason why a unit that may write is not sent to a server; `None` if it may be sent.
    pub(in crate::core) fn refuses_writes(&self, c: usize) -> Option<String> {
        let client = &self.clients[c];
        let gate = self.pools[client.pool].gate;
        if gate.relays == 0 || gate.degrade || client.unit.repeatable || !self.is_degraded(gate.relays) {
            return None;
        }
        Some(format!(
            "writes are refused: {} of the {} relays that must make commits durable confirm anything; nothing was executed",
            self.shared.topology.confirming(),
            gate.relays
        ))
    }
}
