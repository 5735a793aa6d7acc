//! Messages of a client (the frontend), decoded without copying.
//!
//! Code that handles a client's messages matches on [`Message`], so that the compiler reports every kind that is not handled. Formats: PostgreSQL
//! documentation, "Frontend/Backend Protocol", "Message Formats".

use crate::frame::{Frame, HEADER};
use crate::payload::{self, Named};

/// A message after the login, decoded as far as the proxy needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// `Q`: runs a text of any number of statements.
    Query {
        /// The text, without its NUL.
        text: &'a [u8],
    },
    /// `P`: creates a prepared statement.
    Parse {
        /// Name of the statement; empty: the unnamed statement.
        name: &'a [u8],
        /// The text, without its NUL.
        text: &'a [u8],
        /// The declared parameter types as on the wire: the count, then the type OIDs.
        types: &'a [u8],
    },
    /// `B`: creates a portal of a prepared statement. The values may be long, and need not have arrived.
    Bind {
        /// Name of the portal; empty: the unnamed portal.
        portal: &'a [u8],
        /// Name of the prepared statement; empty: the unnamed statement.
        statement: &'a [u8],
        /// Formats, values and result formats as on the wire, as far as they have arrived.
        rest: &'a [u8],
    },
    /// `D`: asks for the columns of a statement or portal.
    Describe(Named<'a>),
    /// `C`: closes a statement or portal.
    Close(Named<'a>),
    /// `E`: runs a portal.
    Execute {
        /// Name of the portal; empty: the unnamed portal.
        portal: &'a [u8],
        /// Maximum number of rows to return; 0: all.
        rows: u32,
    },
    /// `S`: ends a unit. A server that skips messages after an error stops skipping here.
    Sync,
    /// `H`: asks the server to send its answers so far.
    Flush,
    /// `F`: calls a function by its OID.
    FunctionCall,
    /// `d`: a piece of COPY data.
    CopyData,
    /// `c`: the end of COPY data.
    CopyDone,
    /// `f`: the client aborts the COPY.
    CopyFail,
    /// `X`: the client disconnects.
    Terminate,
}

/// A message that violates its format, or of a kind that clients do not send after the login.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The payload violates the format of the message.
    #[error("invalid {0} message")]
    Payload(&'static str),
    /// The kind does not exist, or is not permitted at this point.
    #[error("unexpected message {:?}", char::from(*.0))]
    Kind(u8),
}

/// Maximum length of the names of a Bind together; also of the payload of an Execute, a Describe or a Close, in bytes.
const MOST_NAMES: usize = 64 << 10;

impl<'a> Message<'a> {
    /// Decodes the message at the start of `bytes`; `frame` is its header. `None` if more of the message has to arrive.
    ///
    /// A Query, Parse, Describe, Close or Execute must have arrived completely. Of a Bind the names are enough, and of COPY data and a function call
    /// the header: such messages can be passed on in pieces.
    pub fn read(frame: Frame, bytes: &'a [u8]) -> Result<Option<Message<'a>>, Invalid> {
        let there = &bytes[HEADER.min(bytes.len())..frame.total().min(bytes.len())];
        let whole = (there.len() == frame.payload).then_some(there);
        let invalid = |what| Err(Invalid::Payload(what));
        let message = match frame.tag {
            b'Q' => match whole.map(payload::text) {
                Some(Some(text)) => Message::Query { text },
                Some(None) => return invalid("Query"),
                None => return Ok(None),
            },
            b'P' => match whole.map(payload::parse) {
                Some(Some((name, text, types))) => Message::Parse { name, text, types },
                Some(None) => return invalid("Parse"),
                None => return Ok(None),
            },
            b'B' => match payload::bind(there) {
                Some((portal, statement, rest)) => Message::Bind { portal, statement, rest },
                None if whole.is_some() || there.len() > MOST_NAMES => return invalid("Bind"),
                None => return Ok(None),
            },
            b'D' | b'C' if frame.payload > MOST_NAMES => return invalid("Describe or Close"),
            b'D' | b'C' => match whole.map(payload::named) {
                Some(Some(named)) if frame.tag == b'D' => Message::Describe(named),
                Some(Some(named)) => Message::Close(named),
                Some(None) => return invalid("Describe or Close"),
                None => return Ok(None),
            },
            b'E' if frame.payload > MOST_NAMES => return invalid("Execute"),
            b'E' => match whole.map(payload::execute) {
                Some(Some((portal, rows))) => Message::Execute { portal, rows },
                Some(None) => return invalid("Execute"),
                None => return Ok(None),
            },
            b'S' | b'H' | b'c' | b'X' if frame.payload > 0 => {
                return invalid(match frame.tag {
                    b'S' => "Sync",
                    b'H' => "Flush",
                    b'c' => "CopyDone",
                    _ => "Terminate",
                });
            }
            b'S' => Message::Sync,
            b'H' => Message::Flush,
            b'c' => Message::CopyDone,
            b'X' => Message::Terminate,
            b'F' => Message::FunctionCall,
            b'd' => Message::CopyData,
            b'f' => Message::CopyFail,
            tag => return Err(Invalid::Kind(tag)),
        };
        Ok(Some(message))
    }
}

/// Iterates over the complete messages at the start of `bytes`, each with its bytes, header included. Stops at a message that is incomplete or
/// invalid: meant for bytes that have been checked before.
pub fn messages(bytes: &[u8]) -> impl Iterator<Item = (Message<'_>, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let frame = Frame::read(rest).ok().flatten()?;
        let (whole, after) = rest.split_at_checked(frame.total())?;
        rest = after;
        Some((Message::read(frame, whole).ok().flatten()?, whole))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::message;

    fn framed(tag: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        message::message(&mut out, tag, |out| out.extend_from_slice(payload));
        out
    }

    fn read(bytes: &[u8]) -> Result<Option<Message<'_>>, Invalid> {
        Message::read(Frame::read(bytes).unwrap().unwrap(), bytes)
    }

    #[test]
    fn each_kind() {
        let cases: [(u8, &[u8], Message); 14] = [
            (b'Q', b"select 1\0", Message::Query { text: b"select 1" }),
            (b'P', b"s\0select 1\0\0\0", Message::Parse { name: b"s", text: b"select 1", types: b"\0\0" }),
            (b'B', b"p\0s\0rest", Message::Bind { portal: b"p", statement: b"s", rest: b"rest" }),
            (b'D', b"Ss\0", Message::Describe(Named::Statement(b"s"))),
            (b'D', b"P\0", Message::Describe(Named::Portal(b""))),
            (b'C', b"Pp\0", Message::Close(Named::Portal(b"p"))),
            (b'E', b"\0\0\0\0\x07", Message::Execute { portal: b"", rows: 7 }),
            (b'S', b"", Message::Sync),
            (b'H', b"", Message::Flush),
            (b'F', b"any", Message::FunctionCall),
            (b'd', b"any", Message::CopyData),
            (b'c', b"", Message::CopyDone),
            (b'f', b"why\0", Message::CopyFail),
            (b'X', b"", Message::Terminate),
        ];
        for (tag, payload, expected) in cases {
            assert_eq!(read(&framed(tag, payload)), Ok(Some(expected)), "{}", char::from(tag));
        }
    }

    #[test]
    fn what_is_not_of_its_format() {
        for (tag, payload, what) in [
            (b'Q', &b"select 1"[..], "Query"),
            (b'Q', b"select 1\0more\0", "Query"),
            (b'P', b"s\0select 1\0\0\x01", "Parse"),
            (b'B', b"p\0s", "Bind"),
            (b'D', b"Xs\0", "Describe or Close"),
            (b'C', b"", "Describe or Close"),
            (b'E', b"\0\0\0", "Execute"),
            (b'E', b"\0\0\0\0\0more", "Execute"),
            (b'S', b"x", "Sync"),
        ] {
            assert_eq!(read(&framed(tag, payload)), Err(Invalid::Payload(what)), "{}", char::from(tag));
        }
        assert_eq!(read(&framed(b'Z', b"")), Err(Invalid::Kind(b'Z')));
        assert_eq!(read(&framed(b'D', &vec![b'x'; MOST_NAMES + 1])), Err(Invalid::Payload("Describe or Close")));
    }

    #[test]
    fn what_has_not_arrived() {
        let bind = framed(b'B', b"p\0s\0rest");
        let beginning = Message::Bind { portal: b"p", statement: b"s", rest: b"re" };
        assert_eq!(read(&bind[..bind.len() - 2]), Ok(Some(beginning)));
        assert_eq!(read(&bind[..HEADER + 3]), Ok(None));
        for message in [framed(b'Q', b"select 1\0"), framed(b'E', b"p\0\0\0\0\0"), framed(b'D', b"Ss\0")] {
            assert_eq!(read(&message[..message.len() - 1]), Ok(None));
        }
        assert_eq!(read(&framed(b'd', b"data")[..HEADER]), Ok(Some(Message::CopyData)));
    }

    #[test]
    fn a_run_of_messages() {
        let bytes = [framed(b'H', b""), framed(b'Q', b"a\0"), framed(b'S', b"")].concat();
        let read: Vec<_> = messages(&bytes).map(|(message, whole)| (message, whole.len())).collect();
        assert_eq!(read, [(Message::Flush, 5), (Message::Query { text: b"a" }, 7), (Message::Sync, 5)]);
        assert_eq!(messages(&bytes[..11]).count(), 1);
        assert_eq!(messages(b"").count(), 0);
    }

    fn is_same_kind<'a>(one: &Message<'a>, other: &Message<'a>) -> bool {
        std::mem::discriminant(one) == std::mem::discriminant(other)
    }

    proptest! {
        /// Checks that a part of a message is never decoded as another kind than the whole.
        #[test]
        fn a_beginning_is_of_the_same_kind(tag in proptest::sample::select(b"QPBDCESHFdcfX".to_vec()), payload: Vec<u8>, at: usize) {
            let bytes = framed(tag, &payload);
            let part = &bytes[..HEADER + at % (payload.len() + 1)];
            let (whole, part) = (read(&bytes), read(part));
            if let Ok(Some(part)) = &part {
                let Ok(Some(whole)) = &whole else { panic!("{whole:?}") };
                prop_assert!(is_same_kind(whole, part));
            }
            prop_assert!(whole != Ok(None), "all of it is there");
        }
    }
}
