//! LISTEN in transaction mode: one server connection a pool listens for all of its clients (`listener`), and none of them keeps one.
//!
//! A client's LISTEN is carried out by a server like any other statement, in its transaction, so PostgreSQL itself decides what comes of
//! it. When that is committed the worker has the shared connection listen, too; then the client is told that its transaction
//! is over, and the session that listened for that long is cleaned and goes back to its pool. What it was notified of is nobody's.
//!
//! ```text
//!  LISTEN ──▶ server: CommandComplete, ReadyForQuery ─┬─ not told yet ─▶ Ask ─▶ shared connection: LISTEN ─▶ Answer ─▶ told
//!                                                     └─ or it can't be had: the client is pinned to the server that listens already
//! ```
//!
//! What must hold:
//!
//! - Who has been told that its LISTEN is committed hears of every notification that is committed later: by the shared connection, or by its
//!   own. It never hears twice of one, and if it can't be known that it hears of all its connection is closed (`End::Lost`).
//! - What a client hears comes between two transactions (`Core::is_between`), in the order in which it was committed.
//! - What waits for that has a bound (`queue_bytes`).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use sql::{Change, Pins};
use topology::Role;
use wire::message::Status;
use wire::{Sqlstate, payload};

use super::listener::Word;
use super::notification::Notification;
use crate::config::{ListenMode, PoolMode};
use crate::core::Core;
use crate::core::memory::Token;
use crate::core::session::Client;

/// Longest name of a channel, in bytes: PostgreSQL cuts off what comes after that.
const LONGEST_NAME: usize = 63;

/// Channels that clients of one worker and pool listen on by the shared connection.
#[derive(Debug, Default)]
pub(in crate::core) struct Channels(HashMap<Arc<str>, Channel>);

#[derive(Debug, Default)]
struct Channel {
    /// The shared connection has it. Until then all of these wait for that.
    listening: bool,
    clients: Vec<Token>,
}

/// A worker's clients with notifications that they have not got yet.
#[derive(Debug, Default)]
pub(in crate::core) struct Noticed {
    clients: Vec<Token>,
    /// One of them may be able to get them by now.
    look_again: bool,
}

impl Noticed {
    fn add(&mut self, client: Token) {
        self.clients.push(client);
        self.look_again = true;
    }

    /// A client has been told that it is ready: if it listens, this may be the moment.
    pub(in crate::core) fn look_again_for(&mut self, client: &Client) {
        self.look_again |= client.listening.is_some();
    }

    /// Time has passed.
    pub(in crate::core) fn look_again_if_any(&mut self) {
        self.look_again = !self.clients.is_empty();
    }

    /// True, once, if one of them may be able to get them.
    pub(in crate::core) fn may_be_told(&mut self) -> bool {
        std::mem::take(&mut self.look_again)
    }

    pub(super) fn take(&mut self) -> Vec<Token> {
        std::mem::take(&mut self.clients)
    }

    /// Those who could not be told. What has come about meanwhile is behind them.
    pub(super) fn put_back(&mut self, mut clients: Vec<Token>) {
        clients.append(&mut self.clients);
        self.clients = clients;
    }
}

/// What a client listens on.
#[derive(Default)]
pub(in crate::core) struct Listening {
    channels: HashSet<Arc<str>>,
    /// Those that the transaction whose end the client has not been told has brought.
    asked: Vec<Arc<str>>,
    /// How many of these the shared connection has not answered for; and it has refused one.
    unanswered: usize,
    refused: bool,
    /// What it is to hear when it is between two transactions.
    queue: VecDeque<Arc<Notification>>,
    /// Size of all that, in bytes.
    queued: usize,
    end: Option<End>,
    /// It is in `Core::notificationd`.
    due: bool,
}

/// Why a client can't go on.
enum End {
    /// Notifications may have been missed.
    Lost(Arc<str>),
    /// More wait for it than may.
    Full,
}

// === impl Channels ===

impl Channels {
    /// True if nobody listens, and nothing is being asked for.
    pub(in crate::core) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

// === impl Client ===

impl Client {
    /// True if it has not been told that its transaction is over, because the shared connection has not answered.
    pub(in crate::core) fn awaits_listener(&self) -> bool {
        self.listening.as_ref().is_some_and(|listening| listening.unanswered > 0)
    }
}

/// As a server would name the channel.
fn channel(name: &str) -> &str {
    &name[..name.floor_char_boundary(LONGEST_NAME)]
}

impl Core {
    /// May the shared connection listen for this client, which is about to send LISTEN to its server?
    pub(in crate::core) fn may_share_listen(&self, c: usize, s: usize) -> bool {
        let client = &self.clients[c];
        // Channels and payloads come in the encoding of the session that listens.
        self.settings.notify.listen == ListenMode::Shared
            && self.pools[client.pool].database.mode != PoolMode::Session
            && client.pins.is_empty()
            && client.params.is_utf8()
            && self.view.node(self.servers[s].node).is_some_and(|node| node.role == Role::Primary)
    }

    /// `ReadyForQuery` has come: true if its client is not to get it yet, for it has listened, and the shared connection does not.
    pub(in crate::core) fn holds_ready(&mut self, s: usize, status: u8) -> bool {
        let server = &self.servers[s];
        if server.is_at_own() {
            return false;
        }
        let client = server.client;
        if client.is_some_and(|c| self.clients[c].awaits_listener()) {
            return true;
        }
        let changes = self.servers[s].tracker.channels(status == Status::Idle as u8);
        match client {
            Some(c) if !changes.is_empty() => self.listen(c, s, &changes),
            _ => false,
        }
    }

