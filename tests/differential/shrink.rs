//! Shortens a session as long as it shows the same difference.
//!
//! The shrinker runs nothing: it proposes a session ([`Shrinker::next`]) and learns whether that still shows the difference ([`Shrinker::tell`]). It
//! is greedy: it removes all that can be removed, coarse pieces first, until nothing more can.

use crate::session::{Message, Packet, Session, Step};

/// Applied in this order, repeatedly, until a whole round removes nothing.
const ROUND: [fn(&Session) -> Vec<Session>; 8] = [
    without_clients,
    |session| without_steps(session, 2),
    |session| without_steps(session, 4),
    |session| without_steps(session, 8),
    |session| without_steps(session, usize::MAX),
    without_messages,
    without_surroundings,
    with_less_text,
];

/// A session that is being shortened.
#[derive(Debug)]
pub(crate) struct Shrinker {
    best: Session,
    tried: Option<Session>,
    level: usize,
    at: usize,
    improved: bool,
}

impl Shrinker {
    /// Starts with a session that shows a difference in step `step` (or at its end, if that is after the last).
    pub(crate) fn new(mut session: Session, step: usize) -> Shrinker {
        session.steps.truncate(step + 1);
        Shrinker { best: session, tried: None, level: 0, at: 0, improved: false }
    }

    /// Returns the next session to try; None if it gets no shorter.
    pub(crate) fn next(&mut self) -> Option<Session> {
        loop {
            let pass = ROUND.get(self.level)?;
            if let Some(candidate) = pass(&self.best).into_iter().nth(self.at) {
                self.tried = Some(candidate.clone());
                return Some(candidate);
            }
            (self.level, self.at) = (self.level + 1, 0);
            if self.level == ROUND.len() && self.improved {
                (self.level, self.improved) = (0, false);
            }
        }
    }

    /// Takes the result of the session that [`Shrinker::next`] returned last: true if it shows the difference.
    pub(crate) fn tell(&mut self, shows: bool) {
        match self.tried.take() {
            // The following candidates have moved up to this index.
            Some(tried) if shows => (self.best, self.improved) = (tried, true),
            _ => self.at += 1,
        }
    }

    /// Returns the shortest session known to show the difference.
    pub(crate) fn best(&self) -> &Session {
        &self.best
    }
}

/// Returns the session without each one of the clients.
fn without_clients(session: &Session) -> Vec<Session> {
    if session.clients.len() < 2 {
        return Vec::new();
    }
    (0..session.clients.len()).map(|client| without_client(session, client)).collect()
}

fn without_client(session: &Session, gone: usize) -> Session {
    let mut shorter = session.clone();
    shorter.clients.remove(gone);
    let moved = |client: usize| if client > gone { client - 1 } else { client };
    let packet = |packet: Packet| Packet { client: moved(packet.client), ..packet };
    shorter.steps = std::mem::take(&mut shorter.steps)
        .into_iter()
        .filter_map(|step| match step {
            Step::Send(one) => (one.client != gone).then(|| Step::Send(packet(one))),
            Step::End(one, way) => (one.client != gone).then(|| Step::End(packet(one), way)),
            Step::Reconnect(client) => (client != gone).then(|| Step::Reconnect(moved(client))),
            Step::Operate(order) => Some(Step::Operate(order)),
            Step::Together(packets) => {
                let left: Vec<Packet> = packets.into_iter().filter(|one| one.client != gone).map(packet).collect();
                match left.len() {
                    0 => None,
                    1 => left.into_iter().next().map(Step::Send),
                    _ => Some(Step::Together(left)),
                }
            }
        })
        .collect();
    shorter
}

/// Returns the session without each of `parts` runs of steps.
fn without_steps(session: &Session, parts: usize) -> Vec<Session> {
    let length = session.steps.len();
    let size = (length / parts).max(1);
    if parts < usize::MAX && size < 2 {
        return Vec::new();
    }
    // From the end: later steps depend on earlier ones, seldom the reverse.
    let starts: Vec<usize> = (0..length).step_by(size).collect();
    let without = |&start: &usize| {
        let mut shorter = session.clone();
        shorter.steps.drain(start..(start + size).min(length));
        shorter
    };
    starts.iter().rev().map(without).collect()
}

/// Returns the session without each message, without each packet of several sent together, or with those sent one by one.
fn without_messages(session: &Session) -> Vec<Session> {
    let mut candidates = Vec::new();
    for (at, step) in session.steps.iter().enumerate() {
        if let Step::Together(packets) = step {
            for gone in 0..packets.len() {
                let mut shorter = session.clone();
                if let Step::Together(packets) = &mut shorter.steps[at] {
                    packets.remove(gone);
                    if let [one] = packets.as_slice() {
                        shorter.steps[at] = Step::Send(one.clone());
                    }
                }
                candidates.push(shorter);
            }
        }
        for (place, packet) in step.packets().iter().enumerate().filter(|(_, packet)| packet.messages.len() > 1) {
            for gone in 0..packet.messages.len() {
                let mut shorter = session.clone();
                shorter.steps[at].packets_mut()[place].messages.remove(gone);
                candidates.push(shorter);
            }
        }
    }
    candidates
}

/// Returns the session with fewer settings, fewer start-up parameters, or a smaller pool.
fn without_surroundings(session: &Session) -> Vec<Session> {
    let mut candidates = Vec::new();
    for gone in 0..session.setup.len() {
        let mut shorter = session.clone();
        shorter.setup.remove(gone);
        candidates.push(shorter);
    }
    for (client, spec) in session.clients.iter().enumerate() {
        for gone in 0..spec.parameters.len() {
            let mut shorter = session.clone();
            shorter.clients[client].parameters.remove(gone);
            candidates.push(shorter);
        }
    }
    if session.pool > 1 {
        candidates.push(Session { pool: 1, ..session.clone() });
        candidates.push(Session { pool: session.pool - 1, ..session.clone() });
    }
    candidates
}

