//! What the receiving thread is told from outside, and the way to interrupt it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::channel::Channel;
use crate::config::UpstreamConfig;
use crate::error::UpstreamError;
use crate::promise::Promise;

/// What the receiving thread is told, and the way to interrupt it.
#[derive(Debug)]
pub(crate) struct Control {
    state: Mutex<ControlState>,
    changed: Condvar,
}

#[derive(Debug)]
struct ControlState {
    config: UpstreamConfig,
    /// Goes up with each change of `config`.
    generation: u64,
    stopping: bool,
    /// The connection that is in use.
    socket: Option<Channel>,
    /// Something may be received and acknowledged: from [`Control::hold`] until the connection's work has ended.
    receiving: bool,
    /// What the configuration says; `config.address` is where in fact.
    configured: String,
}

impl Control {
    /// Follows what is configured, or whoever a failover has put in its place.
    pub(crate) fn new(configured: &UpstreamConfig, promise: &Promise) -> Control {
        let (mut config, configured) = (configured.clone(), configured.address.clone());
        config.address = promise.upstream_for(&configured).into();
        let state = ControlState { config, generation: 0, stopping: false, socket: None, receiving: false, configured };
        Control { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, ControlState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What to follow, and the number of that word: it changes with each new one. None: the thread is to end.
    pub(crate) fn wanted(&self) -> Option<(UpstreamConfig, u64)> {
        let state = self.lock();
        (!state.stopping).then(|| (state.config.clone(), state.generation))
    }

    /// Follows another upstream, or the same in another way. The connection in use ends if anything is different.
    pub(crate) fn follow(&self, change: impl FnOnce(&mut UpstreamConfig)) {
        let mut state = self.lock();
        let mut config = state.config.clone();
        change(&mut config);
        if config != state.config {
            state.config = config;
            state.generation += 1;
            if let Some(socket) = state.socket.take() {
                socket.shutdown();
            }
            self.changed.notify_all();
        }
    }

    /// What the configuration says; empty: nothing.
    pub(crate) fn configured(&self) -> String {
        self.lock().configured.clone()
    }

    /// The configuration has changed. Where it names no upstream, somebody else does ([`Control::follow`]), and that word stands.
    pub(crate) fn configure(&self, configured: &UpstreamConfig, promise: &Promise) {
        self.lock().configured.clone_from(&configured.address);
        self.follow(|current| {
            let address = match configured.address.as_str() {
                "" => std::mem::take(&mut current.address),
                configured => promise.upstream_for(configured).into(),
            };
            *current = UpstreamConfig { address, ..configured.clone() };
        });
    }

    /// Ends what is received now, and returns once nothing of it is under way any more; a new connection is made after. False: it
    /// has not ended until `end`.
    pub(crate) fn interrupt(&self, end: Instant) -> bool {
        let mut state = self.lock();
        state.generation += 1;
        if let Some(socket) = state.socket.take() {
            socket.shutdown();
        }
        self.changed.notify_all();
        let interrupted = state.generation;
        while state.receiving && state.generation == interrupted {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        !state.receiving
    }

    /// Ends the receiving thread.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.stopping = true;
        if let Some(socket) = state.socket.take() {
            socket.shutdown();
        }
        self.changed.notify_all();
    }

    pub(crate) fn address(&self) -> String {
        self.lock().config.address.clone()
    }

    /// Makes a connection that logs in known, so that it can be interrupted. Nothing is received on it yet.
    pub(crate) fn connecting(&self, generation: u64, socket: Channel) -> Result<(), UpstreamError> {
        let mut state = self.lock();
        if state.stopping || state.generation != generation {
            return Err(UpstreamError::Interrupted);
        }
        state.socket = Some(socket);
        Ok(())
    }

    /// The connection's work has ended.
    pub(crate) fn received(&self) {
        let mut state = self.lock();
        state.socket = None;
        state.receiving = false;
        self.changed.notify_all();
    }

    /// Makes a connection known, so that it can be interrupted.
    pub(crate) fn hold(&self, generation: u64, socket: Channel) -> Result<(), UpstreamError> {
        let mut state = self.lock();
        if state.stopping || state.generation != generation {
            return Err(UpstreamError::Interrupted);
        }
        state.socket = Some(socket);
        state.receiving = true;
        Ok(())
    }

    pub(crate) fn interrupted(&self, generation: u64) -> bool {
        let state = self.lock();
        state.stopping || state.generation != generation
    }

    /// Waits; true if there is something new to do sooner.
    pub(crate) fn pause(&self, generation: u64, length: Duration) -> bool {
        let end = Instant::now() + length;
        let mut state = self.lock();
        loop {
            if state.stopping || state.generation != generation {
                return true;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
