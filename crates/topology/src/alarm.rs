//! A timer that goes off when it is due. Tokio's counts in milliseconds and waits for the end of the one that has begun: what is to
//! happen every millisecond happens every two.

use std::io;
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until};

/// The longest that the kernel's timer is set to: beyond that a millisecond does not matter.
const LONGEST: Duration = Duration::from_secs(1);

pub(crate) struct Alarm {
    /// None where the system has no more to give: then it is tokio's.
    timer: Option<AsyncFd<OwnedFd>>,
}

// === impl Alarm ===

impl Alarm {
    /// To be called within a runtime that does I/O.
    pub(crate) fn new() -> Alarm {
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for types that may lose their descriptor: this one owns it"
        )]
        let create = || {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            AsyncFd::with_interest(timer, Interest::READABLE)
        };
        Alarm { timer: create().ok() }
    }

    /// Waits until then. It may be dropped before: the next call sets the timer anew.
    pub(crate) async fn until(&mut self, at: Instant) {
        let Some(timer) = &self.timer else { return sleep_until(at).await };
        let left = at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        if left > LONGEST || !set(timer, left) {
            return sleep_until(at).await;
        }
        let rung = timer.async_io(Interest::READABLE, |timer| {
            let mut count = [0; 8];
            rustix::io::read(timer, &mut count).map_err(io::Error::from)
        });
        if rung.await.is_err() {
            sleep_until(at).await;
        }
    }
}

/// False if the kernel will not. What it counted before is forgotten.
fn set(timer: &AsyncFd<OwnedFd>, left: Duration) -> bool {
    let Ok(it_value) = Timespec::try_from(left) else { return false };
    let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
    timerfd_settime(timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value }).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn rings_when_it_is_due_and_not_before_whatever_was_dropped() {
        let mut alarm = Alarm::new();
        assert!(alarm.timer.is_some());
        for _ in 0..3 {
            let started = Instant::now();
            // Neither this one, which is given up while it is set, nor one that has rung unheard ends the next.
            tokio::select! {
                biased;
                () = alarm.until(started + Duration::from_micros(100)) => unreachable!("nobody has waited"),
                () = std::future::ready(()) => {}
            }
            std::thread::sleep(Duration::from_micros(300));
            let at = Instant::now() + Duration::from_millis(2);
            alarm.until(at).await;
            assert!(Instant::now() >= at);
        }
        alarm.until(Instant::now()).await;
    }
}
