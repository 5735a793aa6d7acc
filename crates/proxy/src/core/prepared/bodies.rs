//! The parameters under which a server connection has read the literals in functions.

use super::scope::Reading;

/// Functions' statements that a server connection has analyzed.
///
/// PL/pgSQL analyzes each statement of a function when a session first runs it, and keeps the result: after `return '2020-01-01 00:00'::timestamptz`
/// the instant is that of the `TimeZone` in force at the time. So a client whose literals are read differently must not use the results of another
/// client's calls. `DISCARD PLANS` makes PostgreSQL analyze all of them again.
#[derive(Debug, Default)]
pub(crate) struct Bodies {
    analysed: Analysed,
    /// True if the connection's client has called a function.
    called: bool,
    /// True if the server has reported a new value of a parameter that affects literals, since the client has had the connection.
    moved: bool,
}

#[derive(Debug, Default)]
enum Analysed {
    #[default]
    Nothing,
    /// Analyzed under the parameters with this number: [`Reading::literals`].
    Under(u64),
    /// Analyzed under several parameter sets, or under unknown ones.
    Mixed,
}

impl Bodies {
    /// Records that the connection's client, whose texts have this reading, calls a function.
    pub(crate) fn call(&mut self, reading: Reading) {
        self.called = true;
        self.analysed = if self.suit(reading) { Analysed::Under(reading.literals) } else { Analysed::Mixed };
    }

    /// Records the server's report that literals are read differently from now on, caused by a statement of the client.
    pub(crate) fn literals_move(&mut self) {
        self.moved = true;
    }

    /// Records that the connection has no client any more.
    pub(crate) fn client_leaves(&mut self) {
        // It is unknown if the function was called before that change or after it.
        if self.called && self.moved {
            self.analysed = Analysed::Mixed;
        }
        (self.called, self.moved) = (false, false);
    }

    /// True if functions called by a client with this reading have the literals that they would have in a session of the client's own.
    pub(crate) fn suit(&self, reading: Reading) -> bool {
        match self.analysed {
            Analysed::Nothing => true,
            Analysed::Under(number) => number == reading.literals,
            Analysed::Mixed => false,
        }
    }

    /// Records that `DISCARD PLANS` or `DISCARD ALL` has been executed: no analyzed statements are left.
    pub(crate) fn discard(&mut self) {
        self.analysed = Analysed::Nothing;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Reading = Reading::DEFAULT;
    const TOKYO: Reading = Reading { names: 0, literals: 1 };
    /// Another `search_path`, whose changes PostgreSQL detects itself.
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
