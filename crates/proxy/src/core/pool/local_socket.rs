//! The choice between a server's Unix socket and its TCP address, for one pool's connections to one node.
//!
//! pg_hba.conf has rules of its own for sockets. The choice must not let in anybody whom the rules for TCP keep out, so a login without any proof over
//! the socket counts only after a login without any proof over TCP.

use std::time::{Duration, Instant};

/// Time without the socket after a connection to it has failed. The server may have been too busy to accept one.
const AFTER_FAILURE: Duration = Duration::from_secs(60);

/// State of the choice, as of one number of the server's configuration ([`topology::NodeView::settings`]): another number begins anew.
#[derive(Debug, Default)]
pub(in crate::core) struct LocalSocket {
    settings: u64,
    state: State,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The socket may be tried.
    #[default]
    Untried,
    /// The socket lets this user in without proof. It is unknown if TCP does.
    Unproven,
    /// Both let this user in without proof.
    Open,
    /// The socket does not let this user in, or asks for less than TCP does.
    Refused,
    /// A connection to the socket failed; it is tried again at this time.
    Failed(Instant),
}

impl LocalSocket {
    /// Returns the state for this number.
    fn at(&mut self, settings: u64) -> &mut State {
        if self.settings != settings {
            *self = LocalSocket { settings, state: State::Untried };
        }
        &mut self.state
    }

    /// True if the next connection may go to the socket.
    pub(in crate::core) fn may_try(&mut self, settings: u64, now: Instant) -> bool {
        match *self.at(settings) {
            State::Untried | State::Open => true,
            State::Unproven | State::Refused => false,
            State::Failed(until) => now >= until,
        }
    }

    /// Notes that the socket asked for no proof. True if the login counts.
    pub(in crate::core) fn asked_for_nothing(&mut self, settings: u64) -> bool {
        let state = self.at(settings);
        if *state != State::Open {
            *state = State::Unproven;
        }
        *state == State::Open
    }

    /// Notes a login over TCP, and if the server asked for a proof there.
    pub(in crate::core) fn tcp_login(&mut self, settings: u64, proof: bool) {
        let state = self.at(settings);
        *state = match (*state, proof) {
            (State::Unproven | State::Untried, false) => State::Open,
            (State::Unproven | State::Open, true) => State::Refused,
            (state, _) => state,
        };
    }

    /// Notes that the server does not let this user in at the socket.
    pub(in crate::core) fn refused(&mut self, settings: u64) {
        *self.at(settings) = State::Refused;
    }

    /// Notes that there was no connection to the socket.
    pub(in crate::core) fn failed(&mut self, settings: u64, now: Instant) {
        *self.at(settings) = State::Failed(now + AFTER_FAILURE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    enum Event {
        Nothing,
        TcpOpen,
        TcpProof,
        Refused,
        Failed,
    }

    #[test]
    fn a_socket_that_asks_for_less_than_tcp_is_left() {
        use Event::{Failed, Nothing, Refused, TcpOpen, TcpProof};
        let now = Instant::now();
        for (number, (events, tries, counts)) in [
            (vec![], true, false),
            (vec![Nothing], false, false),
            (vec![Nothing, TcpOpen], true, true),
            (vec![TcpOpen], true, true),
            (vec![Nothing, TcpProof], false, false),
            (vec![TcpProof], true, false),
            // Another worker's pool may see the two in any order; a proof asked for by TCP is the last word.
            (vec![TcpOpen, TcpProof], false, false),
            (vec![Refused, TcpOpen], false, false),
            (vec![Refused, TcpProof], false, false),
            (vec![Failed], false, false),
        ]
        .into_iter()
        .enumerate()
        {
            let mut socket = LocalSocket::default();
            for event in &events {
                match event {
                    Nothing => drop(socket.asked_for_nothing(7)),
                    TcpOpen => socket.tcp_login(7, false),
                    TcpProof => socket.tcp_login(7, true),
                    Refused => socket.refused(7),
                    Failed => socket.failed(7, now),
                }
            }
            assert_eq!(socket.may_try(7, now), tries, "case {number}");
            let known = matches!(socket.state, State::Open);
            assert_eq!(known, counts, "case {number}");
            // The server has read its files again.
            assert!(socket.may_try(8, now), "case {number}");
        }
        let mut socket = LocalSocket::default();
        socket.failed(7, now);
        assert!(socket.may_try(7, now + AFTER_FAILURE));
    }
}
