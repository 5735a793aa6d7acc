//! PostgreSQL as the oracle: the same dialogue of a few clients with a server directly and through the proxy must give the same answers.
//!
//! A test writes the dialogue once, as a function of a [`Talk`]. The talk keeps the answers, in a form in which two runs can be compared
//! ([`ServerMessage`]), and [`Talk::first_difference`] finds the first difference of two runs.

use std::fmt::Write as _;
use std::time::Duration;

use crate::raw::{Message, Raw};

/// Longest wait for one message; a server silent for that long gives [`ServerMessage::Nothing`]. Below the limit of [`Raw`], which panics.
const PATIENCE: Duration = Duration::from_secs(15);

/// A column: the fields of a RowDescription that PostgreSQL compares itself before it reports "cached plan must not change result type", and the
/// format. Without the table and its column number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Name of the column.
    pub name: String,
    /// OID of its type.
    pub type_oid: u32,
    /// Type modifier; -1 for none.
    pub modifier: i32,
    /// 0 for text, 1 for binary.
    pub format: i16,
}

/// A message of a server, without values that may differ between two runs (process ids, texts of errors). ParameterStatus and NoticeResponse, which
/// may come at any time, are omitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerMessage {
    /// RowDescription.
    Columns(Vec<Column>),
    /// ParameterDescription: OIDs of types.
    Parameters(Vec<u32>),
    /// DataRow, values as they came; none for NULL.
    Row(Vec<Option<String>>),
    /// CommandComplete: the tag.
    Done(String),
    /// ErrorResponse: the SQLSTATE.
    Error(String),
    /// ReadyForQuery: `I`, `T` or `E`.
    Ready(char),
    /// NotificationResponse.
    Notified {
        /// True if the process id is this session's own.
        own: bool,
        /// The channel.
        channel: String,
        /// The payload.
        payload: String,
    },
    /// Any other message, by its type.
    Other(char),
    /// The connection was closed.
    Closed,
    /// No message within the talk's limit.
    Nothing,
}

/// Returns the values of the first column of the rows; NULL is `NULL`.
pub fn values(said: &[ServerMessage]) -> Vec<String> {
    let rows = said.iter().filter_map(|said| match said {
        ServerMessage::Row(row) => Some(row.first().cloned().flatten().unwrap_or_else(|| "NULL".into())),
        _ => None,
    });
    rows.collect()
}

/// Returns the SQLSTATE of the first error.
pub fn error(said: &[ServerMessage]) -> Option<&str> {
    said.iter().find_map(|said| match said {
        ServerMessage::Error(code) => Some(code.as_str()),
        _ => None,
    })
}

/// A parser of the fields of a message's body.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.0.split_first_chunk::<N>().expect("a whole field");
        self.0 = rest;
        *head
    }

    fn short(&mut self) -> i16 {
        i16::from_be_bytes(self.take())
    }

    fn long(&mut self) -> i32 {
        i32::from_be_bytes(self.take())
    }

    fn oid(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    fn text(&mut self) -> String {
        let end = self.0.iter().position(|&b| b == 0).expect("a text that ends");
        let text = String::from_utf8_lossy(&self.0[..end]).into_owned();
        self.0 = &self.0[end + 1..];
        text
    }
}

impl ServerMessage {
    /// Parses a message to a session with the process id `own`; None for an omitted message.
    ///
    /// # Panics
    /// When the message is malformed.
    pub fn of(message: &Message, own: u32) -> Option<ServerMessage> {
        let mut fields = Fields(&message.body);
        Some(match message.kind {
            b'S' | b'N' => return None,
            b'T' => {
                let column = |fields: &mut Fields<'_>| {
                    let name = fields.text();
                    let (_table, _number) = (fields.oid(), fields.short());
                    let (type_oid, _size) = (fields.oid(), fields.short());
                    Column { name, type_oid, modifier: fields.long(), format: fields.short() }
                };
                ServerMessage::Columns((0..fields.short()).map(|_| column(&mut fields)).collect())
            }
            b't' => ServerMessage::Parameters((0..fields.short()).map(|_| fields.oid()).collect()),
            b'D' => {
                let value = |fields: &mut Fields<'_>| {
                    let length = usize::try_from(fields.long()).ok()?;
                    let (value, rest) = fields.0.split_at(length);
                    fields.0 = rest;
                    Some(String::from_utf8_lossy(value).into_owned())
                };
                ServerMessage::Row((0..fields.short()).map(|_| value(&mut fields)).collect())
            }
            b'C' => ServerMessage::Done(fields.text()),
            b'E' => ServerMessage::Error(message.field(b'C').expect("an error has an SQLSTATE")),
            b'Z' => ServerMessage::Ready(char::from(fields.take::<1>()[0])),
            b'A' => {
                ServerMessage::Notified { own: fields.oid() == own, channel: fields.text(), payload: fields.text() }
            }
            kind => ServerMessage::Other(char::from(kind)),
        })
    }
}

