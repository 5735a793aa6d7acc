//! LISTEN in transaction mode: one server connection of a pool (`listener`) listens for all of the pool's clients, so that no client has to keep one.
//!
//! A client's LISTEN runs on a server like any other statement, in the client's transaction, so PostgreSQL itself decides if it succeeds. Once it is
//! committed, the worker has the shared connection listen, too. Only then does the client get the `ReadyForQuery` that ends its transaction. The
//! session that ran the LISTEN is cleaned (UNLISTEN) and returns to its pool; notifications that it received meanwhile are dropped.
//!
//! ```text
//! LISTEN ──▶ server: CommandComplete, ReadyForQuery ─┬─ held back ─▶ Ask ─▶ shared connection: LISTEN ─▶ Answer ─▶ sent to the client
//!                                                    └─ or sharing is not possible: the client is pinned to the server connection
//! ```
//!
//! Invariants:
//!
//! - A client that was told that its LISTEN is committed gets every notification that is committed later, through the shared connection or its own.
//!   It never gets one twice. If that cannot be guaranteed, the client's connection is closed (`End::Lost`).
//! - A client gets notifications only between two transactions (`Core::is_between`), in the order of their commits.
//! - Notifications that wait for that have a size limit (`queue_bytes`).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use sql::{Change, Pins};
use topology::Role;
use wire::message::Status;
use wire::{Sqlstate, payload};

use super::listener::ListenerMessage;
use super::notification::Notification;
use crate::config::{ListenMode, PoolMode};
use crate::core::Core;
use crate::core::memory::Token;
use crate::core::session::Client;

/// Maximum length of a channel name in bytes; PostgreSQL truncates longer names.
const LONGEST_NAME: usize = 63;

/// Channels on which this worker's clients of a pool listen through the shared connection.
#[derive(Debug, Default)]
pub(in crate::core) struct Channels(HashMap<Arc<str>, Channel>);

#[derive(Debug, Default)]
struct Channel {
    /// True if the shared connection listens on the channel. Until then the clients wait for its answer.
    listening: bool,
    clients: Vec<Token>,
}

/// Clients of a worker with pending notifications.
#[derive(Debug, Default)]
pub(in crate::core) struct PendingNotifications {
    clients: Vec<Token>,
    /// True if a client may be able to get its notifications now.
    look_again: bool,
}

impl PendingNotifications {
    fn add(&mut self, client: Token) {
        self.clients.push(client);
        self.look_again = true;
    }

    /// Marks a client that has been sent `ReadyForQuery`: if it listens, its notifications can be sent now.
    pub(in crate::core) fn look_again_for(&mut self, client: &Client) {
        self.look_again |= client.listening.is_some();
    }

    /// Called at each tick: a client may have become able to get its notifications.
    pub(in crate::core) fn look_again_if_any(&mut self) {
        self.look_again = !self.clients.is_empty();
    }

    /// True, once, if a client may be able to get its notifications.
    pub(in crate::core) fn may_be_told(&mut self) -> bool {
        std::mem::take(&mut self.look_again)
    }

    pub(super) fn take(&mut self) -> Vec<Token> {
        std::mem::take(&mut self.clients)
    }

    /// Puts back clients that could not get their notifications, before those added meanwhile.
    pub(super) fn put_back(&mut self, mut clients: Vec<Token>) {
        clients.append(&mut self.clients);
        self.clients = clients;
    }
}

/// State of a listening client.
#[derive(Default)]
pub(in crate::core) struct Listening {
    channels: HashSet<Arc<str>>,
    /// Channels of the transaction whose `ReadyForQuery` is held back.
    asked: Vec<Arc<str>>,
    /// Number of channels in `asked` that the shared connection has not answered for. `refused`: true if it has refused one.
    unanswered: usize,
    refused: bool,
    /// Notifications to be sent once the client is between two transactions.
    queue: VecDeque<Arc<Notification>>,
    /// Bytes of notifications in `queue`.
    queued: usize,
    end: Option<End>,
    /// True if the client is in `Core::noticed`.
    due: bool,
}

