//! Liveness of a loop: it counts as stuck when no turn has ended for a time, unless it acts.

use std::time::{Duration, Instant};

/// Signs of life of a loop.
#[derive(Debug)]
pub struct Pulse {
    limit: Duration,
    last: Instant,
    acting: bool,
}

impl Pulse {
    /// Creates the signs of a loop that begins now. `limit`: time without a finished turn after which it counts as stuck.
    #[must_use]
    pub fn new(limit: Duration) -> Pulse {
        Pulse { limit, last: Instant::now(), acting: false }
    }

    /// Notes the end of a turn.
    pub fn turned(&mut self) {
        self.last = Instant::now();
    }

    /// Notes the begin of an action, during which no turn ends.
    pub fn begins(&mut self) {
        self.acting = true;
    }

    /// Notes the end of an action.
    pub fn ends(&mut self) {
        (self.acting, self.last) = (false, Instant::now());
    }

    /// True while an action is under way.
    #[must_use]
    pub fn is_acting(&self) -> bool {
        self.acting
    }

    /// Returns Ok if the loop works; the reason if not.
    ///
    /// # Errors
    /// No turn has ended for the limit, and no action is under way.
    pub fn alive(&self) -> Result<(), String> {
        match self.last.elapsed() {
            still if still > self.limit && !self.acting => Err(format!("no look has ended for {} s", still.as_secs())),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_is_stuck_unless_it_acts() {
        assert!(Pulse::new(Duration::from_secs(3600)).alive().is_ok());
        let mut pulse = Pulse::new(Duration::ZERO);
        while pulse.last.elapsed().is_zero() {}
        assert!(pulse.alive().is_err());
        pulse.begins();
        assert!(pulse.alive().is_ok() && pulse.is_acting());
        pulse.ends();
        while pulse.last.elapsed().is_zero() {}
        assert!(pulse.alive().is_err() && !pulse.is_acting());
    }
}