/// A session of a talk.
#[derive(Debug)]
struct Session {
    name: String,
    raw: Raw,
    pid: u32,
}

/// A turn of a talk: the messages sent, described for the reader of a failure, and the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Turn {
    sent: String,
    said: Vec<ServerMessage>,
}

/// A dialogue of a few sessions with one address. Only one session sends at a time, so that two runs of one talk are comparable.
#[derive(Debug)]
pub struct Talk {
    port: u16,
    sessions: Vec<Session>,
    turns: Vec<Turn>,
}

impl Talk {
    /// Starts a talk with any server on `port` of 127.0.0.1.
    pub fn new(port: u16) -> Talk {
        Talk { port, sessions: Vec::new(), turns: Vec::new() }
    }

    /// Returns the port of the server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Logs in one more session and returns its number.
    ///
    /// # Panics
    /// When the login is refused.
    pub async fn login(&mut self, user: &str, database: &str) -> usize {
        self.login_with(user, database, &[]).await
    }

    /// Logs in as [`Talk::login`] does, with start-up parameters.
    ///
    /// # Panics
    /// When the login is refused.
    pub async fn login_with(&mut self, user: &str, database: &str, parameters: &[(&str, &str)]) -> usize {
        let (raw, greeting) = Raw::greeted(self.port, user, database, parameters).await;
        let key = greeting.iter().find(|message| message.kind == b'K').expect("a key");
        let pid = Fields(&key.body).oid();
        self.sessions.push(Session { name: format!("#{} {user}@{database}", self.sessions.len()), raw, pid });
        self.sessions.len() - 1
    }

    /// Ends a session properly. Its number is not used again.
    pub async fn logout(&mut self, who: usize) {
        self.sessions[who].raw.send(&crate::raw::message(b'X', &[])).await;
    }

    /// Sends messages of a session in one packet, and waits for as many ReadyForQuery as there are Query and Sync among them.
    ///
    /// # Panics
    /// When the answer does not come.
    pub async fn say(&mut self, who: usize, messages: &[Vec<u8>]) -> Vec<ServerMessage> {
        self.say_for(who, messages, ends_of(messages)).await
    }

    /// Sends a simple query as [`Talk::say`] does.
    ///
    /// # Panics
    /// When the answer does not come.
    pub async fn query(&mut self, who: usize, text: &str) -> Vec<ServerMessage> {
        self.say(who, &[crate::raw::query(text)]).await
    }

    /// Waits for a number of ReadyForQuery that differs from that of Query and Sync, as with a Sync inside of COPY data.
    ///
    /// # Panics
    /// When the answer does not come.
    pub async fn say_for(&mut self, who: usize, messages: &[Vec<u8>], ends: usize) -> Vec<ServerMessage> {
        let said = self.answers(who, messages, ends).await;
        let sent = messages.iter().map(|message| shown(message)).collect::<Vec<_>>().join(" ");
        self.turns.push(Turn { sent: format!("{}: {sent}", self.sessions[who].name), said: said.clone() });
        assert!(said.last() != Some(&ServerMessage::Nothing), "no answer in {PATIENCE:?} to {sent}: {said:?}");
        said
    }

    /// As [`Talk::say`], for an answer that differs in each run, such as a time: the talk does not keep it.
    pub async fn say_aside(&mut self, who: usize, messages: &[Vec<u8>]) -> Vec<ServerMessage> {
        self.answers(who, messages, ends_of(messages)).await
    }

    async fn answers(&mut self, who: usize, messages: &[Vec<u8>], mut ends: usize) -> Vec<ServerMessage> {
        let session = &mut self.sessions[who];
        session.raw.send(&messages.concat()).await;
        let mut said = Vec::new();
        while ends > 0 {
            let next = match tokio::time::timeout(PATIENCE, session.raw.next()).await {
                Ok(Some(message)) => ServerMessage::of(&message, session.pid),
                Ok(None) => Some(ServerMessage::Closed),
                Err(_) => Some(ServerMessage::Nothing),
            };
            ends = match next {
                Some(ServerMessage::Ready(_)) => ends - 1,
                Some(ServerMessage::Closed | ServerMessage::Nothing) => 0,
                _ => ends,
            };
            said.extend(next);
        }
        said
    }

