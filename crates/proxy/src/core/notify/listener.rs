//! The server connection of a pool that listens for all of the pool's clients.
//!
//! One worker has the connection (`Core::listener_of`), whatever workers the clients are on. The other workers request channels and receive
//! notifications by messages. The connection is opened to the primary at the first request for a channel. It does not count in the pool's size, and is
//! never assigned to a client.
//!
//! Invariants:
//!
//! - Each [`ListenerMessage::Ask`] is answered once, after LISTEN on the connection has succeeded or failed. Later notifications are sent after the
//!   answer.
//! - When the connection is lost, each worker with an answered request gets [`ListenerMessage::Lost`]. The connection does not silently listen again:
//!   notifications in between are lost, and the clients have to know.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use wire::{message, payload};

use super::notification::Notification;
use crate::core::memory::{Kind, Token};
use crate::core::pool::PoolKey;
use crate::core::server::{Note, Request, Server, ServerPhase};
use crate::core::{Core, CoreMessage, Effect, over};

/// Pause after a failure. Meanwhile a LISTEN pins its client.
const AGAIN: Duration = Duration::from_secs(1);
/// Time after which a connection that listens on no channel is closed.
const LINGER: Duration = Duration::from_secs(30);
/// Time of silence after which a connection is probed.
const PROBE: Duration = Duration::from_secs(10);
/// Minimum time between probes that are sent because of notifications.
const PACE: Duration = Duration::from_millis(5);
/// Bytes of notifications on their way to other workers above which the connection is not read.
const MOST_ON_THEIR_WAY: usize = 8 << 20;

/// Message between workers about a shared connection.
#[derive(Debug)]
pub enum ListenerMessage {
    /// A worker's request for a channel.
    Ask {
        /// The channel.
        channel: Arc<str>,
        /// The worker.
        from: usize,
    },
    /// Notice that no client of the worker listens on the channel any more.
    Drop {
        /// The channel.
        channel: Arc<str>,
        /// The worker.
        from: usize,
    },
    /// The answer to `Ask`.
    Answer {
        /// The channel.
        channel: Arc<str>,
        /// True if the shared connection listens on it, false if it cannot.
        listens: bool,
    },
    /// A notification.
    Heard(Arc<Notification>),
    /// Notice that the connection was lost, with the reason.
    Lost(Arc<str>),
}

/// Shared connection of a pool, in the worker that has it.
pub(in crate::core) struct Listener {
    server: Option<Token>,
    channels: HashMap<Arc<str>, Heard>,
    /// Queries without an answer yet.
    sent: VecDeque<Sent>,
    /// Counter of channel requests: it distinguishes two requests for the same channel.
    number: u64,
    retry_at: Option<Instant>,
    /// Time of the last query on the idle connection, or of its last message.
    since: Instant,
    /// Time of the last probe. `proven`: the last probe that was answered.
    probed: Instant,
    proven: u64,
}

impl Listener {
    /// True if the connection exists, or a channel is requested.
    pub(in crate::core) fn is_needed(&self) -> bool {
        self.server.is_some() || !self.channels.is_empty()
    }
}

/// A channel that the connection listens on, or is going to.
struct Heard {
    number: u64,
    listening: bool,
    /// The workers that got an answer.
    workers: Vec<usize>,
    /// The workers that wait for an answer.
    asking: Vec<usize>,
}

enum Sent {
    Listen(Arc<str>, u64),
    Unlisten,
    Probe(u64),
}

/// Returns a channel's name as a quoted SQL identifier.
fn quoted(channel: &str) -> String {
    format!("\"{}\"", channel.replace('"', "\"\""))
}

impl Core {
    /// Returns the worker that has a pool's shared connection.
    pub(in crate::core) fn listener_of(&self, key: &PoolKey) -> usize {
        // The hash is the same in every worker.
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        (hasher.finish() % self.shared.workers.max(1) as u64) as usize
    }

