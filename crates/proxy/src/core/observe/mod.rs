//! Counters, traces and logs of statements: `statistics` by shape, `trace` of single statements.

pub mod statistics;
pub mod trace;

use std::time::{Duration, Instant};

use self::statistics::{End, StatementReport, Statistics, Text};
use self::trace::{Dice, Outcome, Span, parent, sample};
use crate::core::Core;
use crate::settings::Settings;

pub(in crate::core) use self::statistics::{Timing, rows_of};
pub(in crate::core) use self::trace::Sink;

/// Statement statistics of one worker, and the sampling of traced statements.
pub(in crate::core) struct Observing {
    statistics: Statistics,
    /// Maximum number of shapes with counters of their own.
    kept: usize,
    dice: Dice,
}

impl Observing {
    pub(in crate::core) fn new(settings: &Settings, secret: &[u8; 32], worker: usize, now: Instant) -> Observing {
        let kept = settings.statements_kept;
        Observing { statistics: Statistics::new(kept, now), kept, dice: Dice::new(secret, worker) }
    }

    /// Applies a new configuration.
    pub(in crate::core) fn apply(&mut self, settings: &Settings, now: Instant) {
        if self.kept != settings.statements_kept {
            self.kept = settings.statements_kept;
            self.statistics = Statistics::new(self.kept, now);
        }
    }

    /// Logs the number of slow statements that were not logged.
    pub(in crate::core) fn tick(&mut self) {
        let kept_back = self.statistics.kept_back();
        if kept_back > 0 {
            tracing::warn!(statements = kept_back, "more slow statements than are logged");
        }
    }

    /// Resets all counters.
    pub(in crate::core) fn clear(&mut self) {
        self.statistics.clear();
    }

    /// Returns all counters.
    pub(in crate::core) fn report(&self) -> Vec<StatementReport> {
        self.statistics.report()
    }
}

impl Core {
    /// Counts a unit by its destination.
    pub(in crate::core) fn count_statement(&self, s: usize) {
        if self.is_primary(s) { self.metrics.statements_primary.add(1) } else { self.metrics.statements_replica.add(1) }
    }

    /// Starts counting a statement of this shape, which is being sent. Its unit will be counted under its last statement.
    ///
    /// `spoken`: the client has just sent this text (and not prepared it earlier).
    pub(in crate::core) fn count_begin(&mut self, c: usize, s: usize, key: u64, text: &[u8], spoken: bool) {
        let key = self.observing.statistics.begin(key, text);
        let span = match self.servers[s].meter.timing.span.take() {
            None => self.trace_begin(c, s, text, spoken),
            Some(span) => Some(span.of_next(text)),
        };
        self.servers[s].meter.timing = Timing { key, since: self.now, span };
    }

    /// Counts the end of a unit. `heard`: the client got the answer.
    pub(in crate::core) fn count_end(&mut self, s: usize, heard: bool) {
        let primary = self.is_primary(s);
        let server = &mut self.servers[s];
        let meter = &mut server.meter;
        let (rows, error) = (std::mem::take(&mut meter.rows), meter.error.take());
        let Some(timing) = meter.ended.take().filter(|_| heard) else { return };
        if let Some(span) = timing.span {
            self.trace_end(*span, rows, error.map_or(Outcome::Done, |code| Outcome::Failed(code.0)));
        }
        let failed = error.is_some();
        let elapsed = self.now.saturating_duration_since(timing.since);
        let end = End { elapsed, rows, failed, primary };
        if let Some(statement) = self.observing.statistics.end(timing.key, end, self.settings.slow_statement, self.now)
        {
            let server = &self.servers[s];
            let key = &self.pools[server.pool].key;
            self.metrics.statements_slow.add(1);
            tracing::info!(
                target: "kingpost::slow",
                millis = elapsed.as_millis() as u64,
                rows,
                failed,
                node = self.view.node(server.node).map(|node| node.node.name.as_str()),
                database = &*key.database,
                user = &*key.user,
                statement,
                "slow statement"
            );
        }
    }

    /// Ends the span of a unit whose server connection was lost.
    pub(in crate::core) fn span_lost(&mut self, timing: Timing) {
        if let Some(span) = timing.span {
            self.trace_end(*span, 0, Outcome::Lost);
        }
    }

    /// Starts the span of a statement that is being sent, if it is to be traced. `spoken`: the client has just sent the text. The comment in a text
    /// that was prepared earlier belongs to an earlier request.
    pub(in crate::core) fn trace_begin(&mut self, c: usize, s: usize, text: &[u8], spoken: bool) -> Option<Box<Span>> {
        let tracing = self.settings.tracing.as_ref()?;
        let waited = Duration::from_micros(std::mem::take(&mut self.clients[c].waited).into());
        let parent = if spoken && tracing.comments { parent(text) } else { None };
        let (trace, parent) = sample(tracing, parent, &mut self.observing.dice)?;
        let server = &self.servers[s];
        let key = &self.pools[server.pool].key;
        let node = self.view.node(server.node).map(|node| node.node.name.clone()).unwrap_or_default();
        self.metrics.spans.add(1);
        Some(Box::new(Span {
            trace,
            id: self.observing.dice.number(),
            parent,
            waited,
            sent: self.now,
            ended: self.now,
            database: key.database.clone(),
            user: key.user.clone(),
            node,
            primary: self.is_primary(s),
            lane: self.clients[c].at.lane().is_some(),
            rows: 0,
            outcome: Outcome::Done,
            text: Text::new(text),
        }))
    }

    /// Ends a span.
    pub(in crate::core) fn trace_end(&mut self, span: Span, rows: u64, outcome: Outcome) {
        let span = Span { ended: self.now, rows, outcome, ..span };
        let taken = self.shared.sink.get().is_some_and(|sink| sink(span));
        self.metrics.spans_dropped.add(u64::from(!taken));
    }
}
