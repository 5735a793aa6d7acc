//! Costs of statements by shape: the server's time and the bytes of the answer. They decide which statements may share a server connection.

use std::time::{Duration, Instant};

/// Number of remembered shapes. If two compete for a place, the one that runs more often keeps it.
const ENTRIES: usize = 4096;
/// Number of runs after which a shape's costs count as known.
const KNOWN: u32 = 2;
/// Number of runs after which one strike is forgotten.
const FORGIVEN: u32 = 1024;
/// Unit of the penalty: the first strike excludes a shape for twice this time; each further strike doubles it.
const PENALTY: Duration = Duration::from_millis(250);
/// Maximum number of counted strikes, which limits the penalty to 64 s.
const MOST_STRIKES: u8 = 8;

/// Suitability of a shape for sharing, by its costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Fit {
    /// Fast and small; the usual time in microseconds.
    Fits(u32),
    /// The shape has not run often enough.
    Unknown,
    Slow,
    Large,
}

/// Costs of the shapes of one worker, in a table of fixed size. A shape that is dropped is measured again.
pub(in crate::core) struct Costs {
    table: Box<[Cost]>,
}

#[derive(Debug, Clone, Copy)]
struct Cost {
    /// The shape; 0 if the entry is free.
    key: u64,
    /// Falls quickly and rises slowly: on a busy machine most of a long answer time is spent on other work.
    micros: u32,
    /// Rises quickly and falls slowly.
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
    /// Returns the two places where a key may be.
    fn places(key: u64) -> (usize, usize) {
        let first = (key ^ key >> 32) as usize & (ENTRIES - 1);
        (first, first ^ 1)
    }

    fn find(&self, key: u64) -> Option<usize> {
        let (a, b) = Costs::places(key);
        [a, b].into_iter().find(|&i| self.table[i].key == key)
    }

    /// Returns the suitability of a shape for sharing: unsuitable if it usually takes `slow` microseconds or more, or has answers of `large` bytes or
    /// more.
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

    /// Records a run of this shape (not 0), with its time and the bytes of its answer.
    pub(in crate::core) fn note(&mut self, key: u64, micros: u32, bytes: u32) {
        let Some(i) = self.find(key) else {
            let (a, b) = Costs::places(key);
            let i = if self.table[a].runs <= self.table[b].runs { a } else { b };
            if self.table[i].runs > KNOWN {
                // A single run does not displace another shape.
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

    /// Records that a statement of this shape has delayed others: excludes the shape for a time, longer with each strike.
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
            // One fast answer counts more than one slow one.
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
            // All compete for the same two places.
            costs.note(9 + i * ENTRIES as u64 * 2, 100, 1);
            costs.note(9, 100, 1);
        }
        assert_eq!(costs.fit(9, SLOW, LARGE, now), Fit::Fits(100));
    }
}