    pub(in crate::core) fn about_listening(&mut self, key: &PoolKey, message: ListenerMessage) {
        match message {
            ListenerMessage::Ask { channel, from } => {
                let p = self.pool(key);
                self.asked_to_listen(p, channel, from);
            }
            ListenerMessage::Drop { channel, from } => {
                if let Some(p) = self.pools.find(key) {
                    self.channel_dropped(p, &channel, from);
                }
            }
            ListenerMessage::Answer { channel, listens } => {
                if let Some(p) = self.pools.find(key) {
                    self.channel_answered(p, &channel, listens);
                }
            }
            ListenerMessage::Heard(notification) => {
                self.shared.notification_bytes.fetch_sub(notification.size(), Ordering::Relaxed);
                if let Some(p) = self.pools.find(key) {
                    self.hear(p, &notification);
                }
            }
            ListenerMessage::Lost(why) => {
                if let Some(p) = self.pools.find(key) {
                    self.listening_lost(p, &why);
                }
            }
        }
    }

    /// Sends another worker (or this one) a message about a pool's shared connection.
    pub(in crate::core) fn say_to(&mut self, p: usize, to: usize, message: ListenerMessage) {
        let key = self.pools[p].key.clone();
        self.effects.push(Effect::Post { to, message: CoreMessage::Listen { key, message } });
    }

    fn refuse_channel(&mut self, p: usize, to: usize, channel: Arc<str>) {
        self.say_to(p, to, ListenerMessage::Answer { channel, listens: false });
    }

    // --- requests for channels ---

    fn asked_to_listen(&mut self, p: usize, channel: Arc<str>, from: usize) {
        let (now, most) = (self.now, self.settings.notify.channels);
        let paused = self.pools[p].paused;
        let listener = self.pools[p].listener.get_or_insert_with(|| {
            Box::new(Listener {
                server: None,
                channels: HashMap::new(),
                sent: VecDeque::new(),
                number: 0,
                retry_at: None,
                since: now,
                probed: now,
                proven: 0,
            })
        });
        if let Some(heard) = listener.channels.get_mut(&channel) {
            if heard.listening {
                heard.workers.push(from);
                self.say_to(p, from, ListenerMessage::Answer { channel, listens: true });
            } else {
                heard.asking.push(from);
            }
            return;
        }
        let retired = listener.server.is_some_and(|token| self.servers[token.index()].retire);
        let resting = listener.server.is_none() && (paused || listener.retry_at.is_some_and(|at| now < at));
        if listener.channels.len() >= most || retired || resting {
            return self.refuse_channel(p, from, channel);
        }
        listener.number += 1;
        let heard = Heard { number: listener.number, listening: false, workers: Vec::new(), asking: vec![from] };
        listener.channels.insert(channel.clone(), heard);
        match listener.server {
            Some(token) => self.send_listen(token.index(), &channel),
            None => self.open_listener(p),
        }
    }

    fn channel_dropped(&mut self, p: usize, channel: &Arc<str>, from: usize) {
        let Some(listener) = &mut self.pools[p].listener else { return };
        let Some(heard) = listener.channels.get_mut(channel) else { return };
        heard.workers.retain(|&worker| worker != from);
        if !heard.workers.is_empty() || !heard.asking.is_empty() {
            return;
        }
        listener.channels.remove(channel);
        if let Some(token) = listener.server {
            listener.sent.push_back(Sent::Unlisten);
            self.own_query(token.index(), &format!("UNLISTEN {}", quoted(channel)));
        }
    }

    fn open_listener(&mut self, p: usize) {
        let Some(address) = self.view.primary.and_then(|node| self.address(node)) else {
            return self.refuse_all(p);
        };
        let Some(node) = self.view.primary else { return };
        let token = self.token(Kind::Server, self.servers.vacant_key());
        let mut server = Server::new(token, p, node, self.params.none().clone(), self.now);
        server.listener = true;
        self.servers.insert(server);
        self.pools[p].servers += 1;
        self.metrics.servers.add(1);
        if let Some(listener) = &mut self.pools[p].listener {
            listener.server = Some(token);
        }
        self.effects.push(Effect::Connect { token, address });
    }

