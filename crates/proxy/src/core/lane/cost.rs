//! What statements have cost, by shape: how long a server took for one, and how much it answered. From this follows which of
//! them may share a server connection.

use std::time::{Duration, Instant};

/// Shapes remembered. Of two that want one place the one that runs more often keeps it.
const ENTRIES: usize = 4096;
/// Runs after which a shape is known.
const KNOWN: u32 = 2;
/// Good runs after which one strike is forgotten.
const FORGIVEN: u32 = 1024;
/// A first strike keeps a shape out for twice this long; each further one doubles it.
const PENALTY: Duration = Duration::from_millis(250);
/// Doublings of the penalty: 64 s at most.
const MOST_STRIKES: u8 = 8;

/// What a shape's costs say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Fit {
    /// It is fast and small: its usual time in microseconds.
    Fits(u32),
    /// It has not run often enough to say.
    Unknown,
    Slow,
    Large,
}

/// The costs of the shapes that one worker has seen. Its size is fixed; what is forgotten is measured again.
pub(in crate::core) struct Costs {
    table: Box<[Cost]>,
}

#[derive(Debug, Clone, Copy)]
struct Cost {
    /// 0: nobody's.
    key: u64,
    /// Quick to fall and slow to rise: on a busy machine the time to an answer is mostly other people's.
    micros: u32,
    /// Quick to rise and slow to fall.
    bytes: u32,
    runs: u32,
    strikes: u8,
    out_until: Option<Instant>,
}

impl Default for Costs {
    fn default() -> Costs {
        let none = Cost { key: 0, micros: 0, bytes: 0, runs: 0, strikes: 0, out_until: None };
        Costs { table: vec![none; ENTRIES].into() }
    }
}

impl Costs {
    /// Two places for each key.
    fn places(key: u64) -> (usize, usize) {
        let first = (key ^ key >> 32) as usize & (ENTRIES - 1);
        (first, first ^ 1)
    }

    fn find(&self, key: u64) -> Option<usize> {
        let (a, b) = Costs::places(key);
        [a, b].into_iter().find(|&i| self.table[i].key == key)
    }

    /// May a statement of this shape share? Not if it usually takes `slow` microseconds, or answers `large` bytes.
    pub(in crate::core) fn fit(&self, key: u64, slow: u32, large: u32, now: Instant) -> Fit {
        let Some(cost) = self.find(key).map(|i| &self.table[i]) else { return Fit::Unknown };
        if cost.out_until.is_some_and(|until| now < until) || (cost.runs >= KNOWN && cost.micros >= slow) {
            Fit::Slow
        } else if cost.bytes >= large {
            Fit::Large
        } else if cost.runs < KNOWN {
            Fit::Unknown
        } else {
            Fit::Fits(cost.micros)
        }
    }

    /// A statement of this shape (not 0) took so many microseconds, and answered so many bytes.
    pub(in crate::core) fn note(&mut self, key: u64, micros: u32, bytes: u32) {
        let Some(i) = self.find(key) else {
            let (a, b) = Costs::places(key);
            let i = if self.table[a].runs <= self.table[b].runs { a } else { b };
            if self.table[i].runs > KNOWN {
                // It has to be asked for more than once to be worth another's place.
                self.table[i].runs /= 2;
            } else {
                self.table[i] = Cost { key, micros, bytes, runs: 1, strikes: 0, out_until: None };
            }
            return;
        };
        let cost = &mut self.table[i];
        cost.runs = cost.runs.saturating_add(1);
        cost.micros = if micros < cost.micros {
            cost.micros / 2 + micros / 2
        } else {
            cost.micros + (micros - cost.micros).div_ceil(16)
        };
        cost.bytes = bytes.max(cost.bytes - cost.bytes / 16);
        if cost.runs.is_multiple_of(FORGIVEN) {
            cost.strikes = cost.strikes.saturating_sub(1);
        }
    }

    /// A statement of this shape has held others up: it is kept out for a while, longer each time.
    pub(in crate::core) fn strike(&mut self, key: u64, now: Instant) {
        if let Some(i) = self.find(key) {
            let cost = &mut self.table[i];
            cost.strikes = (cost.strikes + 1).min(MOST_STRIKES);
            cost.out_until = Some(now + PENALTY * (1 << cost.strikes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: u32 = 5_000;
    const LARGE: u32 = 16_384;

    #[test]
    fn fits() {
        let now = Instant::now();
        let cases: [(&[(u32, u32)], Fit); 8] = [
            (&[], Fit::Unknown),
            (&[(100, 50)], Fit::Unknown),
            (&[(100, 50), (100, 50)], Fit::Fits(100)),
            (&[(6_000, 50), (6_000, 50)], Fit::Slow),
            // One quick answer tells more than one slow one.
            (&[(9_000, 50), (100, 50)], Fit::Fits(4_550)),
            (&[(100, 50), (9_000, 50)], Fit::Fits(657)),
            (&[(100, 50), (100, 20_000)], Fit::Large),
            (&[(100, 20_000)], Fit::Large),
        ];
        for (runs, expected) in cases {
            let mut costs = Costs::default();
            for &(micros, bytes) in runs {
                costs.note(77, micros, bytes);
            }
            assert_eq!(costs.fit(77, SLOW, LARGE, now), expected, "{runs:?}");
            assert_eq!(costs.fit(78, SLOW, LARGE, now), Fit::Unknown);
        }
    }

    #[test]
    fn strikes_last_longer_each_time_and_are_forgiven() {
        let mut now = Instant::now();
        let mut costs = Costs::default();
        costs.note(5, 100, 1);
        costs.note(5, 100, 1);
        for expected in [500, 1_000, 2_000] {
            costs.strike(5, now);
            assert_eq!(costs.fit(5, SLOW, LARGE, now + Duration::from_millis(expected - 1)), Fit::Slow);
            now += Duration::from_millis(expected);
            assert_eq!(costs.fit(5, SLOW, LARGE, now), Fit::Fits(100));
        }
        for _ in 0..4 * FORGIVEN {
            costs.note(5, 100, 1);
        }
        costs.strike(5, now);
        assert_eq!(costs.fit(5, SLOW, LARGE, now + Duration::from_millis(500)), Fit::Fits(100));
    }

    #[test]
    fn what_runs_often_keeps_its_place() {
        let now = Instant::now();
        let mut costs = Costs::default();
        for _ in 0..100 {
            costs.note(9, 100, 1);
        }
        for i in 1..40 {
            // All want the same two places.
            costs.note(9 + i * ENTRIES as u64 * 2, 100, 1);
            costs.note(9, 100, 1);
        }
        assert_eq!(costs.fit(9, SLOW, LARGE, now), Fit::Fits(100));
    }
}
