//! Status of `kingpost watch` over HTTP: `/metrics`, `/healthz`, `/readyz`, so that its death is noticed.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::judge::Judgement;
use metrics::{Exposition, Pulse, Source, Type};

/// Time without a finished look after which the watcher counts as stuck; a look takes a second or two.
const STANDS_STILL: Duration = Duration::from_secs(30);

/// Actions and looks so far.
#[derive(Debug)]
pub(super) struct Report(Mutex<Seen>);

#[derive(Debug)]
struct Seen {
    acts: bool,
    looks: u64,
    judgement: Option<Judgement>,
    /// An action is a failover of its own: each of its steps has a limit.
    pulse: Pulse,
    failovers: u64,
    failures: u64,
}

impl Report {
    /// Makes a report. `acts`: the watcher replaces a lost primary by itself.
    pub(super) fn new(acts: bool) -> Report {
        let (looks, failovers, failures) = (0, 0, 0);
        Report(Mutex::new(Seen { acts, looks, judgement: None, pulse: Pulse::new(STANDS_STILL), failovers, failures }))
    }

    pub(super) fn looked(&self, judgement: &Judgement) {
        self.with(|seen| {
            seen.looks += 1;
            seen.pulse.turned();
            seen.judgement = Some(judgement.clone());
        });
    }

    pub(super) fn begins(&self) {
        self.with(|seen| seen.pulse.begins());
    }

    /// Records the end of a failover. `done`: true if it did the work, false if somebody else has the lock; None: it has failed.
    pub(super) fn ends(&self, done: Option<bool>) {
        self.with(|seen| {
            seen.pulse.ends();
            seen.failovers += u64::from(done == Some(true));
            seen.failures += u64::from(done.is_none());
        });
    }

    fn with<T>(&self, work: impl FnOnce(&mut Seen) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Source for Report {
    fn metrics(&self) -> Exposition {
        let mut exposition = Exposition::of_this_build();
        self.with(|seen| {
            exposition.gauge("watch_acts", "1 if it replaces a lost primary by itself.", seen.acts);
            exposition.gauge("watch_working", "1 while a failover of its own is under way.", seen.pulse.is_acting());
            exposition.counter("watch_looks_total", "Looks at servers and relays.", seen.looks);
            exposition.counter("watch_failovers_total", "Failovers that it has carried out.", seen.failovers);
            exposition.counter(
                "watch_failures_total",
                "Failovers that have failed; each is tried again.",
                seen.failures,
            );
            let help = "1 for what the last look came to.";
            let mut judged = exposition.metric(Type::Gauge, "watch_judgement", help);
            for name in ["healthy", "unsure", "lost", "unfinished"] {
                judged.sample(&[("judgement", name)], seen.judgement.as_ref().is_some_and(|last| word(last) == name));
            }
        });
        exposition
    }

    fn alive(&self) -> Result<(), String> {
        self.with(|seen| seen.pulse.alive())
    }

    fn ready(&self) -> Result<(), String> {
        self.with(|seen| match &seen.judgement {
            Some(Judgement::Healthy(_)) => Ok(()),
            Some(Judgement::Unsure(why)) => Err(format!("no primary answers: {why}")),
            Some(Judgement::Lost) => Err("no primary answers, and no relay hears one".into()),
            Some(Judgement::Unfinished) => Err("a failover was begun, and has not ended".into()),
            None => Err("nothing has been looked at yet".into()),
        })
    }
}

fn word(judgement: &Judgement) -> &'static str {
    match judgement {
        Judgement::Healthy(_) => "healthy",
        Judgement::Unsure(_) => "unsure",
        Judgement::Lost => "lost",
        Judgement::Unfinished => "unfinished",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said() {
        let report = Report::new(true);
        assert!(report.alive().is_ok() && report.ready().is_err());
        for (judgement, ready, metric) in [
            (Judgement::Healthy("a".into()), true, "healthy"),
            (Judgement::Unsure("r hears it".into()), false, "unsure"),
            (Judgement::Lost, false, "lost"),
            (Judgement::Unfinished, false, "unfinished"),
        ] {
            report.looked(&judgement);
            assert_eq!(report.ready().is_ok(), ready, "{judgement:?}");
            let text = report.metrics().render();
            assert!(text.contains(&format!("kingpost_watch_judgement{{judgement=\"{metric}\"}} 1\n")), "{text}");
            assert_eq!(text.matches("kingpost_watch_judgement{").count(), 4, "{text}");
        }
        report.begins();
        for done in [Some(true), Some(false), None] {
            report.ends(done);
        }
        let text = report.metrics().render();
        assert!(text.contains("kingpost_watch_failovers_total 1\n"), "{text}");
        assert!(text.contains("kingpost_watch_failures_total 1\n"), "{text}");
    }
}
