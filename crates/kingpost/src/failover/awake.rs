//! A clock that runs only while this program runs.
//!
//! A program that stood still (its machine was paused, or had no time for it) finds that all its waits are over when it goes on, and takes servers for silent
//! whose answers lie in its sockets. This clock counts ticks that the program has made: a pause of an hour is one tick. So "no answer within a second" means
//! a second in which this program could have taken the answer.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What one tick stands for. The clock is a little slow, never fast: a tick is a sleep of so long, which takes longer on a busy machine.
const TICK: Duration = Duration::from_millis(50);

/// The clock. Its ticks end when the value is dropped.
pub(super) struct Awake {
    ticks: watch::Receiver<u32>,
    ticking: JoinHandle<()>,
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.ticking.abort();
    }
}

impl Awake {
    /// Begins at zero. Needs a runtime with time.
    pub(super) fn start() -> Awake {
        let (clock, ticks) = watch::channel(0_u32);
        let ticking = tokio::spawn(async move {
            loop {
                tokio::time::sleep(TICK).await;
                clock.send_modify(|ticks| *ticks = ticks.saturating_add(1));
            }
        });
        Awake { ticks, ticking }
    }

    /// How long this program has run since the start of the clock.
    pub(super) fn now(&self) -> Duration {
        TICK * *self.ticks.borrow()
    }

    /// Waits until this program has run for so long.
    pub(super) async fn sleep(&self, time: Duration) {
        let until = self.now() + time;
        let mut ticks = self.ticks.clone();
        // The sender lives as long as this value.
        let _ = ticks.wait_for(|ticks| TICK * *ticks >= until).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    /// However long it takes until the next tick, it is one tick: what is waited for a second takes twenty.
    #[tokio::test]
    async fn a_second_is_twenty_ticks() {
        let (clock, ticks) = watch::channel(7);
        let awake = Awake { ticks, ticking: tokio::spawn(async {}) };
        let before = awake.now();
        let mut second = pin!(awake.sleep(Duration::from_secs(1)));
        assert!(second.as_mut().now_or_never().is_none());
        for _ in 0..19 {
            clock.send_modify(|ticks| *ticks += 1);
            assert!(second.as_mut().now_or_never().is_none(), "{:?}", awake.now());
        }
        clock.send_modify(|ticks| *ticks += 1);
        assert!(second.as_mut().now_or_never().is_some());
        assert_eq!(awake.now() - before, Duration::from_secs(1));
    }
}
