//! Admission of statements, by the traffic rules for the client's database and user.
//!
//! The statements of a unit are checked when the unit is scanned, before the client gets or waits for a server connection. The statements of a client
//! that has one are checked when they are passed on. A prepared statement counts at its Bind. A statement that is sent again, because a server has
//! refused or lost it, is not checked again.

use std::collections::HashMap;

use sql::Class;

use super::client::Step;
use crate::core::Core;
use crate::core::memory::Token;
use crate::core::server::Refusal;
use crate::traffic::{Permit, Refused, StatementFacts, is_governed};

/// Maximum number of cached fingerprints of a worker. A full cache is cleared.
const MOST_FINGERPRINTS: usize = 8_192;

/// State of the traffic rules in one worker.
#[derive(Default)]
pub(in crate::core) struct TrafficAdmission {
    /// Places of the concurrency limits, by client, from the admission of a statement to the end of its answer.
    permits: HashMap<Token, Permit>,
    /// Fingerprints by [`super::Unit::key`], which identifies a text without its literals, or a prepared statement.
    fingerprints: HashMap<u64, Option<u64>>,
}

impl TrafficAdmission {
    fn fingerprint(&mut self, key: u64, text: &[u8]) -> Option<u64> {
        if key == 0 {
            return sql::fingerprint(text);
        }
        if self.fingerprints.len() >= MOST_FINGERPRINTS {
            self.fingerprints.clear();
        }
        *self.fingerprints.entry(key).or_insert_with(|| sql::fingerprint(text))
    }
}

impl Core {
    /// Returns the facts of a client's statement for the rules. `None`: no rule can match. Without rules this is one atomic load.
    pub(super) fn statement_facts(&mut self, c: usize, class: Class, key: u64, text: &[u8]) -> Option<StatementFacts> {
        let pool = self.pools.get_mut(self.clients[c].pool)?;
        if !self.shared.traffic.refresh(&mut pool.traffic_rules, &pool.key.database, &pool.key.user, self.now)
            || !is_governed(class)
        {
            return None;
        }
        let asked = pool.traffic_rules.asks_for_statements();
        let fingerprint = if asked { self.traffic_admission.fingerprint(key, text) } else { None };
        Some(StatementFacts { access: class.access, fingerprint })
    }

    /// Checks a statement of the unit that is being scanned.
    pub(super) fn admit_scanned(&mut self, c: usize, facts: Option<StatementFacts>) {
        let Some(facts) = facts else { return };
        let client = &self.clients[c];
        if client.unit.refused.is_some() {
            return;
        }
        match if client.attempts.admitted { Ok(()) } else { self.admit(c, facts) } {
            Ok(()) => self.clients[c].unit.admitted += 1,
            Err(refused) => self.clients[c].unit.refused = Some(refused),
        }
    }

    /// Checks a statement that is being passed on to server `s`; returns the refusal. A statement that was admitted when its unit was scanned is not
    /// checked again.
    pub(super) fn admit_sent(
        &mut self,
        c: usize,
        s: usize,
        (class, key, text): (Class, u64, &[u8]),
    ) -> Option<Refusal> {
        if !is_governed(class) {
            return None;
        }
        let client = &mut self.clients[c];
        if client.unit.admitted > 0 {
            client.unit.admitted -= 1;
            return None;
        }
        // In a failed transaction the server executes nothing, and reports an error.
        if client.attempts.admitted || self.servers[s].protocol.is_failed() {
            return None;
        }
        let facts = self.statement_facts(c, class, key, text)?;
        self.admit(c, facts).err().map(Refusal::Rule)
    }

    fn admit(&mut self, c: usize, facts: StatementFacts) -> Result<(), Refused> {
        let client = &self.clients[c];
        let traffic_rules = &self.pools[client.pool].traffic_rules;
        let mut permit = self.traffic_admission.permits.remove(&client.token).unwrap_or_default();
        let admitted = traffic_rules.admit(facts, self.shared.traffic.at(self.now), &mut permit);
        if !permit.is_empty() {
            self.traffic_admission.permits.insert(client.token, permit);
        }
        if let Err(refused) = admitted {
            self.metrics.traffic_refused.add(1);
            if let Some(rule) = self.shared.traffic.may_log(refused, self.now) {
                let key = &self.pools[self.clients[c].pool].key;
                let (database, user) = (&*key.database, &*key.user);
                tracing::warn!(rule, database, user, "a traffic rule refuses statements; told once a minute");
            }
        }
        admitted
    }

    /// Answers the scanned unit with a rule's refusal.
    pub(super) fn refuse_by_rule(&mut self, c: usize, refused: Refused) -> Step {
        let message = self.shared.traffic.explain(refused);
        self.refuse_scanned_with(c, message.code, &message.text, &message.hint)
    }

    /// Frees the places of a client that has all its answers, or has left.
    pub(in crate::core) fn runs_nothing(&mut self, token: Token) {
        if !self.traffic_admission.permits.is_empty() {
            self.traffic_admission.permits.remove(&token);
        }
    }
}