/// Reason why a listening client's connection has to be closed.
enum End {
    /// Notifications may have been lost.
    Lost(Arc<str>),
    /// The notifications that wait for the client exceed `queue_bytes`.
    Full,
}

// === impl Channels ===

impl Channels {
    /// True if no client listens, and no channel is requested.
    pub(in crate::core) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

// === impl Client ===

impl Client {
    /// True if the client's `ReadyForQuery` is held back until the shared connection answers.
    pub(in crate::core) fn awaits_listener(&self) -> bool {
        self.listening.as_ref().is_some_and(|listening| listening.unanswered > 0)
    }
}

/// Returns the name as PostgreSQL stores it, truncated to 63 bytes.
fn channel(name: &str) -> &str {
    &name[..name.floor_char_boundary(LONGEST_NAME)]
}

impl Core {
    /// True if the shared connection may listen for this client, which is about to send LISTEN to server `s`.
    pub(in crate::core) fn may_share_listen(&self, c: usize, s: usize) -> bool {
        let client = &self.clients[c];
        // A pinned client's own session also listens for it. But the order between two sources of notifications is unknown: a client that listens
        // through the shared connection continues to, unless its own session has begun to listen.
        let one_way = client.pins.is_empty()
            || (client.pins.0 & Pins::LISTEN.0 == 0
                && client.listening.as_ref().is_some_and(|listening| !listening.channels.is_empty()));
        // Channel names and payloads arrive in the encoding of the listening session, which is UTF-8.
        self.settings.notify.listen == ListenMode::Shared
            && self.pools[client.pool].database.mode != PoolMode::Session
            && one_way
            && client.params.is_utf8()
            && self.view.node(self.servers[s].node).is_some_and(|node| node.role == Role::Primary)
    }

    /// Handles `ReadyForQuery`; returns true if the message has to be held back, because the client's LISTEN is committed and the shared connection
    /// does not listen yet.
    pub(in crate::core) fn holds_ready(&mut self, s: usize, status: u8) -> bool {
        let server = &self.servers[s];
        if server.is_at_own() {
            return false;
        }
        let client = server.client;
        if client.is_some_and(|c| self.clients[c].awaits_listener()) {
            return true;
        }
        let idle = status == Status::Idle as u8;
        let changes = self.servers[s].tracker.channels(idle);
        match client {
            Some(c) if !changes.is_empty() => self.listen(c, s, &changes, idle),
            _ => false,
        }
    }

    /// Applies a transaction's changes to its client's channels; returns true if the client has to wait for the shared connection. `idle`: the
    /// session is outside of a transaction; otherwise the transaction ended with AND CHAIN.
    fn listen(&mut self, c: usize, s: usize, changes: &[Change], idle: bool) -> bool {
        // A channel that one transaction removes and adds again was listened on all the time.
        let had = self.clients[c].listening.as_ref().map(|listening| listening.channels.clone()).unwrap_or_default();
        let mut names: HashSet<&str> = had.iter().map(|name| &**name).collect();
        for change in changes {
            match change {
                Change::Listen(name) => _ = names.insert(channel(name)),
                Change::Unlisten(name) => _ = names.remove(channel(name)),
                Change::UnlistenAll | Change::DiscardAll => names.clear(),
                _ => {}
            }
        }
        for name in had.iter().filter(|name| !names.contains(&***name)) {
            self.unlisten(c, name);
        }
        let wanted: Vec<&str> = names.into_iter().filter(|name| !had.contains(*name)).collect();
        if wanted.is_empty() {
            return false;
        }
        // If the client received its own notification in the very transaction that made it listen, it stays with its own session. The shared
        // connection may deliver that notification too, and it could not be distinguished from a later one. After AND CHAIN it is still unknown if
        // the client will receive one: PostgreSQL sends it once the session is idle.
        if !idle || !self.may_share_listen(c, s) || self.servers[s].tracker.has_heard_itself() {
            self.keep_listening(c, s);
            return false;
        }
        let listening = self.clients[c].listening.get_or_insert_default();
        if listening.channels.len() + wanted.len() > self.settings.notify.channels_per_client {
            self.keep_listening(c, s);
            return false;
        }
        for name in wanted {
            self.subscribe(c, name);
        }
        if self.clients[c].awaits_listener() {
            return true;
        }
        self.listened(c);
        false
    }

