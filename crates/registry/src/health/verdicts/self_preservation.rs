//! Self-preservation brakes, which hold and release when many instances are lost at once. Pure.

use crate::settings::SelfPreservationSettings;

/// A brake: of a service or of the whole registry, for one cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SelfPreservation {
    /// Missing instances are believed to be gone.
    #[default]
    Off,
    /// The last good state is kept, since this time.
    Holding {
        /// Milliseconds on the node's clock.
        since: u64,
    },
    /// The brake has held for its maximum time, and was released. It holds again only after the share has fallen.
    Spent,
}

/// Number of missing instances, among those that were healthy before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) missing: usize,
    pub(crate) of: usize,
}

impl SelfPreservation {
    /// Returns the brake's state at `now` with `found` missing.
    #[must_use]
    pub(crate) fn judge(
        self,
        found: Missing,
        share: f64,
        settings: &SelfPreservationSettings,
        now: u64,
    ) -> SelfPreservation {
        let much = found.missing >= settings.least && found.missing as f64 > share * found.of as f64;
        let longest = u64::try_from(settings.longest.as_millis()).unwrap_or(u64::MAX);
        match self {
            _ if !much => SelfPreservation::Off,
            SelfPreservation::Off => SelfPreservation::Holding { since: now },
            SelfPreservation::Holding { since } if now.saturating_sub(since) >= longest => SelfPreservation::Spent,
            held @ (SelfPreservation::Holding { .. } | SelfPreservation::Spent) => held,
        }
    }

    pub(crate) fn holds(self) -> bool {
        matches!(self, SelfPreservation::Holding { .. })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn holds_and_lets_go() {
        use SelfPreservation::*;
        let settings = SelfPreservationSettings {
            service_share: 0.5,
            whole_share: 0.5,
            least: 3,
            longest: Duration::from_millis(100),
        };
        for (before, missing, of, now, after) in [
            (Off, 0, 0, 0, Off),
            (Off, 2, 2, 0, Off), // fewer than the minimum
            (Off, 3, 6, 0, Off), // half is not more than half
            (Off, 4, 6, 7, Holding { since: 7 }),
            (Holding { since: 7 }, 4, 6, 50, Holding { since: 7 }),
            (Holding { since: 7 }, 3, 6, 50, Off), // the others came back
            (Holding { since: 7 }, 6, 6, 107, Spent),
            (Holding { since: 7 }, 6, 6, 3, Holding { since: 7 }), // a clock that went back
            (Spent, 6, 6, 9999, Spent),
            (Spent, 3, 6, 9999, Off),
        ] {
            let found = Missing { missing, of };
            assert_eq!(before.judge(found, 0.5, &settings, now), after, "{before:?} with {found:?} at {now}");
        }
        let never = Missing { missing: 9, of: 9 };
        assert_eq!(Off.judge(never, 1.0, &settings, 0), Off, "a share of 1 is never exceeded");
    }
}
