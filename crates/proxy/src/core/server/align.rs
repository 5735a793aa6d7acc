//! Alignment of a session with the values that all sessions of its namespace have: see [`Baseline`](crate::core::prepared::baseline::Baseline).

use std::sync::PoisonError;

use sql::ALIKE;
use topology::{NodeId, Role};
use wire::{message, payload};

use crate::core::Core;
use crate::core::prepared::baseline::{Asked, Begins, Due, Learnt, Values, question};
use crate::core::server::ServerPhase;

/// Error for clients whose statements would run under other settings than they were sent.
const OTHER_SETTINGS: &str = "the primary's settings are others than those that this session began with: connect again";
/// Most sets of settings that are remembered as logged; beyond that all are forgotten.
const MOST_SAID: usize = 1000;

/// The next step of a login.
pub(super) enum Step {
    /// The session was sent the question; its answer comes next.
    Asks,
    /// The connection was closed: another one takes its place.
    Closed,
    /// The session has the required values.
    Done,
}

/// True for the error with which a server refuses a parameter of the start-up packet.
pub(super) fn is_about_a_setting(error: &[u8]) -> bool {
    match payload::sqlstate(error).map(|code| code.0) {
        // An invalid value, an unknown name, a parameter of the server's start.
        Some(code) if [b"22023", b"42704", b"55P02"].contains(&&code) => true,
        // A role that the user may not take; not a database that the user may not connect to.
        Some(code) => code == *b"42501" && payload::error_field(error, b'R') != Some(b"CheckMyDatabase"),
        None => false,
    }
}

/// Returns the start-up parameters that give a session these values.
pub(super) fn parameters_of(values: &Values) -> impl Iterator<Item = (&str, &str)> {
    ALIKE.iter().zip(values).filter_map(|(name, value)| Some((*name, value.as_deref()?)))
}

impl Core {
    /// Returns the present state of a session's node; `settings`: the number of its configuration when the session began.
    fn asked_at(&self, node: NodeId, settings: u64) -> Asked {
        let primary = self.view.primary;
        Asked { node, settings, primary: primary == Some(node), orphaned: primary.is_none(), now: self.now }
    }

    /// Decides how a session begins, right before its start-up packet is sent. Returns the values for the packet.
    pub(super) fn how_to_begin(&mut self, s: usize) -> Option<std::sync::Arc<Values>> {
        let server = &self.servers[s];
        let (p, node) = (server.pool, server.node);
        let settings = self.view.node(node).map_or(0, |node| node.settings);
        let namespace = &self.pools[p].namespace;
        // A replication client decides by itself how its session begins, on the node that it names; a connection that listens runs no client's
        // statements.
        let is_client_session = server.tunnel.is_none() && !server.listener;
        let (begins, renewals) = if self.view.nodes.len() > 1 && is_client_session {
            namespace.begins(self.asked_at(node, settings))
        } else {
            (Begins::Own, namespace.renewals())
        };
        let aligned = match &begins {
            Begins::Aligned { values, .. } => Some(values.clone()),
            Begins::Own | Begins::Asked | Begins::Told => None,
        };
        let server = &mut self.servers[s];
        (server.begins, server.settings, server.renewals) = (begins, settings, renewals);
        aligned
    }

    /// True if sessions of the connection's pool begin otherwise by now.
    fn is_outdated(&self, s: usize) -> bool {
        let server = &self.servers[s];
        let of_client = !server.listener && server.tunnel.is_none();
        of_client && server.renewals != self.pools[server.pool].namespace.renewals()
    }