    /// Pins the client to the server connection that listens for it.
    fn keep_listening(&mut self, c: usize, s: usize) {
        if self.is_replica(s) {
            // The node was the primary when LISTEN was sent. Later notifications come from the new primary, and no client stays on this node.
            let why = "its server is not the primary any more".into();
            let client = &mut self.clients[c];
            client.listening.get_or_insert_default().end = Some(End::Lost(why));
            let token = client.token;
            return self.is_due(token);
        }
        if self.clients[c].pins.0 & Pins::LISTEN.0 == 0 {
            self.metrics.listens_refused.add(1);
        }
        self.pin(c, s, Pins::LISTEN);
        self.forget_listening(c);
    }

    fn subscribe(&mut self, c: usize, name: &str) {
        let name: Arc<str> = name.into();
        let client = &mut self.clients[c];
        let pool = &mut self.pools[client.pool];
        let is_new = !pool.channels.0.contains_key(&name);
        let entry = pool.channels.0.entry(name.clone()).or_default();
        entry.clients.push(client.token);
        let listening = client.listening.get_or_insert_default();
        if listening.channels.is_empty() {
            self.metrics.clients_listening.add(1);
        }
        listening.channels.insert(name.clone());
        listening.unanswered += usize::from(!entry.listening);
        listening.asked.push(name.clone());
        if is_new {
            let p = client.pool;
            self.say(p, ListenerMessage::Ask { channel: name, from: self.id });
        }
    }

    /// Sends a message to the worker that has the pool's shared connection.
    fn say(&mut self, p: usize, message: ListenerMessage) {
        let to = self.listener_of(&self.pools[p].key);
        self.say_to(p, to, message);
    }

    fn unlisten(&mut self, c: usize, name: &str) {
        let client = &mut self.clients[c];
        let (p, token) = (client.pool, client.token);
        let Some(listening) = &mut client.listening else { return };
        let Some(name) = listening.channels.take(name) else { return };
        if listening.channels.is_empty() {
            self.metrics.clients_listening.sub(1);
        }
        // Queued notifications would be sent after the answer to UNLISTEN.
        listening.queue.retain(|notification| notification.channel != name);
        listening.queued = listening.queue.iter().map(|notification| notification.size()).sum();
        if let Some(entry) = self.pools[p].channels.0.get_mut(&name) {
            if let Some(at) = entry.clients.iter().position(|&of| of == token) {
                entry.clients.swap_remove(at);
            }
            // A channel that is being requested stays until its answer.
            if entry.clients.is_empty() && entry.listening {
                self.pools[p].channels.0.remove(&name);
                self.say(p, ListenerMessage::Drop { channel: name, from: self.id });
            }
        }
        self.forget_listening(c);
    }

    /// Ends all listening of a client through the shared connection.
    pub(in crate::core) fn stop_listening(&mut self, c: usize) {
        let Some(listening) = &mut self.clients[c].listening else { return };
        let names: Vec<Arc<str>> = listening.channels.iter().cloned().collect();
        for name in names {
            self.unlisten(c, &name);
        }
        self.end_hold(c);
    }

    /// Ends the holding of the client's `ReadyForQuery` for the shared connection.
    fn end_hold(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if let Some(listening) = &mut client.listening
            && std::mem::take(&mut listening.unanswered) > 0
        {
            (listening.refused, listening.asked) = (false, Vec::new());
            if let Some(s) = client.at.server() {
                self.unheld.push_back(self.servers[s].token);
            }
        }
    }

    /// Pins the client to its server connection, because too many bytes have arrived behind the held `ReadyForQuery`.
    pub(in crate::core) fn give_up_hold(&mut self, c: usize) {
        if let Some(listening) = &mut self.clients[c].listening {
            (listening.unanswered, listening.refused) = (0, true);
            self.listened(c);
        }
    }

