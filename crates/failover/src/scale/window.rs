//! Load of a replica on average of the window. No I/O.

use std::collections::VecDeque;
use std::time::Duration;

/// Most looks that are kept.
const MOST: usize = 1024;

/// Loads at the looks within the window. Times are those of the caller's clock.
#[derive(Debug)]
pub(crate) struct Window {
    length: Duration,
    looks: VecDeque<(Duration, f64)>,
}

impl Window {
    pub(crate) fn new(length: Duration) -> Window {
        Window { length, looks: VecDeque::new() }
    }

    /// Takes the busy sessions and the number of replicas of a look; None, an unknown load, begins the window anew.
    pub(crate) fn see(&mut self, load: Option<(u64, usize)>, now: Duration) {
        let Some((busy, replicas)) = load.filter(|(_, replicas)| *replicas > 0) else { return self.forget() };
        // Far below 2^52.
        self.looks.push_back((now, busy as f64 / replicas as f64));
        // One look from before the window stays: it shows that the window is whole.
        while self.looks.len() > MOST || self.looks.get(1).is_some_and(|(at, _)| now.saturating_sub(*at) >= self.length)
        {
            self.looks.pop_front();
        }
    }

    /// Begins the window anew: the load is spread over other servers from now on.
    pub(crate) fn forget(&mut self) {
        self.looks.clear();
    }

    /// Returns the average; None before the window is whole.
    pub(crate) fn average(&self, now: Duration) -> Option<f64> {
        let (first, _) = self.looks.front()?;
        (now.saturating_sub(*first) >= self.length)
            .then(|| self.looks.iter().map(|(_, load)| load).sum::<f64>() / self.looks.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages() {
        let at = Duration::from_secs;
        for (name, looks, average) in [
            ("nothing yet", vec![], None),
            ("not whole", vec![(0, Some((20, 2)))], None),
            ("whole", vec![(0, Some((20, 2))), (5, Some((20, 2))), (10, Some((80, 2)))], Some(20.0)),
            ("old looks go", vec![(0, Some((900, 1))), (5, Some((1, 1))), (15, Some((3, 1)))], Some(2.0)),
            ("an unknown load begins anew", vec![(0, Some((1, 1))), (5, None), (10, Some((1, 1)))], None),
            ("no replica is an unknown load", vec![(0, Some((1, 1))), (10, Some((0, 0)))], None),
        ] {
            let mut window = Window::new(at(10));
            for (now, load) in &looks {
                window.see(*load, at(*now));
            }
            let now = looks.last().map_or(0, |(now, _)| *now);
            assert_eq!(window.average(at(now)), average, "{name}");
        }
    }

    #[test]
    fn looks_are_bounded() {
        let mut window = Window::new(Duration::from_secs(3600));
        for now in 0..10_000 {
            window.see(Some((1, 1)), Duration::from_millis(now));
        }
        assert_eq!(window.looks.len(), MOST);
    }
}
