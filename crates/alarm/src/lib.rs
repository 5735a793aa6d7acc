//! A timer with a resolution below a millisecond. Tokio's timer counts whole milliseconds and waits for the end of the current one: work that is due
//! every millisecond would be done every two.

use std::io;
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until};

/// Maximum time for the kernel's timer: beyond it, a millisecond does not matter.
const LONGEST: Duration = Duration::from_secs(1);

/// A kernel timer for one task, with tokio's timer as fallback if the kernel has no more timers.
#[derive(Debug)]
pub struct Alarm {
    /// The kernel timer; `None` if the kernel has no more timers.
    timer: Option<AsyncFd<OwnedFd>>,
    /// Expiration of the kernel timer; `None` if it is not set, or has expired.
    set: Option<Instant>,
}

// === impl Alarm ===

impl Default for Alarm {
    fn default() -> Alarm {
        Alarm::new()
    }
}

impl Alarm {
    /// Creates a timer. Must be called within a runtime with I/O enabled.
    #[must_use]
    pub fn new() -> Alarm {
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for types that may lose their descriptor: this one owns it"
        )]
        let create = || {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            AsyncFd::with_interest(timer, Interest::READABLE)
        };
        Alarm { timer: create().ok(), set: None }
    }

    /// Waits until `at`. The future may be dropped earlier: the timer then remains set, and the next call sets it again unless it is for the same
    /// time.
    pub async fn until(&mut self, at: Instant) {
        let Some(timer) = &self.timer else { return sleep_until(at).await };
        let left = at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        if self.set != Some(at) {
            self.set = None;
            if left > LONGEST || !set(timer, left) {
                return sleep_until(at).await;
            }
            self.set = Some(at);
        }
        let rung = timer.async_io(Interest::READABLE, |timer| {
            let mut count = [0; 8];
            rustix::io::read(timer, &mut count).map_err(io::Error::from)
        });
        let rung = rung.await;
        self.set = None;
        if rung.is_err() {
            sleep_until(at).await;
        }
    }

    /// Stops the timer, which would otherwise wake the thread for nothing.
    pub fn stop(&mut self) {
        if let (Some(timer), Some(_)) = (&self.timer, self.set.take()) {
            // On failure it just expires.
            set(timer, Duration::ZERO);
        }
    }
}

/// Sets the timer, or stops it if the time is zero; discards earlier expirations. Returns false if the kernel refuses.
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
            // Neither this wait, which is dropped while the timer is set, nor an earlier expiration ends the next wait. On a busy machine it is due
            // before it begins.
            tokio::select! {
                biased;
                () = alarm.until(started + Duration::from_micros(100)) => {}
                () = std::future::ready(()) => {}
            }
            std::thread::sleep(Duration::from_micros(300));
            // An earlier expiration does not end a wait for the same time too early either.
            alarm.until(started + Duration::from_micros(100)).await;
            assert!(Instant::now() >= started + Duration::from_micros(100));
            let at = Instant::now() + Duration::from_millis(2);
            alarm.until(at).await;
            assert!(Instant::now() >= at);
        }
        alarm.until(Instant::now()).await;
    }

    #[tokio::test]
    async fn a_stopped_alarm_can_be_set_again() {
        let mut alarm = Alarm::new();
        let at = Instant::now() + Duration::from_millis(500);
        let mut rings = Box::pin(alarm.until(at));
        std::future::poll_fn(|context| {
            assert!(rings.as_mut().poll(context).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        drop(rings);
        alarm.stop();
        alarm.stop();
        alarm.until(at).await;
        assert!(Instant::now() >= at);
    }
}