    /// Ends a client's pending LISTEN: its server connection was lost before the client could be told that it listens.
    pub(in crate::core) fn listen_no_more(&mut self, c: usize) {
        let Some(listening) = &mut self.clients[c].listening else { return };
        if listening.unanswered == 0 {
            return;
        }
        (listening.unanswered, listening.refused) = (0, false);
        for name in std::mem::take(&mut listening.asked) {
            self.unlisten(c, &name);
        }
    }

    /// Frees the state of a client that listens on no channel and has no pending notifications.
    fn forget_listening(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if client.listening.as_ref().is_some_and(|of| of.channels.is_empty() && of.queue.is_empty() && of.end.is_none())
        {
            client.listening = None;
        }
    }

    /// Handles the shared connection's answer for a channel: it listens, or cannot.
    pub(in crate::core) fn channel_answered(&mut self, p: usize, name: &Arc<str>, listens: bool) {
        let Some(entry) = self.pools[p].channels.0.get_mut(name) else { return };
        if entry.clients.is_empty() {
            self.pools[p].channels.0.remove(name);
            if listens {
                self.say(p, ListenerMessage::Drop { channel: name.clone(), from: self.id });
            }
            return;
        }
        entry.listening = listens;
        let clients = if listens { entry.clients.clone() } else { std::mem::take(&mut entry.clients) };
        if !listens {
            self.pools[p].channels.0.remove(name);
        }
        for token in clients.into_iter().filter(|&token| self.is_client(token)).collect::<Vec<_>>() {
            let c = token.index();
            let Some(listening) = &mut self.clients[c].listening else { continue };
            listening.unanswered = listening.unanswered.saturating_sub(1);
            if !listens {
                listening.refused = true;
                listening.channels.remove(name);
                if listening.channels.is_empty() {
                    self.metrics.clients_listening.sub(1);
                }
            }
            if listening.unanswered == 0 {
                self.listened(c);
            }
        }
    }

    /// Ends the wait of a client once the shared connection has answered for all channels of its transaction: the client gets its `ReadyForQuery`.
    fn listened(&mut self, c: usize) {
        let client = &mut self.clients[c];
        let server = client.at.server();
        let Some(listening) = &mut client.listening else { return };
        let asked = std::mem::take(&mut listening.asked);
        if std::mem::take(&mut listening.refused) {
            // The client's own server connection listens on all of the channels.
            for name in asked {
                self.unlisten(c, &name);
            }
            if let Some(s) = server {
                self.keep_listening(c, s);
            }
        } else {
            self.metrics.listens_shared.add(asked.len() as u64);
        }
        if let Some(s) = server {
            self.unheld.push_back(self.servers[s].token);
        }
    }

    /// Handles the loss of the shared connection: clients that listen through it may have missed notifications.
    pub(in crate::core) fn listening_lost(&mut self, p: usize, why: &Arc<str>) {
        let lost: Vec<_> = self.pools[p].channels.0.extract_if(|_, entry| entry.listening).collect();
        for (name, entry) in lost {
            for token in entry.clients {
                if self.is_client(token)
                    && let Some(listening) = &mut self.clients[token.index()].listening
                {
                    if listening.channels.remove(&name) && listening.channels.is_empty() {
                        self.metrics.clients_listening.sub(1);
                    }
                    listening.end = Some(End::Lost(why.clone()));
                    self.is_due(token);
                }
            }
        }
    }

    fn is_due(&mut self, token: Token) {
        if let Some(listening) = &mut self.clients[token.index()].listening
            && !std::mem::replace(&mut listening.due, true)
        {
            self.pending_notifications.add(token);
        }
    }

    /// Queues a notification for this worker's clients of the pool that listen on its channel.
    pub(in crate::core) fn hear(&mut self, p: usize, notification: &Arc<Notification>) {
        let Some(entry) = self.pools[p].channels.0.get_mut(&notification.channel) else { return };
        let clients = std::mem::take(&mut entry.clients);
        let (size, most) = (notification.size(), self.settings.notify.queue_bytes);
        let mut full = Vec::new();
        for &token in &clients {
            if !self.is_client(token) {
                continue;
            }
            let client = &mut self.clients[token.index()];
            let Some(listening) = &mut client.listening else { continue };
            if listening.end.is_some() {
                continue;
            }
            // Unread output also counts; during a transaction, output has its own limit.
            if listening.queued + size > most || client.output.len() > most.max(2 * self.settings.buffer_limit) {
                listening.end = Some(End::Full);
                full.push(token);
            } else {
                listening.queue.push_back(notification.clone());
                listening.queued += size;
            }
            self.is_due(token);
        }
        if let Some(entry) = self.pools[p].channels.0.get_mut(&notification.channel) {
            entry.clients = clients;
        }
        for token in full {
            self.stop_listening(token.index());
        }
    }