    /// Refuses all requests for channels, because there is no connection.
    fn refuse_all(&mut self, p: usize) {
        let retry_at = self.now + AGAIN;
        let Some(listener) = &mut self.pools[p].listener else { return };
        listener.retry_at = Some(retry_at);
        let channels = std::mem::take(&mut listener.channels);
        for (channel, heard) in channels {
            for from in heard.asking {
                self.refuse_channel(p, from, channel.clone());
            }
        }
    }

    // --- the connection ---

    fn send_listen(&mut self, s: usize, channel: &Arc<str>) {
        // Before the login is done no query is sent; `listener_opened` then sends all LISTENs.
        if !matches!(self.servers[s].phase, ServerPhase::Ready) {
            return;
        }
        let now = self.now;
        let Some(listener) = &mut self.pools[self.servers[s].pool].listener else { return };
        let Some(number) = listener.channels.get(channel).map(|heard| heard.number) else { return };
        if listener.sent.is_empty() {
            listener.since = now;
        }
        listener.sent.push_back(Sent::Listen(channel.clone(), number));
        self.own_query(s, &format!("LISTEN {}", quoted(channel)));
    }

    /// Handles the login of the connection.
    pub(in crate::core) fn listener_opened(&mut self, s: usize) {
        self.metrics.listeners.add(1);
        if !self.is_primary(s) {
            return self.listener_lost(s, "the node is not the primary any more");
        }
        let p = self.servers[s].pool;
        let Some(listener) = &mut self.pools[p].listener else { return };
        listener.since = self.now;
        let channels: Vec<Arc<str>> = listener.channels.keys().cloned().collect();
        for channel in channels {
            self.send_listen(s, &channel);
        }
    }

    /// Handles the success or failure of the oldest query in flight.
    pub(in crate::core) fn listener_answered(&mut self, s: usize) {
        let error = self.servers[s].own.error.take();
        let p = self.servers[s].pool;
        let now = self.now;
        let Some(listener) = &mut self.pools[p].listener else { return };
        listener.since = now;
        let (channel, number) = match listener.sent.pop_front() {
            Some(Sent::Listen(channel, number)) => (channel, number),
            Some(Sent::Probe(number)) => {
                listener.proven = number;
                return;
            }
            _ => return,
        };
        let Some(heard) = listener.channels.get_mut(&channel).filter(|heard| heard.number == number) else { return };
        let asking = std::mem::take(&mut heard.asking);
        heard.listening = error.is_none();
        match &error {
            None => heard.workers.extend(&asking),
            Some(error) => {
                let text = payload::error_message(error);
                tracing::warn!(error = &*text, "the shared connection can't LISTEN: clients keep their own");
                listener.channels.remove(&channel);
            }
        }
        for from in asking {
            self.say_to(p, from, ListenerMessage::Answer { channel: channel.clone(), listens: error.is_none() });
        }
    }

    /// Handles the loss of the connection, or a failure to open it.
    pub(in crate::core) fn listener_lost(&mut self, s: usize, why: &str) {
        let (p, token) = (self.servers[s].pool, self.servers[s].token);
        self.close_listener(s);
        let Some(listener) = self.pools[p].listener.as_mut() else { return };
        if listener.server != Some(token) {
            return;
        }
        listener.server = None;
        listener.sent.clear();
        listener.proven = 0;
        let mut workers: Vec<usize> =
            listener.channels.values().flat_map(|heard| heard.workers.iter().copied()).collect();
        workers.sort_unstable();
        workers.dedup();
        tracing::warn!(why, workers = workers.len(), "the server connection that listens for clients was lost");
        let why: Arc<str> = why.into();
        for worker in workers {
            self.say_to(p, worker, ListenerMessage::Lost(why.clone()));
        }
        self.refuse_all(p);
    }

    /// Handles a change of the clients' database: listening clients are notified as after a loss of the shared connection.
    pub(in crate::core) fn listens_elsewhere(&mut self, p: usize) {
        if let Some(token) = self.pools[p].listener.as_ref().and_then(|listener| listener.server) {
            self.listener_lost(token.index(), "the configuration names another database");
        }
    }

