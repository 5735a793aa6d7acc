//! Orders to the receiving thread, and the way to interrupt it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::channel::Channel;
use crate::config::UpstreamConfig;
use crate::error::UpstreamError;
use crate::promise::Promise;

/// Orders to the receiving thread, and the way to interrupt it.
#[derive(Debug)]
pub(crate) struct Control {
    state: Mutex<ControlState>,
    changed: Condvar,
}

#[derive(Debug)]
struct ControlState {
    config: UpstreamConfig,
    /// Number that rises with each change of `config`.
    generation: u64,
    stopping: bool,
    /// The connection in use.
    socket: Option<Channel>,
    /// True while something may be received and acknowledged: from [`Control::hold`] until the connection's work has ended.
    receiving: bool,
    /// The configured address; `config.address` is the one in use.
    configured: String,
}

impl Control {
    /// Starts with the configured upstream, or the one that a failover has put in its place.
    pub(crate) fn new(configured: &UpstreamConfig, promise: &Promise) -> Control {
        let (mut config, configured) = (configured.clone(), configured.address.clone());
        config.address = promise.upstream_for(&configured).into();
        let state = ControlState { config, generation: 0, stopping: false, socket: None, receiving: false, configured };
        Control { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, ControlState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the upstream to follow, and its generation, which each change raises. None: the thread must end.
    pub(crate) fn wanted(&self) -> Option<(UpstreamConfig, u64)> {
        let state = self.lock();
        (!state.stopping).then(|| (state.config.clone(), state.generation))
    }

    /// Changes the upstream, or its settings. The connection in use ends if anything differs.
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

    /// Returns the configured address; empty: none.
    pub(crate) fn configured(&self) -> String {
        self.lock().configured.clone()
    }

    /// Applies a changed configuration. If it names no upstream, the address set by [`Control::follow`] stays.
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

    /// Ends the current receiving, and returns once none of it is under way; a new connection is made after. False: it has not ended until `end`.
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

    /// Tells the receiving thread to end.
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

    /// Registers a connection that is logging in, so that it can be interrupted. Nothing is received on it yet.
    pub(crate) fn connecting(&self, generation: u64, socket: Channel) -> Result<(), UpstreamError> {
        let mut state = self.lock();
        if state.stopping || state.generation != generation {
            return Err(UpstreamError::Interrupted);
        }
        state.socket = Some(socket);
        Ok(())
    }

    /// Records that the connection's work has ended.
    pub(crate) fn received(&self) {
        let mut state = self.lock();
        state.socket = None;
        state.receiving = false;
        self.changed.notify_all();
    }

    /// Registers a connection, so that it can be interrupted.
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

    /// Waits; true if there is a new order before the time is over.
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
