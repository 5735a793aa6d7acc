//! The parameters under which a server connection has read the literals in functions.

use super::scope::ParseSettings;

/// Functions' statements that a server connection has analyzed.
///
/// PL/pgSQL analyzes each statement of a function when a session first runs it, and keeps the result: after `return '2020-01-01 00:00'::timestamptz`
/// the instant is that of the `TimeZone` in force at the time. So a client whose literals are read differently must not use the results of another
/// client's calls. `DISCARD PLANS` makes PostgreSQL analyze all of them again.
#[derive(Debug, Default)]
pub(crate) struct CachedFunctionPlans {
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
    /// Analyzed under the parameters with this number: [`ParseSettings::literals`].
    Under(u64),
    /// Analyzed under several parameter sets, or under unknown ones.
    Mixed,
}

impl CachedFunctionPlans {
    /// Records that the connection's client, whose texts have these parse settings, calls a function.
    pub(crate) fn call(&mut self, parse_settings: ParseSettings) {
        self.called = true;
        self.analysed =
            if self.suit(parse_settings) { Analysed::Under(parse_settings.literals) } else { Analysed::Mixed };
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

    /// True if functions called by a client with these parse settings have the literals that they would have in a session of the client's own.
    pub(crate) fn suit(&self, parse_settings: ParseSettings) -> bool {
        match self.analysed {
            Analysed::Nothing => true,
            Analysed::Under(number) => number == parse_settings.literals,
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

    const HERE: ParseSettings = ParseSettings::DEFAULT;
    const TOKYO: ParseSettings = ParseSettings { names: 0, literals: 1 };
    /// Another `search_path`, whose changes PostgreSQL detects itself.
    const PATH: ParseSettings = ParseSettings { names: 2, literals: 0 };

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
            let mut function_plans = CachedFunctionPlans::default();
            for &parse_settings in calls {
                function_plans.call(parse_settings);
                function_plans.client_leaves();
            }
            if let Some(&parse_settings) = calls.last() {
                function_plans.call(parse_settings);
            }
            if moved {
                function_plans.literals_move();
            }
            function_plans.client_leaves();
            for parse_settings in [HERE, TOKYO, PATH] {
                assert_eq!(
                    function_plans.suit(parse_settings),
                    suited.contains(&parse_settings),
                    "{calls:?} {moved} {parse_settings:?}"
                );
            }
            function_plans.discard();
            assert!(function_plans.suit(HERE) && function_plans.suit(TOKYO));
        }
    }

    #[test]
    fn what_moves_in_one_clients_time_says_nothing_of_the_next_ones_calls() {
        let mut function_plans = CachedFunctionPlans::default();
        function_plans.literals_move();
        function_plans.client_leaves();
        function_plans.call(HERE);
        function_plans.client_leaves();
        assert!(function_plans.suit(HERE));
    }
}