    /// Keeps another value that must be equal in both runs, such as the content of a table.
    pub fn note(&mut self, what: &str, value: &str) {
        self.turns.push(Turn { sent: what.into(), said: vec![ServerMessage::Row(vec![Some(value.into())])] });
    }

    /// Returns the SQLSTATEs of all errors so far.
    pub fn errors(&self) -> Vec<&str> {
        self.turns.iter().filter_map(|turn| error(&turn.said)).collect()
    }

    /// Describes the first difference of this run and `other`, with the turns before it; None if they are the same.
    pub fn first_difference(&self, other: &Talk) -> Option<String> {
        let turns = self.turns.len().max(other.turns.len());
        // The sessions of the two may have logged in by other names.
        let said = |talk: &Talk, at: usize| talk.turns.get(at).map(|turn| turn.said.clone());
        let at = (0..turns).find(|&at| said(self, at) != said(other, at))?;
        let mut text = String::new();
        for turn in &self.turns[at.saturating_sub(12)..at.min(self.turns.len())] {
            let _ = writeln!(text, "   {}\n      {}", turn.sent, in_short(&turn.said));
        }
        let shown = |turn: Option<&Turn>| turn.map_or("(the talk is over)".into(), |turn| in_short(&turn.said));
        let sent = self.turns.get(at).or(other.turns.get(at)).map_or("", |turn| turn.sent.as_str());
        let (here, there) = (shown(self.turns.get(at)), shown(other.turns.get(at)));
        let _ = write!(text, "=> {sent}\n      {here}\n   != {there}");
        Some(text)
    }
}

/// Counts the ReadyForQuery messages that the messages cause.
fn ends_of(messages: &[Vec<u8>]) -> usize {
    messages.iter().filter(|message| matches!(message.first(), Some(b'Q' | b'S'))).count()
}

const MOST_SHOWN: usize = 600;

/// Renders messages as one line, cut off at a limit.
fn in_short(said: &[ServerMessage]) -> String {
    let text = format!("{said:?}");
    text.chars().take(MOST_SHOWN).collect()
}

/// Describes a sent message for the reader of a failure: its type and the texts in it.
fn shown(message: &[u8]) -> String {
    let body = message.get(5..).unwrap_or_default();
    let printable = |&&b: &&u8| b == b' ' || b.is_ascii_graphic();
    let text: String = body.iter().filter(printable).take(MOST_SHOWN).map(|&b| char::from(b)).collect();
    format!("{} {text}", char::from(message.first().copied().unwrap_or(b'?'))).trim_end().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw;

    fn of(kind: u8, body: &[u8]) -> Option<ServerMessage> {
        ServerMessage::of(&Message { kind, body: body.to_vec() }, 7)
    }

    #[test]
    fn messages_are_read() {
        let column = [b"a\0" as &[u8], &[0, 0, 0, 1, 0, 2, 0, 0, 0, 23, 0, 4, 255, 255, 255, 255, 0, 1]].concat();
        let read = Column { name: "a".into(), type_oid: 23, modifier: -1, format: 1 };
        assert_eq!(of(b'T', &[&[0, 1], &column[..]].concat()), Some(ServerMessage::Columns(vec![read])));
        let row = [0, 2, 0, 0, 0, 1, b'x', 255, 255, 255, 255];
        assert_eq!(of(b'D', &row), Some(ServerMessage::Row(vec![Some("x".into()), None])));
        assert_eq!(of(b'Z', b"T"), Some(ServerMessage::Ready('T')));
        assert_eq!(of(b'E', b"SERROR\0C42P01\0\0"), Some(ServerMessage::Error("42P01".into())));
        assert_eq!(of(b'S', b"TimeZone\0UTC\0"), None);
        let own = ServerMessage::Notified { own: true, channel: "c".into(), payload: "p".into() };
        assert_eq!(of(b'A', b"\0\0\0\x07c\0p\0"), Some(own.clone()));
        assert_ne!(of(b'A', b"\0\0\0\x08c\0p\0"), Some(own));
    }

    #[test]
    fn two_runs_part_where_an_answer_differs() {
        let talk = |last: &str| {
            let mut talk = Talk::new(0);
            talk.note("first", "1");
            talk.note("second", last);
            talk
        };
        assert_eq!(talk("2").first_difference(&talk("2")), None);
        let difference = talk("2").first_difference(&talk("3")).expect("a difference");
        assert!(difference.contains("=> second"), "{difference}");
        let mut longer = talk("2");
        longer.note("third", "3");
        assert!(talk("2").first_difference(&longer).is_some_and(|difference| difference.contains("=> third")));
        assert_eq!(shown(&raw::parse("s", "SELECT 1")), "P sSELECT 1");
    }
}
