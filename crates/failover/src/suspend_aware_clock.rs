//! A clock that runs only while this program runs.
//!
//! A program that was suspended (its machine was paused, or too busy to run it) finds all its waits over when it goes on, and takes servers for
//! silent whose answers lie in its sockets. This clock counts ticks of the program: a pause of an hour is one tick. So "no answer within a second"
//! means a second in which this program could have received the answer.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Time of one tick. The clock may be slow, never fast: a tick is a sleep of this length, which takes longer on a busy machine.
const TICK: Duration = Duration::from_millis(50);

/// The clock. Its ticks end when the value is dropped.
pub(super) struct SuspendAwareClock {
    ticks: watch::Receiver<u32>,
    ticking: JoinHandle<()>,
}

impl Drop for SuspendAwareClock {
    fn drop(&mut self) {
        self.ticking.abort();
    }
}

impl SuspendAwareClock {
    /// Starts at zero. Needs a runtime with time.
    pub(super) fn start() -> SuspendAwareClock {
        let (clock, ticks) = watch::channel(0_u32);
        let ticking = tokio::spawn(async move {
            loop {
                tokio::time::sleep(TICK).await;
                clock.send_modify(|ticks| *ticks = ticks.saturating_add(1));
            }
        });
        SuspendAwareClock { ticks, ticking }
    }

    /// Returns the time that this program has run since the start of the clock.
    pub(super) fn now(&self) -> Duration {
        TICK * *self.ticks.borrow()
    }

    /// Waits until this program has run for this long.
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

    /// However long a tick takes, it counts as one: a wait of a second takes twenty.
    #[tokio::test]
    async fn a_second_is_twenty_ticks() {
        let (sender, ticks) = watch::channel(7);
        let clock = SuspendAwareClock { ticks, ticking: tokio::spawn(async {}) };
        let before = clock.now();
        let mut second = pin!(clock.sleep(Duration::from_secs(1)));
        assert!(second.as_mut().now_or_never().is_none());
        for _ in 0..19 {
            sender.send_modify(|ticks| *ticks += 1);
            assert!(second.as_mut().now_or_never().is_none(), "{:?}", clock.now());
        }
        sender.send_modify(|ticks| *ticks += 1);
        assert!(second.as_mut().now_or_never().is_some());
        assert_eq!(clock.now() - before, Duration::from_secs(1));
    }
}
