//! Status of an agent over HTTP: `/metrics`, `/healthz`, `/readyz`.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use metrics::{Exposition, Pulse, Source, Type};

use crate::supervise::{Decision, State, Trouble};

/// Time without a finished turn after which the agent counts as stuck, unless it acts: a copy takes hours.
const STANDS_STILL: Duration = Duration::from_secs(60);

/// State and actions so far.
#[derive(Debug)]
pub(crate) struct Report(Mutex<Seen>);

#[derive(Debug)]
struct Seen {
    state: State,
    why: Option<Trouble>,
    paused: bool,
    pulse: Pulse,
    turns: u64,
    actions: u64,
    failures: u64,
    /// Settings that wait for a restart of the server.
    pending: usize,
    /// Rest of a primary's lease.
    lease: Option<Duration>,
}

impl Report {
    pub(crate) fn new() -> Report {
        Report(Mutex::new(Seen {
            state: State::Absent,
            why: None,
            paused: false,
            pulse: Pulse::new(STANDS_STILL),
            turns: 0,
            actions: 0,
            failures: 0,
            pending: 0,
            lease: None,
        }))
    }

    /// Records a decision. `lease`: the rest of a primary's lease.
    pub(crate) fn decided(&self, decision: &Decision, paused: bool, lease: Option<Duration>) {
        self.with(|seen| {
            (seen.state, seen.why) = (decision.state, decision.why.clone());
            (seen.paused, seen.lease) = (paused, lease);
            seen.turns += 1;
            seen.pulse.turned();
        });
    }

    pub(crate) fn begins(&self) {
        self.with(|seen| seen.pulse.begins());
    }

    pub(crate) fn ends(&self, succeeded: bool) {
        self.with(|seen| {
            seen.pulse.ends();
            seen.actions += 1;
            seen.failures += u64::from(!succeeded);
        });
    }

    pub(crate) fn pending(&self, settings: usize) {
        self.with(|seen| seen.pending = settings);
    }

    fn with<T>(&self, work: impl FnOnce(&mut Seen) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Source for Report {
    fn metrics(&self) -> Exposition {
        let mut exposition = Exposition::of_this_build();
        self.with(|seen| {
            let mut states = exposition.metric(Type::Gauge, "node_state", "1 for the state of the node.");
            for state in State::ALL {
                states.sample(&[("state", &state.to_string())], state == seen.state);
            }
            exposition.gauge("node_paused", "1 while the agent only watches.", seen.paused);
            exposition.gauge("node_acting", "1 while an action is under way.", seen.pulse.is_acting());
            exposition.counter("node_turns_total", "Looks at the server and the cluster.", seen.turns);
            exposition.counter("node_actions_total", "Actions of the agent.", seen.actions);
            exposition.counter("node_failures_total", "Actions that have failed; each is tried again.", seen.failures);
            let help = "Settings of the server that wait for its restart.";
            exposition.gauge("node_restart_pending", help, u64::try_from(seen.pending).unwrap_or(u64::MAX));
            if let Some(rest) = seen.lease {
                let help = "Time until the end of the primary's lease, unless the relays confirm it again.";
                exposition.gauge("node_lease_seconds", help, rest.as_secs_f64());
            }
        });
        exposition
    }

    fn alive(&self) -> Result<(), String> {
        self.with(|seen| seen.pulse.alive())
    }

    fn ready(&self) -> Result<(), String> {
        self.with(|seen| match (seen.state, &seen.why) {
            (State::Primary | State::Following, _) => Ok(()),
            (state, None) => Err(format!("the server is {state}")),
            (state, Some(why)) => Err(format!("the server is {state}: {why}")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::Action;

    #[test]
    fn states() {
        let report = Report::new();
        assert!(report.alive().is_ok() && report.ready().is_err());
        for (state, ready) in [(State::Primary, true), (State::Following, true), (State::Broken, false)] {
            let decision = Decision { state, action: Action::Wait, why: Some(Trouble::Empty) };
            report.decided(&decision, true, Some(Duration::from_secs(3)));
            assert_eq!(report.ready().is_ok(), ready, "{state}");
            let text = report.metrics().render();
            assert!(text.contains(&format!("kingpost_node_state{{state=\"{state}\"}} 1\n")), "{text}");
            assert_eq!(text.matches("kingpost_node_state{").count(), State::ALL.len(), "{text}");
        }
        report.begins();
        report.ends(false);
        report.pending(2);
        let text = report.metrics().render();
        for expected in
            ["node_paused 1", "node_actions_total 1", "node_failures_total 1", "restart_pending 2", "lease_seconds 3"]
        {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }
}