    /// Asks a session that has just begun for its values, and takes its answer.
    pub(super) fn align(&mut self, s: usize) -> Step {
        if self.is_outdated(s) {
            // Another session has reported a change meanwhile. Which of the two began later is not known: one that begins now is asked.
            self.begin_anew(s);
            return Step::Closed;
        }
        let server = &mut self.servers[s];
        if !matches!(server.begins, Begins::Asked) {
            return Step::Done;
        }
        let Some(answer) = server.answer.take() else {
            server.answer = Some(Box::default());
            self.write_server(s, |out| message::query(out, &question()));
            return Step::Asks;
        };
        server.begins = Begins::Told;
        let (p, begun) = (server.pool, server.renewals);
        let at = self.asked_at(self.servers[s].node, self.servers[s].settings);
        let error = answer.error.clone();
        let values = answer.values();
        if values.is_none() && at.primary && self.is_news(at, Vec::new()) {
            tracing::warn!(
                node = self.name_of(at.node),
                error,
                "the primary does not tell its session settings: until it does, it answers all reads of this database and user"
            );
        }
        let learnt = match self.pools[p].namespace.learn(at, values, begun) {
            Some((learnt, renewals)) => {
                self.servers[s].renewals = renewals;
                learnt
            }
            None => Learnt::Unused(None),
        };
        match learnt {
            Learnt::Kept => Step::Done,
            Learnt::Changed | Learnt::Replaced => {
                self.sessions_change(s);
                self.dismiss_clients(p);
                Step::Done
            }
            Learnt::Unused(news) => {
                if let Some(names) = news {
                    self.say_what_differs(at, names);
                }
                self.begin_anew(s);
                Step::Closed
            }
        }
    }

    /// True if this difference of this node has not been logged yet.
    fn is_news(&self, at: Asked, names: Vec<&'static str>) -> bool {
        let mut said = self.shared.differences_said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() >= MOST_SAID {
            said.clear();
        }
        said.insert((at.node, at.settings, names))
    }

    /// Logs the differences of a node, once for each configuration of it.
    fn say_what_differs(&self, at: Asked, names: Vec<&'static str>) {
        let text = names.join(", ");
        if !names.is_empty() && self.is_news(at, names) {
            tracing::warn!(
                node = self.name_of(at.node),
                settings = text,
                "this node's session settings are others than the primary's: its sessions begin with the primary's"
            );
        }
    }

    fn name_of(&self, node: NodeId) -> Option<&str> {
        self.view.node(node).map(|node| node.node.name.as_str())
    }

    /// Closes a connection that has logged in and can't be used; a waiting client gets another one.
    pub(in crate::core) fn begin_anew(&mut self, s: usize) {
        let (p, node) = (self.servers[s].pool, usize::from(self.servers[s].node.0));
        let place = &mut self.pools[p].nodes[node];
        (place.failures, place.retry_at) = (0, None);
        place.secret_selection.accepted();
        self.pools[p].known = true;
        self.drop_server(s);
        self.pump(p);
    }

    /// Handles a node's refusal of the values that the session was to begin with.
    pub(super) fn values_refused(&mut self, s: usize, error: &[u8]) {
        let server = &self.servers[s];
        let (p, at) = (server.pool, self.asked_at(server.node, server.settings));
        let text = payload::error_message(error).into_owned();
        self.metrics.settings_refused.add(1);
        if !self.pools[p].namespace.refused(at, &text) {
            tracing::warn!(
                node = self.name_of(at.node),
                error = text,
                "this node refuses the primary's session settings: it gets no reads of this database and user"
            );
            return self.login_refused(s, error);
        }
        tracing::warn!(
            node = self.name_of(at.node),
            error = text,
            "the new primary refuses the settings that clients were told: its own are used, and the clients are closed"
        );
        self.sessions_change(s);
        self.dismiss_clients(p);
        self.begin_anew(s);
    }

    /// Closes the sessions that began with other values than new ones do, as the connection `s` has shown.
    pub(in crate::core) fn sessions_change(&mut self, s: usize) {
        let p = self.servers[s].pool;
        let namespace = &self.pools[p].namespace;
        namespace.schema().changes(self.now, true);
        let closed = self.retire_outdated(Some(p));
        tracing::info!(
            node = self.name_of(self.servers[s].node),
            connections = closed,
            "new sessions begin with other settings: closing idle server connections that began before"
        );
    }