/// Returns the session with one simpler message: one statement of several less, text for binary, all rows for some.
fn with_less_text(session: &Session) -> Vec<Session> {
    let mut candidates = Vec::new();
    let mut change = |at: usize, place: usize, index: usize, message: Message| {
        let mut shorter = session.clone();
        shorter.steps[at].packets_mut()[place].messages[index] = message;
        candidates.push(shorter);
    };
    for (at, step) in session.steps.iter().enumerate() {
        for (place, packet) in step.packets().iter().enumerate() {
            for (index, message) in packet.messages.iter().enumerate() {
                for simpler in simpler(message) {
                    change(at, place, index, simpler);
                }
            }
        }
    }
    candidates
}

fn simpler(message: &Message) -> Vec<Message> {
    match message {
        Message::Query(text) => without_statements(text).into_iter().map(Message::Query).collect(),
        Message::Bind { portal, statement, values, binary: true } => vec![Message::Bind {
            portal: portal.clone(),
            statement: statement.clone(),
            values: values.clone(),
            binary: false,
        }],
        Message::Parse { name, text, types } if !types.is_empty() => {
            vec![Message::Parse { name: name.clone(), text: text.clone(), types: Vec::new() }]
        }
        Message::Execute { portal, rows } if *rows > 0 => vec![Message::Execute { portal: portal.clone(), rows: 0 }],
        _ => Vec::new(),
    }
}

/// Returns a text of several statements without each of them. Statements are separated by `; `, which the generator writes between them.
fn without_statements(text: &str) -> Vec<String> {
    let parts: Vec<&str> = text.split("; ").collect();
    if parts.len() < 2 {
        return Vec::new();
    }
    let without = |gone: usize| {
        let left = parts.iter().enumerate().filter(|(at, _)| *at != gone).map(|(_, part)| *part);
        left.collect::<Vec<_>>().join("; ")
    };
    (0..parts.len()).map(without).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::parse;

    const LONG: &str = r#"
pool 3
setup app "alter role bob set datestyle = German"
client a alice app application_name="x"
client b bob app TimeZone="UTC"
client c bob app
a: Q "begin"
a: P s1 "select 1" ; B '' s1 ; E '' 2 ; S
b: Q "select 1; select 2; select 3"
c: reconnect
& a: Q "select 3"
& b: Q "select 4"
& c: Q "select 5"
a: Q "commit"
b: Q "select 6"
c: Q "select 7"
"#;

    /// Returns the shortest form of [`LONG`] that still has all of `wanted`, and the number of attempts.
    fn shrunk(wanted: &[&str]) -> (String, usize) {
        let session = parse(LONG).unwrap().session;
        let mut shrinker = Shrinker::new(session.clone(), session.steps.len());
        let mut attempts = 0;
        while let Some(candidate) = shrinker.next() {
            attempts += 1;
            let text = candidate.to_string();
            shrinker.tell(wanted.iter().all(|part| text.contains(part)));
        }
        (shrinker.best().to_string(), attempts)
    }

    #[test]
    fn what_does_not_matter_is_left_out() {
        for (wanted, expected) in [
            (&["select 6"][..], "pool 1\nclient a bob app\na: Q \"select 6\"\n"),
            (
                &["P s1", "select 7"],
                "pool 1\nclient a alice app\nclient b bob app\na: P s1 \"select 1\"\nb: Q \"select 7\"\n",
            ),
            (&["; E ''"], "pool 1\nclient a bob app\n"),
            (&["select 2"], "pool 1\nclient a bob app\na: Q \"select 2\"\n"),
            (
                &["alter role", "UTC"],
                "pool 1\nsetup app \"alter role bob set datestyle = German\"\nclient a bob app TimeZone=\"UTC\"\n",
            ),
            (
                &["& b: Q \"select 4\"", "& a"],
                "pool 1\nclient a alice app\nclient b bob app\n& a: Q \"select 3\"\n& b: Q \"select 4\"\n",
            ),
            (
                &["select 3\"\n& b: Q \"select 4"],
                "pool 1\nclient a alice app\nclient b bob app\n& a: Q \"select 3\"\n& b: Q \"select 4\"\n",
            ),
            (&["select 4"], "pool 1\nclient a bob app\na: Q \"select 4\"\n"),
            (&["reconnect"], "pool 1\nclient a bob app\na: reconnect\n"),
        ] {
            let (text, attempts) = shrunk(wanted);
            if wanted == ["; E ''"] {
                assert!(text.ends_with("; E ''\n"), "{text}");
            } else {
                assert_eq!(text, expected, "{wanted:?}");
            }
            assert!(attempts < 150, "{attempts} attempts for {wanted:?}");
        }
    }

    #[test]
    fn steps_behind_the_difference_go_at_once() {
        let session = parse(LONG).unwrap().session;
        assert_eq!(Shrinker::new(session, 2).best().steps.len(), 3);
    }

    #[test]
    fn what_shows_nothing_shorter_stays() {
        let session = parse(LONG).unwrap().session;
        let mut shrinker = Shrinker::new(session.clone(), session.steps.len());
        while shrinker.next().is_some() {
            shrinker.tell(false);
        }
        assert_eq!(*shrinker.best(), session);
    }
}
