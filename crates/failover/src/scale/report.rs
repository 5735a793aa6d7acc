//! Status of a scaler over HTTP: `/metrics`, `/healthz`, `/readyz`.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use metrics::{Exposition, Pulse, Source, Type};

use super::decide::{Answer, Decision, Seen, Why};

/// Time without a finished look after which the scaler counts as stuck, beside its interval.
const STANDS_STILL: Duration = Duration::from_secs(60);

/// Looks and programs so far.
#[derive(Debug)]
pub(super) struct Report(Mutex<State>);

#[derive(Debug)]
struct State {
    acts: bool,
    /// Primaries, replicas, and servers that do not answer.
    servers: [usize; 3],
    load: Option<f64>,
    why: Option<Why>,
    pulse: Pulse,
    programs: u64,
    failures: u64,
}

impl Report {
    pub(super) fn new(interval: Duration) -> Report {
        let pulse = Pulse::new(STANDS_STILL + interval);
        let (acts, servers, load, why, programs, failures) = (false, [0; 3], None, None, 0, 0);
        Report(Mutex::new(State { acts, servers, load, why, pulse, programs, failures }))
    }

    /// Takes a look. `acts`: this scaler has the lock; `load`: the average of the window.
    pub(super) fn looked(&self, acts: bool, seen: &[Seen], load: Option<f64>, decision: Option<&Decision>) {
        let count = |which: fn(&Answer) -> bool| seen.iter().filter(|server| which(&server.answer)).count();
        let servers = [
            count(|answer| matches!(answer, Answer::Primary)),
            count(|answer| matches!(answer, Answer::Standby { .. })),
            count(|answer| matches!(answer, Answer::Missing)),
        ];
        self.with(|state| {
            (state.acts, state.servers, state.load) = (acts, servers, load);
            state.why = decision.map(|decision| decision.why.clone());
            state.pulse.turned();
        });
    }

    pub(super) fn begins(&self) {
        self.with(|state| state.pulse.begins());
    }

    pub(super) fn ends(&self, succeeded: bool) {
        self.with(|state| {
            state.pulse.ends();
            state.programs += 1;
            state.failures += u64::from(!succeeded);
        });
    }

    /// Counts a failed turn, or a server that was given up.
    pub(super) fn failed(&self) {
        self.with(|state| {
            state.failures += 1;
            state.pulse.turned();
        });
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Source for Report {
    fn metrics(&self) -> Exposition {
        let mut exposition = Exposition::of_this_build();
        self.with(|state| {
            exposition.gauge("scale_acts", "1 while this scaler has the lock.", state.acts);
            let mut servers = exposition.metric(Type::Gauge, "scale_servers", "Servers that the registry lists.");
            for (name, count) in ["primary", "replica", "missing"].into_iter().zip(state.servers) {
                servers.sample(&[("state", name)], u64::try_from(count).unwrap_or(u64::MAX));
            }
            if let Some(load) = state.load {
                exposition.gauge("scale_load", "Busy sessions a replica, on average of the window.", load);
            }
            exposition.gauge("scale_working", "1 while a program of the user runs.", state.pulse.is_acting());
            exposition.counter("scale_programs_total", "Programs of the user that have ended.", state.programs);
            let help = "Programs and looks that have failed, and servers that were given up.";
            exposition.counter("scale_failures_total", help, state.failures);
        });
        exposition
    }

    fn alive(&self) -> Result<(), String> {
        self.with(|state| state.pulse.alive())
    }

    fn ready(&self) -> Result<(), String> {
        self.with(|state| match (&state.why, state.acts) {
            (Some(why @ (Why::NoPrimary | Why::TwoPrimaries)), _) => Err(why.to_string()),
            (None, true) => Err("nothing has been looked at yet".into()),
            _ => Ok(()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::decide::Action;
    use super::*;

    #[test]
    fn figures() {
        let report = Report::new(Duration::from_secs(1));
        let seen = |name: &str, answer| Seen {
            name: name.into(),
            address: "h:1".into(),
            isolated: false,
            weightless: false,
            answer,
        };
        let servers = [seen("a", Answer::Primary), seen("b", Answer::Missing)];
        let decision = |why| Decision { action: Action::Wait, why };
        report.looked(true, &servers, Some(2.5), Some(&decision(Why::Unknown)));
        assert!(report.alive().is_ok() && report.ready().is_ok());
        report.begins();
        report.ends(false);
        let text = report.metrics().render();
        for expected in [
            "scale_acts 1\n",
            "scale_servers{state=\"missing\"} 1\n",
            "scale_load 2.5\n",
            "scale_programs_total 1\n",
            "scale_failures_total 1\n",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        report.looked(true, &servers, None, Some(&decision(Why::NoPrimary)));
        assert!(report.ready().is_err());
    }
}
