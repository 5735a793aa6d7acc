//! The archive's state, for retention, metrics and operators.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::archive::config::ArchiveConfig;
use ::archive::{ArchiveError, Put};
use watermark::Lsn;

/// Most samples of the log's end; every other one goes when there are more.
const SAMPLES: usize = 256;

/// Status of the archive at one moment.
#[derive(Debug, Clone)]
pub struct ArchiveStatus {
    /// URL of the archive.
    pub url: String,
    /// `archiving`, or the obstacle.
    pub state: String,
    /// True if an operator must act: an error that time does not cure, or the archive has been behind for too long.
    pub alarm: bool,
    /// Position up to which the archive has confirmed every segment, and the relay may remove them.
    pub confirmed: Lsn,
    /// Durable bytes here that the archive does not have.
    pub behind_bytes: u64,
    /// Time since when it has not had all that was durable here.
    pub behind: Duration,
    /// Objects written.
    pub puts: u64,
    /// Bytes of the objects written.
    pub put_bytes: u64,
    /// Objects that another relay, or an earlier process, had written.
    pub equal: u64,
    /// Failed passes.
    pub failures: u64,
}

/// State that the archiver publishes.
#[derive(Debug, Default)]
pub(crate) struct ArchiveMarks {
    confirmed: AtomicU64,
    covered: AtomicU64,
    puts: AtomicU64,
    put_bytes: AtomicU64,
    equal: AtomicU64,
    failures: AtomicU64,
    inner: Mutex<Option<Inner>>,
}

#[derive(Debug)]
struct Inner {
    url: String,
    /// Identifies the archive.
    place: String,
    state: String,
    is_final: bool,
    alarmed: bool,
    was_open: bool,
    /// Ends of the log and when they were seen, oldest first; without those that the archive has.
    samples: VecDeque<(Instant, Lsn)>,
}

impl ArchiveMarks {
    fn inner(&self) -> MutexGuard<'_, Option<Inner>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that no archive is configured.
    pub(super) fn off(&self) {
        if self.inner().take().is_some() {
            self.confirmed.store(0, Ordering::Release);
            self.covered.store(0, Ordering::Relaxed);
        }
    }

    /// Notes the configured archive; another one has confirmed nothing.
    pub(super) fn on(&self, config: &ArchiveConfig) {
        let mut inner = self.inner();
        if inner.as_ref().is_some_and(|inner| inner.place == config.place()) {
            return;
        }
        self.confirmed.store(0, Ordering::Release);
        self.covered.store(0, Ordering::Relaxed);
        let (url, place, state) = (config.url.clone(), config.place(), "not opened yet".into());
        let samples = VecDeque::new();
        *inner = Some(Inner { url, place, state, is_final: false, alarmed: false, was_open: false, samples });
    }

    /// True if this process has had the archive open.
    pub(super) fn was_open(&self, config: &ArchiveConfig) -> bool {
        self.inner().as_ref().is_some_and(|inner| inner.was_open && inner.place == config.place())
    }

    /// Notes that the archive is open.
    pub(super) fn opened(&self, config: &ArchiveConfig) {
        if let Some(inner) = self.inner().as_mut().filter(|inner| inner.place == config.place()) {
            inner.was_open = true;
        }
    }

    /// Notes the end of the log.
    pub(super) fn sample(&self, flushed: Lsn) {
        let covered = Lsn(self.covered.load(Ordering::Relaxed));
        if let Some(inner) = &mut *self.inner() {
            if flushed > covered && inner.samples.back().is_none_or(|(_, last)| flushed > *last) {
                inner.samples.push_back((Instant::now(), flushed));
            }
            if inner.samples.len() > SAMPLES {
                let mut index = 0;
                // The oldest one stays.
                inner.samples.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
            }
        }
    }

    /// Notes the number of bytes before `flushed` that the archive lacks.
    pub(super) fn covers(&self, flushed: Lsn, behind: u64) {
        let covered = Lsn(flushed.0.saturating_sub(behind));
        self.covered.store(covered.0, Ordering::Relaxed);
        if let Some(inner) = &mut *self.inner() {
            inner.samples.retain(|(_, end)| *end > covered);
        }
    }

    /// Notes the confirmed position.
    pub(super) fn confirm(&self, at: Lsn) {
        self.confirmed.store(at.0, Ordering::Release);
    }

    /// Returns the position up to which segments may be removed: 0 for another archive than the one in use, as right after a reload.
    pub(crate) fn confirmed(&self, config: &ArchiveConfig) -> Lsn {
        let inner = self.inner();
        let is_same = inner.as_ref().is_some_and(|inner| inner.place == config.place());
        Lsn(if is_same { self.confirmed.load(Ordering::Acquire) } else { 0 })
    }