    /// Closes server connections of one pool or of all that began before a change: idle ones now, the others when they are free. Returns the number
    /// of idle ones.
    pub(in crate::core) fn retire_outdated(&mut self, only: Option<usize>) -> usize {
        let mut idle = Vec::new();
        for (s, server) in &mut self.servers {
            let of_client = !server.listener && server.tunnel.is_none();
            let is_of = only.is_none_or(|p| server.pool == p);
            if is_of && of_client && matches!(server.phase, ServerPhase::Ready) {
                server.retire |= server.renewals != self.pools[server.pool].namespace.renewals();
                if server.retire && server.is_idle() {
                    idle.push(s);
                }
            }
        }
        for &s in &idle {
            self.drop_server(s);
        }
        idle.len()
    }

    /// Closes the clients of the pool if they were sent values under which statements do not run any more.
    pub(in crate::core) fn dismiss_clients(&mut self, p: usize) {
        let dismissals = self.pools[p].namespace.dismissals();
        if std::mem::replace(&mut self.pools[p].dismissed, dismissals) != dismissals {
            self.close_all(p, OTHER_SETTINGS);
        }
    }

    /// Opens a connection to each node whose values must be queried: the primary, and replicas to which the pool has connections.
    pub(in crate::core) fn ask_for_settings(&mut self) {
        if self.view.nodes.len() < 2 || self.draining {
            return;
        }
        for p in self.pools.ids() {
            self.dismiss_clients(p);
            let pool = &self.pools[p];
            let epoch = self.view.epoch;
            // Clients that come for one statement each are seldom there at a tick.
            let is_used = pool.clients > pool.tunnels || pool.settings_wanted;
            if pool.settings_asked == Some(epoch) || pool.paused || pool.suspended || !is_used {
                continue;
            }
            let mut all = true;
            for node in 0..self.view.nodes.len() {
                all &= self.ask_node_for_settings(p, NodeId(node as u16));
            }
            if all {
                let pool = &mut self.pools[p];
                (pool.settings_asked, pool.settings_wanted) = (Some(epoch), false);
            }
        }
    }

    /// Asks one node for its values if that is due. Returns false if the node must be tried again.
    fn ask_node_for_settings(&mut self, p: usize, id: NodeId) -> bool {
        let Some(node) = self.view.node(id) else { return true };
        if !matches!(node.role, Role::Primary | Role::Replica) || !node.usable {
            return true;
        }
        let at = self.asked_at(id, node.settings);
        let pool = &self.pools[p];
        let place = &pool.nodes[usize::from(id.0)];
        if !at.primary && (place.budget.open() == 0 || !pool.namespace.is_agreed()) {
            // The first connection that is needed asks.
            return true;
        }
        if place.connecting > 0 || place.is_suspect(self.now) {
            return false;
        }
        match pool.namespace.baseline(|baseline| baseline.due(at)) {
            Due::No => true,
            Due::Claimed => false,
            Due::Now => {
                let idle = place.idle.first().copied();
                self.open_one(p, id);
                if let Some(s) = idle.filter(|_| self.pools[p].nodes[usize::from(id.0)].connecting == 0) {
                    // There is no room for one more.
                    self.drop_server(s);
                    self.open_one(p, id);
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_about_settings() {
        for (code, routine, expected) in [
            ("22023", "set_config_option", true),
            ("42704", "set_config_option", true),
            ("42501", "call_string_check_hook", true),
            ("42501", "CheckMyDatabase", false),
            ("28000", "InitializeSessionUserId", false),
            ("3D000", "InitPostgres", false),
        ] {
            let error = format!("SFATAL\0C{code}\0Mno\0R{routine}\0\0");
            assert_eq!(is_about_a_setting(error.as_bytes()), expected, "{code} {routine}");
        }
        assert!(!is_about_a_setting(b"\0"));
    }
}