    fn close_listener(&mut self, s: usize) {
        if matches!(self.servers[s].phase, ServerPhase::Ready) {
            self.metrics.listeners.sub(1);
        }
        self.drop_server(s);
    }

    /// Closes connections that are no longer needed, and detects those that do not answer.
    pub(in crate::core) fn look_after_listeners(&mut self) {
        for p in self.pools.ids() {
            let Some(listener) = &self.pools[p].listener else { continue };
            let Some(token) = listener.server else { continue };
            let s = token.index();
            let server = &self.servers[s];
            if !matches!(server.phase, ServerPhase::Ready) {
                continue;
            }
            let unused = listener.channels.is_empty() && listener.sent.is_empty();
            let (since, waits) = (listener.since, !listener.sent.is_empty());
            if unused && (over(since, LINGER, self.now) || self.pools[p].paused || server.retire || self.draining) {
                if let Some(listener) = &mut self.pools[p].listener {
                    listener.server = None;
                }
                self.close_listener(s);
            } else if waits && over(since, self.settings.connect_timeout, self.now) {
                self.listener_lost(s, "it did not answer within connect_timeout");
            } else if !unused
                && !waits
                && (over(since, PROBE, self.now) || listener.proven < self.shared.counters.wanted())
            {
                self.probe_listener(s);
            }
            let paused = self.servers.get(s).is_some_and(|server| server.token == token && server.paused);
            if paused && self.shared.notification_bytes.load(Ordering::Relaxed) < MOST_ON_THEIR_WAY / 2 {
                self.servers[s].paused = false;
                self.effects.push(Effect::Resume(token));
            }
        }
    }

    /// Sends a probe. Once it is answered, all notifications that were committed before it have arrived.
    fn probe_listener(&mut self, s: usize) {
        let number = self.shared.counters.probe();
        if let Some(listener) = &mut self.pools[self.servers[s].pool].listener {
            (listener.since, listener.probed) = (self.now, self.now);
            listener.sent.push_back(Sent::Probe(number));
        }
        self.write_server(s, |out| message::query(out, ""));
        self.servers[s].protocol.sent(Request::Query, Note::Own);
    }

    /// Handles a `NotificationResponse` on a shared connection.
    pub(in crate::core) fn notified(&mut self, s: usize, data: &[u8]) {
        let Some((pid, channel, text)) = payload::notification(data) else { return };
        let p = self.servers[s].pool;
        let now = self.now;
        let Some(listener) = &mut self.pools[p].listener else { return };
        if listener.sent.is_empty() {
            listener.since = now;
        }
        let Some((name, heard)) = str::from_utf8(channel).ok().and_then(|name| listener.channels.get_key_value(name))
        else {
            return;
        };
        let workers: Vec<usize> = heard.workers.iter().chain(&heard.asking).copied().collect();
        let name = name.clone();
        let proven = listener.proven;
        // After a probe, the senders of the next notifications will be certain.
        let probes =
            listener.sent.is_empty() && over(listener.probed, PACE, now) && proven < self.shared.counters.wanted();
        self.metrics.notifications.add(1);
        let notification = Arc::new(self.notification(s, pid, name, text, proven));
        if probes {
            self.probe_listener(s);
        }
        for worker in workers {
            let on_their_way = self.shared.notification_bytes.fetch_add(notification.size(), Ordering::Relaxed);
            self.say_to(p, worker, ListenerMessage::Heard(notification.clone()));
            let server = &mut self.servers[s];
            if on_their_way > MOST_ON_THEIR_WAY && !server.paused {
                server.paused = true;
                self.effects.push(Effect::Pause(server.token));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_quoted() {
        for (name, expected) in [("a", "\"a\""), ("A b", "\"A b\""), ("a\"; DROP", "\"a\"\"; DROP\""), ("", "\"\"")] {
            assert_eq!(quoted(name), expected);
        }
    }
}
