//! Messages that a server still owes a client, to detect the end of a step.
//!
//! This follows the protocol's rules, not the contents: it works alike for PostgreSQL and for the proxy. A server that breaks the rules keeps the
//! tester waiting, and is detected by its silence.

use std::collections::VecDeque;

use crate::session::Message;

/// A sent message, as far as its answer depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    Query,
    Parse,
    Bind,
    Describe,
    Execute,
    Close,
    Sync,
    Flush,
    CopyData,
    CopyEnd,
}

/// Sent messages without an answer.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    queue: VecDeque<Sent>,
    /// The message being answered.
    current: Option<Sent>,
    /// True if the server has failed and skips up to the next Sync.
    skipping: bool,
    /// True if the server takes CopyData.
    copying: bool,
    /// True if messages of the extended protocol were sent since the last Sync or Query.
    unsynced: bool,
    /// True if one of them was a Bind or an Execute.
    ran: bool,
}

impl Sent {
    fn of(message: &Message) -> Sent {
        match message {
            Message::Query(_) => Sent::Query,
            Message::Parse { .. } => Sent::Parse,
            Message::Bind { .. } => Sent::Bind,
            Message::Describe(..) => Sent::Describe,
            Message::Execute { .. } => Sent::Execute,
            Message::Close(..) => Sent::Close,
            Message::Sync => Sent::Sync,
            Message::Flush => Sent::Flush,
            Message::CopyData(_) => Sent::CopyData,
            Message::CopyDone | Message::CopyFail(_) => Sent::CopyEnd,
        }
    }

    /// True if the message makes the server send its pending answers.
    fn flushes(self) -> bool {
        matches!(self, Sent::Query | Sent::Sync | Sent::Flush)
    }
}

impl Outstanding {
    /// Records a message of the client.
    pub(crate) fn sent(&mut self, message: &Message) {
        let sent = Sent::of(message);
        self.unsynced = match sent {
            Sent::Query | Sent::Sync => false,
            Sent::Parse | Sent::Bind | Sent::Describe | Sent::Execute | Sent::Close => true,
            Sent::Flush | Sent::CopyData | Sent::CopyEnd => self.unsynced,
        };
        self.ran = self.unsynced && (self.ran || matches!(sent, Sent::Bind | Sent::Execute));
        self.queue.push_back(sent);
        self.advance();
    }

    /// Records a message of this type from the server.
    pub(crate) fn received(&mut self, kind: u8) {
        let done = match (self.current, kind) {
            (_, b'A' | b'S' | b'N') => false,
            (Some(Sent::Query | Sent::Sync), b'Z') => {
                self.skipping = false;
                true
            }
            (Some(Sent::Query), b'E') => {
                self.copying = false;
                false
            }
            (Some(Sent::Sync), _) => false,
            (_, b'E') => {
                (self.copying, self.skipping) = (false, true);
                true
            }
            (Some(Sent::Query | Sent::Execute), b'G') => {
                self.copying = true;
                false
            }
            (Some(Sent::Query), _) => false,
            (Some(Sent::Parse), b'1') | (Some(Sent::Bind), b'2') | (Some(Sent::Close), b'3') => true,
            (Some(Sent::Describe), b'T' | b'n') | (Some(Sent::Execute), b'C' | b's' | b'I') => true,
            _ => false,
        };
        if done {
            self.current = None;
        }
        self.advance();
    }

    /// True if nothing more comes until the client sends something. Messages without a later Flush or Sync do not count: the server may keep their
    /// answer.
    pub(crate) fn is_settled(&self) -> bool {
        match self.current {
            None => true,
            // The server waits for the client.
            Some(_) if self.copying => true,
            Some(current) => !current.flushes() && !self.queue.iter().any(|sent| sent.flushes()),
        }
    }

    /// True if messages wait for an answer.
    pub(crate) fn has_queued(&self) -> bool {
        self.current.is_some() || !self.queue.is_empty()
    }

    /// True if statements were prepared, described or closed, and nothing was bound or run, since the last Sync or Query.
    pub(crate) fn only_prepares(&self) -> bool {
        self.unsynced && !self.ran
    }

    /// True if the server waits for CopyData.
    pub(crate) fn is_copying(&self) -> bool {
        self.copying
    }

    /// True if all messages have been answered, and a Sync would change nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.current.is_none() && self.queue.is_empty() && !self.skipping && !self.unsynced
    }

    /// Removes unanswered messages from the queue.
    fn advance(&mut self) {
        loop {
            if self.copying {
                match self.queue.pop_front() {
                    Some(Sent::CopyEnd) => self.copying = false,
                    Some(_) => {}
                    None => return,
                }
                continue;
            }
            if self.current.is_some() {
                return;
            }
            match self.queue.pop_front() {
                None => return,
                Some(Sent::Flush | Sent::CopyData | Sent::CopyEnd) => {}
                Some(sent) if self.skipping && sent != Sent::Sync => {}
                Some(sent) => self.current = Some(sent),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::parse;

    /// Sends a packet, then applies the server's messages; returns whether it is settled before each of them, and after the last.
    fn settled(packet: &str, replies: &str) -> String {
        let script = parse(&format!("client a x y\na: {packet}")).unwrap();
        let mut outstanding = Outstanding::default();
        for message in &script.session.steps[0].packets()[0].messages {
            outstanding.sent(message);
        }
        let mut seen = String::new();
        let mut look = |outstanding: &Outstanding| seen.push(if outstanding.is_settled() { '!' } else { '.' });
        for kind in replies.bytes() {
            look(&outstanding);
            outstanding.received(kind);
        }
        look(&outstanding);
        seen
    }

    #[test]
    fn a_step_is_over_when_all_is_answered() {
        for (packet, replies, expected) in [
            (r#"Q "x""#, "TDCZ", "....!"),
            (r#"Q "x""#, "SNEZ", "....!"),
            (r#"Q "copy t from stdin""#, "G", ".!"),
            (r#"Q "copy t from stdin" ; d "1" ; c"#, "GCZ", "...!"),
            (r#"Q "copy t from stdin" ; d "x" ; c"#, "GEZ", "...!"),
            (r#"P s "x" ; B '' s ; D S s ; E '' ; C S s ; S"#, "12tTDC3Z", "........!"),
            // Skipped up to the Sync, then the next unit.
            (r#"P s "x" ; B '' s ; E '' ; S ; P s "x" ; S"#, "EZ1Z", "....!"),
            // Skipped Queries are not answered.
            (r#"B '' s ; Q "x" ; S"#, "EZ", "..!"),
            // A commit that fails at the Sync.
            (r#"E '' ; S"#, "CEZ", "...!"),
            (r#"P s "x" ; H"#, "1", ".!"),
            (r#"P s "x""#, "1", "!!"),
            (r#"P s "x" ; H ; B '' s"#, "12", ".!!"),
            (r#"P s "x" ; H ; B '' s"#, "E", ".!"),
            // COPY with its data in the same packet: the copy consumes the Sync before the data.
            (r#"B '' s ; E '' ; S ; d "1" ; c ; S"#, "2GCZ", "....!"),
            // The same when it fails before it begins: both Syncs count.
            (r#"B '' s ; E '' ; S ; d "1" ; c ; S"#, "2EZZ", "....!"),
            (r#"E '' ; H"#, "G", ".!"),
            (r#"E '' 2 ; S"#, "DDsZ", "....!"),
            // Stray copy messages are ignored.
            (r#"d "1" ; c ; Q "x""#, "IZ", "..!"),
        ] {
            assert_eq!(settled(packet, replies), expected, "{packet} / {replies}");
        }
    }
}