    /// A client's transaction has changed what it listens on: true if it has to wait for the shared connection.
    fn listen(&mut self, c: usize, s: usize, changes: &[Change]) -> bool {
        // What is given up and taken again in one transaction has been listened on all the time.
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
        // One that has heard itself in the transaction that made it listen hears by its own session from there on: what the shared
        // connection heard of that transaction nobody could tell from what comes later.
        if !self.may_share_listen(c, s) || self.servers[s].tracker.has_heard_itself() {
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

    /// The client stays with the server that listens for it.
    fn keep_listening(&mut self, c: usize, s: usize) {
        if self.is_replica(s) {
            // It was the primary when it was asked. What is notified now is notified elsewhere, and nobody stays there.
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
            self.say(p, Word::Ask { channel: name, from: self.id });
        }
    }

    /// Tells the worker that has a pool's shared connection.
    fn say(&mut self, p: usize, word: Word) {
        let to = self.listener_of(&self.pools[p].key);
        self.say_to(p, to, word);
    }

    fn unlisten(&mut self, c: usize, name: &str) {
        let client = &mut self.clients[c];
        let (p, token) = (client.pool, client.token);
        let Some(listening) = &mut client.listening else { return };
        let Some(name) = listening.channels.take(name) else { return };
        if listening.channels.is_empty() {
            self.metrics.clients_listening.sub(1);
        }
        // What has not been told yet would come after the answer to UNLISTEN.
        listening.queue.retain(|notification| notification.channel != name);
        listening.queued = listening.queue.iter().map(|notification| notification.size()).sum();
        if let Some(entry) = self.pools[p].channels.0.get_mut(&name) {
            if let Some(at) = entry.clients.iter().position(|&of| of == token) {
                entry.clients.swap_remove(at);
            }
            // While it is being asked for, the answer is waited for.
            if entry.clients.is_empty() && entry.listening {
                self.pools[p].channels.0.remove(&name);
                self.say(p, Word::Drop { channel: name, from: self.id });
            }
        }
        self.forget_listening(c);
    }

    /// The client listens on nothing any more, as far as the shared connection goes.
    pub(in crate::core) fn stop_listening(&mut self, c: usize) {
        let Some(listening) = &mut self.clients[c].listening else { return };
        let names: Vec<Arc<str>> = listening.channels.iter().cloned().collect();
        for name in names {
            self.unlisten(c, &name);
        }
        self.end_hold(c);
    }

    /// What the shared connection has been asked for on this client's behalf is not waited for.
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

    /// So much has come behind the end of the answer that it can't be put off any longer: the client keeps its server.
    pub(in crate::core) fn give_up_hold(&mut self, c: usize) {
        if let Some(listening) = &mut self.clients[c].listening {
            (listening.unanswered, listening.refused) = (0, true);
            self.listened(c);
        }
    }

    /// The client's server is gone, and with it what it was going to be told of its LISTEN.
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

    /// Who neither listens nor is to hear anything takes no room for it.
    fn forget_listening(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if client.listening.as_ref().is_some_and(|of| of.channels.is_empty() && of.queue.is_empty() && of.end.is_none())
        {
            client.listening = None;
        }
    }

    /// The shared connection listens on a channel that it was asked for, or it can't.
    pub(in crate::core) fn channel_answered(&mut self, p: usize, name: &Arc<str>, listens: bool) {
        let Some(entry) = self.pools[p].channels.0.get_mut(name) else { return };
        if entry.clients.is_empty() {
            self.pools[p].channels.0.remove(name);
            if listens {
                self.say(p, Word::Drop { channel: name.clone(), from: self.id });
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

    /// All that a client's transaction has asked the shared connection for is answered: the client may be told that it is over.
    fn listened(&mut self, c: usize) {
        let client = &mut self.clients[c];
        let server = client.at.server();
        let Some(listening) = &mut client.listening else { return };
        let asked = std::mem::take(&mut listening.asked);
        if std::mem::take(&mut listening.refused) {
            // Its own server connection has all of them.
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

    /// The shared connection is gone: whoever was listening by it may have missed something.
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
            self.noticed.add(token);
        }
    }

    /// A notification, for all of this worker's clients of the pool that listen on its channel.
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
            // What it does not read counts, too; while it is in a transaction that has a bound of its own.
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

    /// Tells a client what it has not heard, if it can be told now. `ready`: as in [`Core::is_between`]. True if it has heard all.
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

    /// A notification by a client's own server connection: true if it is for the client.
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
        // In the transaction that has just been committed it has begun to listen, and has notified itself.
        let begins = |name: &&str| self.servers[s].tracker.listens_on(name, channel);
        if twice || name.filter(begins).is_none() {
            return false;
        }
        self.servers[s].tracker.hears_itself();
        true
    }

    /// Passes it on.
    pub(in crate::core) fn pass_notification(&mut self, s: usize, data: &[u8]) {
        let Some(c) = self.servers[s].client else { return };
        let read =
            payload::notification(data).and_then(|(pid, name, text)| Some((pid, str::from_utf8(name).ok()?, text)));
        let notification = read.map(|(pid, name, text)| self.notification(s, pid, name.into(), text, 0));
        self.tell_of_commit(c, |core| match &notification {
            Some(notification) => core.tell_notification(c, notification),
            // In an encoding of its own.
            None => core.tell(c, |out| wire::message::message(out, b'A', |out| out.extend_from_slice(data))),
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
            // Not in the middle of a character.
            (&*format!("{long}é"), &*long),
        ] {
            assert_eq!(channel(name), expected);
        }
    }
}
