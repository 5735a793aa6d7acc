//! Whether a statement may run, by the traffic rules for its client's database and user.
//!
//! The statements of a unit are asked about when the unit is looked at, before the client gets or waits for a server connection. Those of
//! a client that has one are asked about when they are passed on. A prepared statement counts at its Bind. What is sent again, because
//! a server has refused or lost it, is not asked about again.

use std::collections::HashMap;

use sql::Class;

use super::client::Step;
use crate::core::Core;
use crate::core::memory::Token;
use crate::core::server::Refusal;
use crate::traffic::{Act, Permit, Refused, is_governed};

/// Most fingerprints that a worker knows. With more, it begins anew.
const MOST_FINGERPRINTS: usize = 8_192;

/// One worker's part of the traffic rules.
#[derive(Default)]
pub(in crate::core) struct Governor {
    /// Places among those that run at the same time, by client, from when a statement is let pass until its answer has come.
    permits: HashMap<Token, Permit>,
    /// Fingerprints by [`super::Unit::key`], which stands for a text without its literals, or for a prepared statement.
    fingerprints: HashMap<u64, Option<u64>>,
}

impl Governor {
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
    /// What rules look at of a client's statement. `None`: no rule can be about it. Without rules this is one atomic load.
    pub(super) fn act(&mut self, c: usize, class: Class, key: u64, text: &[u8]) -> Option<Act> {
        let pool = self.pools.get_mut(self.clients[c].pool)?;
        if !self.shared.traffic.refresh(&mut pool.governed, &pool.key.database, &pool.key.user, self.now)
            || !is_governed(class)
        {
            return None;
        }
        let asked = pool.governed.asks_for_statements();
        let fingerprint = if asked { self.governor.fingerprint(key, text) } else { None };
        Some(Act { access: class.access, fingerprint })
    }

    /// A statement of the unit that is being looked at.
    pub(super) fn admit_scanned(&mut self, c: usize, act: Option<Act>) {
        let Some(act) = act else { return };
        let client = &self.clients[c];
        if client.unit.refused.is_some() {
            return;
        }
        match if client.attempts.admitted { Ok(()) } else { self.admit(c, act) } {
            Ok(()) => self.clients[c].unit.admitted += 1,
            Err(refused) => self.clients[c].unit.refused = Some(refused),
        }
    }

    /// A statement that is being passed on to server `s`: gives by what it is refused. One that was let pass when its unit was looked at is not
    /// looked at again.
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
        // In a failed transaction the server runs nothing, and says so.
        if client.attempts.admitted || self.servers[s].protocol.is_failed() {
            return None;
        }
        let act = self.act(c, class, key, text)?;
        self.admit(c, act).err().map(Refusal::Rule)
    }

    fn admit(&mut self, c: usize, act: Act) -> Result<(), Refused> {
        let client = &self.clients[c];
        let governed = &self.pools[client.pool].governed;
        let mut permit = self.governor.permits.remove(&client.token).unwrap_or_default();
        let admitted = governed.admit(act, self.shared.traffic.at(self.now), &mut permit);
        if !permit.is_empty() {
            self.governor.permits.insert(client.token, permit);
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

    /// Answers the unit that was just looked at with a rule's refusal.
    pub(super) fn refuse_by_rule(&mut self, c: usize, refused: Refused) -> Step {
        let told = self.shared.traffic.explain(refused);
        self.refuse_scanned_with(c, told.code, &told.text, &told.hint)
    }

    /// The client has been answered all that it has sent, or has gone: it runs nothing any more.
    pub(in crate::core) fn runs_nothing(&mut self, token: Token) {
        if !self.governor.permits.is_empty() {
            self.governor.permits.remove(&token);
        }
    }
}
