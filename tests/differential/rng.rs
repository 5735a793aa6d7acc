//! Random numbers that depend on the seed alone, so that a seed makes the same session everywhere.

/// SplitMix64 (Steele, Lea, Flood 2014): small, and good enough to choose statements.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    /// Starts the sequence of `seed`.
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// Returns the next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, which is at least 1.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// Returns a number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// Returns true in `percent` of 100 cases.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Returns one of `list`, which is not empty.
    pub(crate) fn pick<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[self.below(list.len())]
    }

    /// Returns one of the values, with the given weights. At least one weight is not 0.
    pub(crate) fn weighted<T: Copy>(&mut self, choices: &[(usize, T)]) -> T {
        let sum: usize = choices.iter().map(|(weight, _)| weight).sum();
        let mut at = self.below(sum);
        for &(weight, value) in choices {
            if at < weight {
                return value;
            }
            at -= weight;
        }
        choices[0].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_again() {
        let numbers = |seed| -> Vec<usize> {
            let mut rng = Rng::new(seed);
            (0..20).map(|_| rng.below(1000)).collect()
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
    }

    #[test]
    fn a_weight_of_zero_is_never_chosen() {
        let mut rng = Rng::new(7);
        assert!((0..200).all(|_| rng.weighted(&[(0, 'a'), (1, 'b'), (0, 'c')]) == 'b'));
    }
}
