//! The schedule of backups: when the next one is due, and for whom. Pure.
//!
//! Nothing is remembered from one process to the next: the archive's records say when the last backup was taken, and a turn, which one process creates,
//! says who takes the next.

use std::time::Duration;

/// Longest time between two looks at the archive.
pub(crate) const LOOK: Duration = Duration::from_secs(300);
/// Time between two looks while another process takes a backup, and after a look that failed.
pub(crate) const AGAIN: Duration = Duration::from_secs(60);
/// Wait after a first failure; doubled with each further one.
const FIRST_WAIT: u64 = 60;
/// Most doublings of the wait: about an hour.
const MOST_DOUBLINGS: u32 = 6;

/// The newest turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) number: u64,
    /// True while its process may be at work.
    pub(crate) is_open: bool,
}

/// State of the archive, as far as the schedule looks at it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// Start of the newest complete backup, in seconds since 1970.
    pub(crate) newest: Option<u64>,
    pub(crate) turn: Option<Turn>,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Look again after this time.
    Wait(Duration),
    /// Take the turn with this number, and then a backup.
    Take(u64),
}

/// One process's part of the schedule.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Schedule {
    /// Failed backups since the last that succeeded.
    failures: u32,
    /// Time before which nothing is tried again, in seconds since 1970.
    not_before: u64,
}

impl Schedule {
    /// Decides the next step. `every`: None without a schedule; `now`: in seconds since 1970.
    pub(crate) fn next(&self, every: Option<Duration>, view: &View, now: u64) -> Step {
        let Some(every) = every else { return Step::Wait(LOOK) };
        let due = view.newest.map_or(0, |start| start.saturating_add(every.as_secs())).max(self.not_before);
        if let Some(left) = due.checked_sub(now).filter(|left| *left > 0) {
            return Step::Wait(Duration::from_secs(left).min(LOOK));
        }
        match view.turn {
            Some(turn) if turn.is_open => Step::Wait(AGAIN.min(every)),
            turn => Step::Take(turn.map_or(0, |turn| turn.number.saturating_add(1))),
        }
    }

    /// Notes a backup that failed.
    pub(crate) fn failed(&mut self, now: u64) {
        self.not_before = now.saturating_add(FIRST_WAIT << self.failures.min(MOST_DOUBLINGS));
        self.failures = self.failures.saturating_add(1);
    }

    /// Notes a backup that succeeded.
    pub(crate) fn succeeded(&mut self) {
        *self = Schedule::default();
    }

    /// True if the last backup failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// True if an operator must act: the last backup failed here, or none was taken for twice the time, and not within [`LOOK`]: looks are that far apart.
    pub(crate) fn is_alarm(&self, every: Option<Duration>, view: &View, now: u64) -> bool {
        let overdue = |every: Duration| {
            let limit = every.as_secs().saturating_mul(2).max(LOOK.as_secs());
            view.newest.is_some_and(|start| now.saturating_sub(start) > limit)
        };
        every.is_some_and(|every| self.has_failed() || overdue(every))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: Option<Duration> = Some(Duration::from_secs(86_400));

    #[test]
    fn steps() {
        let turn = |number, is_open| Some(Turn { number, is_open });
        let wait = |seconds| Step::Wait(Duration::from_secs(seconds));
        let now = 1_000_000;
        for (every, newest, turn, expected) in [
            (None, None, None, Step::Wait(LOOK)),
            (DAY, None, None, Step::Take(0)),
            (DAY, None, turn(4, true), Step::Wait(AGAIN)),
            (DAY, None, turn(4, false), Step::Take(5)),
            (DAY, Some(now), None, Step::Wait(LOOK)),
            (DAY, Some(now - 86_390), turn(4, false), wait(10)),
            (DAY, Some(now - 86_400), turn(4, false), Step::Take(5)),
            (DAY, Some(now - 86_400), turn(4, true), Step::Wait(AGAIN)),
            // The clock of the host that took it is ahead.
            (DAY, Some(now + 50), turn(4, false), Step::Wait(LOOK)),
            (Some(Duration::from_secs(1)), Some(now - 1), turn(0, true), wait(1)),
        ] {
            let step = Schedule::default().next(every, &View { newest, turn }, now);
            assert_eq!(step, expected, "{every:?} {newest:?} {turn:?}");
        }
    }

    #[test]
    fn failures_wait_longer_and_are_an_alarm() {
        let (mut schedule, view, now) = (Schedule::default(), View::default(), 1_000_000);
        assert!(!schedule.is_alarm(DAY, &view, now));
        let mut waits = Vec::new();
        for _ in 0..8 {
            schedule.failed(now);
            waits.push(schedule.not_before - now);
        }
        assert_eq!(waits, [60, 120, 240, 480, 960, 1920, 3840, 3840]);
        assert_eq!(schedule.next(DAY, &view, now), Step::Wait(LOOK));
        assert!(schedule.is_alarm(DAY, &view, now) && !schedule.is_alarm(None, &view, now));
        assert_eq!(schedule.next(DAY, &view, now + 3840), Step::Take(0));
        schedule.succeeded();
        assert_eq!(schedule.next(DAY, &view, now), Step::Take(0));
        let view = View { newest: Some(now), turn: None };
        assert!(
            !schedule.is_alarm(DAY, &view, now + 2 * 86_400) && schedule.is_alarm(DAY, &view, now + 2 * 86_400 + 1)
        );
        // A backup that takes longer than the time between two is no alarm by itself.
        let second = Some(Duration::from_secs(1));
        assert!(!schedule.is_alarm(second, &view, now + 300) && schedule.is_alarm(second, &view, now + 301));
    }

    /// Turns and backups of an archive, and the processes that look at it.
    #[derive(Default)]
    struct Archive {
        turns: Vec<Option<u64>>,
        newest: Option<u64>,
        running: Vec<(u64, usize)>,
    }

    proptest! {
        /// Processes look, take turns, finish and die in any order of time: one at a time has a turn, and the next backup is never early.
        #[test]
        fn one_at_a_time(acts in prop::collection::vec((0_usize..4, 0_u64..40, 0_u8..4), 1..200)) {
            let every = Duration::from_secs(100);
            let (mut archive, mut now) = (Archive::default(), 1_000);
            let mut schedules = [Schedule::default(); 4];
            let mut seen = [View::default(); 4];
            for (process, later, act) in acts {
                now += later;
                let running = archive.running.iter().position(|(_, of)| *of == process);
                match (act, running) {
                    // It looks, and acts on it now or at a later act.
                    (0, _) => {
                        let open = archive.running.last().map(|(number, _)| *number);
                        let last = archive.turns.len().checked_sub(1).map(|number| number as u64);
                        let turn = last.map(|number| Turn { number, is_open: open == Some(number) });
                        seen[process] = View { newest: archive.newest, turn };
                    }
                    (1, None) => {
                        if let Step::Take(number) = schedules[process].next(Some(every), &seen[process], now) {
                            // Created only where there is none.
                            if number as usize == archive.turns.len() {
                                prop_assert!(archive.running.is_empty(), "two at a time");
                                prop_assert!(archive.newest.is_none_or(|start| now >= start + 100), "early");
                                archive.turns.push(Some(now));
                                archive.running.push((number, process));
                            }
                        }
                    }
                    (2, Some(index)) => {
                        let (number, _) = archive.running.remove(index);
                        archive.newest = archive.turns[number as usize];
                        schedules[process].succeeded();
                    }
                    (3, Some(index)) => {
                        archive.running.remove(index);
                        schedules[process].failed(now);
                    }
                    _ => {}
                }
            }
        }
    }
}