    /// Counts an object.
    pub(super) fn put(&self, put: Put, bytes: u64) {
        match put {
            Put::New => {
                self.puts.fetch_add(1, Ordering::Relaxed);
                self.put_bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Put::Equal => {
                self.equal.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Notes a pass without an error.
    pub(super) fn works(&self, config: &ArchiveConfig) {
        self.is(config, "archiving".into(), false);
    }

    /// Notes an error.
    pub(super) fn fails(&self, config: &ArchiveConfig, error: &ArchiveError) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.is(config, error.to_string(), error.is_final());
    }

    /// Notes the state, and logs what has changed.
    fn is(&self, config: &ArchiveConfig, state: String, is_final: bool) {
        let mut inner = self.inner();
        let Some(inner) = inner.as_mut() else { return };
        let had_failed = inner.state != "archiving" && inner.state != "not opened yet";
        let (archive, has_changed) = (inner.url.clone(), !had_failed || inner.is_final != is_final);
        (inner.state, inner.is_final) = (state, is_final);
        let (alarm, works) = (inner.alarm(config.alarm_after), inner.state == "archiving");
        let was_alarmed = std::mem::replace(&mut inner.alarmed, alarm);
        match (alarm, works) {
            (true, _) if !was_alarmed => {
                tracing::error!(
                    archive,
                    state = inner.state,
                    "the archive is behind; WAL stays on the relay's disk until it has it"
                );
            }
            (false, true) if had_failed || was_alarmed => tracing::info!(archive, "archiving again"),
            (_, false) if has_changed => {
                tracing::warn!(
                    archive,
                    error = inner.state,
                    "the archive fails; WAL stays on the relay's disk until it has it"
                );
            }
            _ => {}
        }
    }

    /// Returns the status; None without an archive.
    pub(crate) fn status(&self, flushed: Lsn, alarm_after: Duration) -> Option<ArchiveStatus> {
        let inner = self.inner();
        let inner = inner.as_ref()?;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let covered = load(&self.covered);
        Some(ArchiveStatus {
            url: inner.url.clone(),
            state: inner.state.clone(),
            alarm: inner.alarm(alarm_after),
            confirmed: Lsn(load(&self.confirmed)),
            behind_bytes: flushed.0.saturating_sub(covered),
            behind: inner.behind(),
            puts: load(&self.puts),
            put_bytes: load(&self.put_bytes),
            equal: load(&self.equal),
            failures: load(&self.failures),
        })
    }
}

impl Inner {
    fn behind(&self) -> Duration {
        self.samples.front().map_or(Duration::ZERO, |(since, _)| since.elapsed())
    }

    fn alarm(&self, alarm_after: Duration) -> bool {
        self.is_final || self.behind() > alarm_after
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use ::archive::StoreError;

    use super::*;

    fn config(url: &str) -> ArchiveConfig {
        ArchiveConfig { url: url.into(), ..ArchiveConfig::default() }
    }

    #[test]
    fn another_archive_has_confirmed_nothing() {
        let marks = ArchiveMarks::default();
        assert!(marks.status(Lsn(7), Duration::ZERO).is_none());
        marks.on(&config("/a"));
        marks.opened(&config("/a"));
        marks.confirm(Lsn(5));
        marks.on(&config("/a"));
        assert_eq!((marks.confirmed(&config("/a")), marks.was_open(&config("/a"))), (Lsn(5), true));
        assert_eq!(marks.confirmed(&config("/b")), Lsn(0), "reloaded, and not in use yet");
        marks.on(&config("/b"));
        assert_eq!((marks.confirmed(&config("/b")), marks.was_open(&config("/b"))), (Lsn(0), false));
        marks.confirm(Lsn(5));
        marks.off();
        marks.on(&config("/b"));
        assert_eq!(marks.confirmed(&config("/b")), Lsn(0));
    }

    #[test]
    fn what_is_an_alarm() {
        let marks = ArchiveMarks::default();
        let long = Duration::from_secs(3600);
        marks.on(&config("/a"));
        let status = |after| marks.status(Lsn(100), after).unwrap();
        assert!(!status(Duration::ZERO).alarm);
        marks.sample(Lsn(100));
        assert!(status(Duration::ZERO).alarm, "behind for longer than is allowed");
        let store = || ("/a".to_owned(), "x".to_owned(), "y".to_owned());
        let (name, path, why) = store();
        marks.fails(&config("/a"), &StoreError::Failed { tried: "write", path, store: name, why }.into());
        assert!(!status(long).alarm, "may pass");
        let (name, path, why) = store();
        marks.fails(&config("/a"), &StoreError::Refused { tried: "write", path, store: name, why }.into());
        assert!(status(long).alarm, "an operator has to act");
        marks.works(&config("/a"));
        marks.covers(Lsn(100), 0);
        let now = status(Duration::ZERO);
        assert_eq!((now.alarm, now.behind_bytes, now.behind, now.failures), (false, 0, Duration::ZERO, 2));
    }

    #[test]
    fn samples_are_bounded_and_the_oldest_stays() {
        let marks = ArchiveMarks::default();
        marks.on(&config("/a"));
        for at in 1..10_000 {
            marks.sample(Lsn(at));
        }
        let inner = marks.inner();
        let samples = &inner.as_ref().unwrap().samples;
        assert!(samples.len() <= SAMPLES);
        assert_eq!(samples.front().unwrap().1, Lsn(1));
    }
}
