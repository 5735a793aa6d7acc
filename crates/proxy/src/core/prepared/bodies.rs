//! Under which parameters a server connection has read the literals in functions.

use super::scope::Reading;

/// What a server connection has analysed of functions.
///
/// PL/pgSQL analyses each statement of a function when a session first runs it, and keeps it: after
/// `return '2020-01-01 00:00'::timestamptz` the instant is the one by the `TimeZone` of that moment. So a client whose literals are read
/// otherwise must not meet what another client's calls have left there. `DISCARD PLANS` has PostgreSQL analyse all of it again.
#[derive(Debug, Default)]
pub(crate) struct Bodies {
    analysed: Analysed,
    /// The client that has the connection has called a function.
    called: bool,
    /// The server has reported another value of a parameter that matters to literals, since the client has had the connection.
    moved: bool,
}

#[derive(Debug, Default)]
enum Analysed {
    #[default]
    Nothing,
    /// Under the parameters with this number: [`Reading::literals`].
    Under(u64),
    /// Under several, or under unknown ones.
    Mixed,
}

impl Bodies {
    /// The client that has the connection calls a function, while its texts are read so.
    pub(crate) fn call(&mut self, reading: Reading) {
        self.called = true;
        self.analysed = if self.suit(reading) { Analysed::Under(reading.literals) } else { Analysed::Mixed };
    }

    /// The server has reported that literals are read otherwise from now on, by a statement of the client's.
    pub(crate) fn literals_move(&mut self) {
        self.moved = true;
    }

    /// The connection is without a client.
    pub(crate) fn client_leaves(&mut self) {
        // Whether the function was called before that change or after it is not known.
        if self.called && self.moved {
            self.analysed = Analysed::Mixed;
        }
        (self.called, self.moved) = (false, false);
    }

    /// True if functions that a client with this reading calls have the literals that they would have in a session of the client's own.
    pub(crate) fn suit(&self, reading: Reading) -> bool {
        match self.analysed {
            Analysed::Nothing => true,
            Analysed::Under(number) => number == reading.literals,
            Analysed::Mixed => false,
        }
    }

    /// Nothing is analysed any more: `DISCARD PLANS` or `DISCARD ALL` has been carried out.
    pub(crate) fn discard(&mut self) {
        self.analysed = Analysed::Nothing;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Reading = Reading::DEFAULT;
    const TOKYO: Reading = Reading { names: 0, literals: 1 };
    /// Another `search_path`, by which PostgreSQL looks itself.
    const PATH: Reading = Reading { names: 2, literals: 0 };

    #[test]
    fn whom_a_connection_suits() {
        for (calls, moved, suited) in [
            (&[][..], true, &[HERE, TOKYO, PATH][..]),
            (&[HERE], false, &[HERE, PATH]),
            (&[HERE, HERE, PATH], false, &[HERE, PATH]),
            (&[TOKYO], false, &[TOKYO]),
            (&[TOKYO, HERE], false, &[]),
            (&[TOKYO, HERE, HERE], false, &[]),
            (&[HERE], true, &[]),
        ] {
            let mut bodies = Bodies::default();
            for &reading in calls {
                bodies.call(reading);
                bodies.client_leaves();
            }
            if let Some(&reading) = calls.last() {
                bodies.call(reading);
            }
            if moved {
                bodies.literals_move();
            }
            bodies.client_leaves();
            for reading in [HERE, TOKYO, PATH] {
                assert_eq!(bodies.suit(reading), suited.contains(&reading), "{calls:?} {moved} {reading:?}");
            }
            bodies.discard();
            assert!(bodies.suit(HERE) && bodies.suit(TOKYO));
        }
    }

    #[test]
    fn what_moves_in_one_clients_time_says_nothing_of_the_next_ones_calls() {
        let mut bodies = Bodies::default();
        bodies.literals_move();
        bodies.client_leaves();
        bodies.call(HERE);
        bodies.client_leaves();
        assert!(bodies.suit(HERE));
    }
}