    /// Sends a client its notifications, if that is possible now. `ready`: as in [`Core::is_between`]. Returns true if none are left.
    pub(in crate::core) fn notify(&mut self, c: usize, ready: bool) -> bool {
        let Some(listening) = &self.clients[c].listening else { return true };
        if listening.queue.is_empty() && listening.end.is_none() {
            if let Some(listening) = &mut self.clients[c].listening {
                listening.due = false;
            }
            return true;
        }
        if !self.is_between(c, ready) {
            return false;
        }
        let Some(listening) = &mut self.clients[c].listening else { return true };
        let queue = std::mem::take(&mut listening.queue);
        (listening.queued, listening.due) = (0, false);
        let end = listening.end.take();
        self.metrics.notifications_told.add(queue.len() as u64);
        if !queue.is_empty() {
            self.tell_of_commit(c, |core| {
                for notification in queue {
                    core.tell_notification(c, &notification);
                }
            });
        }
        match end {
            None => self.forget_listening(c),
            Some(end) => {
                self.metrics.listeners_closed.add(1);
                let (code, text) = match end {
                    End::Lost(why) => (
                        Sqlstate::ADMIN_SHUTDOWN,
                        format!("terminating connection: notifications may be missing, for the server connection that listens was lost: {why}"),
                    ),
                    End::Full => (
                        Sqlstate::CONFIGURATION_LIMIT_EXCEEDED,
                        "terminating connection: more notifications wait than proxy.notify.queue_bytes allows: read them, outside of transactions"
                            .to_owned(),
                    ),
                };
                self.fatal(c, code, &text);
            }
        }
        true
    }

    // --- by the client's own server connection ---

    /// Handles a notification on a client's own server connection; returns true if the client is to get it.
    pub(in crate::core) fn hears_own(&mut self, s: usize, data: &[u8]) -> bool {
        let Some(c) = self.servers[s].client else { return false };
        let client = &self.clients[c];
        if self.pools[client.pool].database.mode == PoolMode::Session {
            return true;
        }
        let name = payload::notification(data).and_then(|(_, name, _)| str::from_utf8(name).ok());
        let twice = name.is_some_and(|name| client.listening.as_ref().is_some_and(|of| of.channels.contains(name)));
        if client.pins.0 & Pins::LISTEN.0 != 0 {
            return !twice;
        }
        // The client's transaction, just committed, has started to listen and has notified the channel.
        let begins = |name: &&str| self.servers[s].tracker.listens_on(name, channel);
        if twice || name.filter(begins).is_none() {
            return false;
        }
        self.servers[s].tracker.hears_itself();
        true
    }

    /// Passes such a notification to the client.
    pub(in crate::core) fn pass_notification(&mut self, s: usize, data: &[u8]) {
        let Some(c) = self.servers[s].client else { return };
        let read =
            payload::notification(data).and_then(|(pid, name, text)| Some((pid, str::from_utf8(name).ok()?, text)));
        let notification = read.map(|(pid, name, text)| self.notification(s, pid, name.into(), text, 0));
        self.tell_of_commit(c, |core| match &notification {
            Some(notification) => core.tell_notification(c, notification),
            // The text is in another encoding.
            None => core.write_client(c, |out| wire::message::message(out, b'A', |out| out.extend_from_slice(data))),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_off_as_by_a_server() {
        let long = "x".repeat(62);
        for (name, expected) in [
            ("a", "a"),
            (&*format!("{long}yz"), &*format!("{long}y")),
            // Not truncated within a character.
            (&*format!("{long}é"), &*long),
        ] {
            assert_eq!(channel(name), expected);
        }
    }
}
