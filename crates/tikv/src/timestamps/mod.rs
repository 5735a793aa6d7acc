//! Timestamps from PD: each is higher than all that were given before it was requested, and none is given twice.
//!
//! A caller joins the batch that is sent next; a batch in flight is never joined. Several batches are in flight at the same time, over one stream,
//! and are answered in order. They keep a distance of an eighth of a round trip, during which callers gather: so a batch is small under low load and
//! large under high load, no caller waits for a batch to fill, and a request while nothing is in flight is sent at once.
//!
//! The thread that drives the stream publishes an answer and goes on: callers compute their own timestamps from it.

mod driver;
mod pipeline;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use watermark::{Dispenser, MOST_TAKERS};

use crate::error::Error;
use crate::figures::{Figures, add};
use crate::pd::Pd;

/// Bits of a timestamp that count within a millisecond.
const LOGICAL_BITS: u32 = 18;

/// A point in the order of all transactions of a cluster: milliseconds since 1970 by PD's clock, and a number within the millisecond in the lower 18
/// bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Returns the milliseconds since 1970, by PD's clock.
    #[must_use]
    pub fn millis(self) -> u64 {
        self.0 >> LOGICAL_BITS
    }
}

/// Settings of the timestamp source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Maximum number of batches in flight: 1 to 64. Their distance in time keeps them to about nine; the limit matters if a round trip suddenly
    /// takes much longer.
    pub in_flight: usize,
    /// Time without an answer after which a stream is given up, and PD's leader is searched for again.
    pub stall: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { in_flight: 16, stall: Duration::from_secs(2) }
    }
}

/// The source of timestamps. Dropping it ends its thread; a waiting caller then waits until its own deadline.
#[derive(Debug)]
pub struct Timestamps {
    shared: Arc<Shared>,
}

/// State shared by the callers and the thread.
#[derive(Debug)]
struct Shared {
    dispenser: Dispenser,
    figures: Arc<Figures>,
    /// Start of the times in notes.
    began: Instant,
    /// Wakes the driver: a caller waits, or the source ends.
    wake: Arc<Notify>,
    /// Wakes the driver, even while it waits for PD, when the source is dropped.
    end: Notify,
}

impl Timestamps {
    /// Starts the thread. It searches for PD's leader by itself, and again for each new one.
    pub(crate) fn start(pd: Arc<Pd>, settings: Settings, figures: Arc<Figures>) -> Result<Timestamps, Error> {
        let wake = Arc::new(Notify::new());
        let waker = Arc::clone(&wake);
        let shared = Arc::new(Shared {
            dispenser: Dispenser::new(move || waker.notify_one()),
            figures,
            began: Instant::now(),
            wake,
            end: Notify::new(),
        });
        let failed = |error| Error::Thread(Arc::new(error));
        // A runtime of its own: in a busy process, the driver must not queue behind the callers that it serves.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let driven = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("timestamps".into());
        thread.spawn(move || runtime.block_on(driver::run(&pd, settings, &driven))).map_err(failed)?;
        Ok(Timestamps { shared })
    }

    /// Connects to the PD members at `endpoints`, for timestamps alone.
    ///
    /// # Errors
    /// No member names a leader until `deadline`.
    pub async fn connect(
        endpoints: Vec<String>,
        security: crate::Security,
        settings: Settings,
        deadline: Instant,
    ) -> Result<Timestamps, Error> {
        let pd = Arc::new(Pd::new(endpoints, Arc::new(crate::channel::Channels::new(security))));
        pd.leader(deadline).await?;
        Timestamps::start(pd, settings, Arc::new(Figures::default()))
    }

    /// Returns a timestamp from after the start of this call, as soon as there is one. May be dropped at any time.
    ///
    /// # Errors
    /// [`Error::Crowded`].
    ///
    /// # Errors
    /// [`Error::Crowded`].
    pub async fn next(&self) -> Result<Timestamp, Error> {
        loop {
            let asked = self.shared.began.elapsed();
            let place = self.shared.dispenser.take().ok_or(Error::Crowded(MOST_TAKERS))?;
            // A caller polled a thousand batches late has lost its number, and requests another.
            if let Ok(drawn) = self.shared.dispenser.drawn(place).await {
                let sent = Duration::from_micros(drawn.note);
                self.shared.figures.timestamp_wait.add(sent.saturating_sub(asked));
                return Ok(Timestamp(drawn.number));
            }
        }
    }

    /// Returns a timestamp like [`Timestamps::next`], until `deadline`.
    ///
    /// # Errors
    /// [`Error::Late`], [`Error::Crowded`].
    pub async fn within(&self, deadline: Instant) -> Result<Timestamp, Error> {
        let next = tokio::time::timeout_at(deadline, self.next());
        next.await.map_err(|_| Error::Late { doing: "a timestamp", last: "PD gave none".into() })?
    }

    /// Returns the counters since the start.
    #[must_use]
    pub fn figures(&self) -> &Arc<Figures> {
        &self.shared.figures
    }
}

impl Drop for Timestamps {
    fn drop(&mut self) {
        self.shared.end.notify_one();
    }
}

impl Shared {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn count(&self, takers: u32, round_trip: Duration) {
        add(&self.figures.timestamps, u64::from(takers));
        add(&self.figures.timestamp_batches, 1);
        self.figures.timestamp_round_trip.add(round_trip);
    }
}
