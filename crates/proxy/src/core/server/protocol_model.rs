//! Model of a server for tests and the fuzzer. The model knows which request each of its messages answers; [`Protocol`] has to determine it.

#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;

use super::*;

/// The note is the request's number; even numbers are depended on.
impl Note for u32 {
    fn is_depended_on(&self) -> bool {
        self.is_multiple_of(2)
    }
}

/// A message from a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sends {
    /// The flag is true if the server answers with an error.
    Parse(bool),
    Bind(bool),
    Describe(bool),
    Close,
    Execute(bool),
    /// An Execute of COPY FROM STDIN.
    Copy,
    Sync,
    Query(bool),
    /// A Query that is COPY FROM STDIN.
    QueryCopy,
    CopyData,
    CopyDone,
    /// An answer of the proxy itself.
    Own,
}

/// A server's message, with the number of the request that it answers, or of the requests that failed and were skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Says {
    Answer(u8, Option<u32>),
    Error { failed: Option<u32>, skipped: Vec<u32> },
    Ready(u32),
    CopyIn,
}

/// PostgreSQL's behavior: its handling of messages, and its answers.
#[derive(Default)]
struct Server {
    skipping: bool,
    /// Set while the server reads COPY data: the number of the Query, or `None` inside for an Execute.
    copying: Option<Option<u32>>,
    says: VecDeque<Says>,
    /// Index in `says` of the error to which skipped requests are added.
    error: Option<usize>,
    popped: usize,
}

impl Server {
    fn gets(&mut self, message: Sends, number: u32) {
        if let Some(query) = self.copying {
            match message {
                Sends::CopyDone => {
                    self.copying = None;
                    self.says.push_back(Says::Answer(b'C', None));
                    if let Some(query) = query {
                        self.says.push_back(Says::Ready(query));
                    }
                }
                // Data, and a Sync that is ignored.
                Sends::CopyData | Sends::Sync => {}
                _ => unreachable!("nothing else is sent during COPY: {message:?}"),
            }
            return;
        }
        if self.skipping && message != Sends::Sync {
            if !matches!(message, Sends::CopyData | Sends::CopyDone) {
                let at = self.error.unwrap();
                if let Some(Says::Error { skipped, .. }) =
                    at.checked_sub(self.popped).and_then(|at| self.says.get_mut(at))
                {
                    skipped.push(number);
                }
            }
            return;
        }
        let (tag, fails) = match message {
            Sends::Parse(fails) => (b'1', fails),
            Sends::Bind(fails) => (b'2', fails),
            Sends::Describe(fails) => (b'n', fails),
            Sends::Close => (b'3', false),
            Sends::Execute(fails) => (b'C', fails),
            Sends::Copy => {
                self.says.push_back(Says::CopyIn);
                self.copying = Some(None);
                return;
            }
            Sends::QueryCopy => {
                self.says.push_back(Says::CopyIn);
                self.copying = Some(Some(number));
                return;
            }
            Sends::Query(fails) => {
                let says =
                    if fails { Says::Error { failed: None, skipped: Vec::new() } } else { Says::Answer(b'C', None) };
                self.says.extend([says, Says::Ready(number)]);
                return;
            }
            Sends::Sync => {
                self.skipping = false;
                self.says.push_back(Says::Ready(number));
                return;
            }
            Sends::CopyData | Sends::CopyDone | Sends::Own => return,
        };
        if fails {
            self.skipping = true;
            self.error = Some(self.popped + self.says.len());
            self.says.push_back(Says::Error { failed: Some(number), skipped: Vec::new() });
        } else {
            self.says.push_back(Says::Answer(tag, Some(number)));
        }
    }
}

/// Sends a message as the proxy does, unless it must not be sent in this state.
fn send(protocol: &mut Protocol<u32>, server: &mut Server, message: Sends, number: u32) {
    let copies = server.copying.is_some();
    // A client that knows of the COPY sends no other messages. One that does not know yet may send Syncs.
    if copies && !matches!(message, Sends::CopyData | Sends::CopyDone | Sends::Sync) {
        return;
    }
    // Messages that the protocol knows to be skipped are not sent.
    if protocol.is_skipping() && message != Sends::Sync {
        return;
    }
    let request = match message {
        Sends::Parse(_) => Request::Parse,
        Sends::Bind(_) => Request::Bind,
        Sends::Describe(_) => Request::Describe,
        Sends::Close => Request::Close,
        Sends::Execute(_) | Sends::Copy => Request::Execute,
        Sends::Query(_) | Sends::QueryCopy => Request::Query,
        Sends::Sync if protocol.copies_in() => {
            server.gets(message, number);
            return;
        }
        Sends::Sync => Request::Sync,
        Sends::CopyDone => {
            protocol.ends_copy(number);
            server.gets(message, number);
            return;
        }
        Sends::CopyData => {
            server.gets(message, number);
            return;
        }
        Sends::Own => {
            // If no answer precedes it, its turn is at once.
            if !protocol.is_settled() {
                protocol.sent(Request::Nothing, number);
                if server.skipping {
                    server.gets(message, number);
                }
            }
            return;
        }
    };
    protocol.sent(request, number);
    server.gets(message, number);
}

/// Passes the server's next message to the protocol, and checks the reply.
fn receive(protocol: &mut Protocol<u32>, server: &mut Server, own: &mut Vec<u32>) {
    let Some(says) = server.says.pop_front() else { return };
    server.popped += 1;
    match says {
        Says::Answer(tag, number) => {
            let reply = protocol.received(tag, None);
            let expected = match (tag, number) {
                (b'1', Some(number)) => Reply::Parsed(number),
                (b'2', Some(number)) => Reply::Bound(number),
                (b'3', Some(number)) => Reply::Closed(number),
                (b'n', Some(number)) => Reply::Described(number),
                (b'C', Some(number)) => Reply::Completed(Some(number)),
                _ => match reply {
                    // The end of a COPY; the model has no number for an Execute.
                    Reply::Completed(_) => return due(protocol, own),
                    reply => panic!("{reply:?}"),
                },
            };
            assert_eq!(reply, expected);
        }
        Says::CopyIn => assert!(matches!(protocol.received(b'G', None), Reply::CopyIn { .. })),
        Says::Ready(number) => assert_eq!(protocol.received(b'Z', Some(b'I')), Reply::Ready(number)),
        Says::Error { failed, skipped } => match protocol.received(b'E', None) {
            Reply::Failed { failed: is, skipped: also } => {
                assert_eq!(is, failed);
                // The protocol may list fewer requests: later ones were not sent, because it knew them to be skipped.
                let also: Vec<u32> = also.into_iter().filter(|number| skipped.contains(number)).collect();
                assert_eq!(also, skipped[..also.len()]);
            }
            reply => panic!("{reply:?}"),
        },
    }
    due(protocol, own);
}

fn due(protocol: &mut Protocol<u32>, own: &mut Vec<u32>) {
    while let Some(number) = protocol.due() {
        own.push(number);
    }
}

/// Checks that each answer ends the model's request, however messages and answers interleave. The number is that of the server's messages after each
/// message of the client.
pub(super) fn answers_find_their_requests(script: impl IntoIterator<Item = (Sends, usize)>) {
    let mut protocol = Protocol::new();
    let mut server = Server::default();
    let mut own = Vec::new();
    for (number, (message, answers)) in (1..).zip(script) {
        send(&mut protocol, &mut server, message, number);
        for _ in 0..answers {
            receive(&mut protocol, &mut server, &mut own);
        }
        assert!(protocol.depended_before <= protocol.depended);
    }
    // The client ends its unit or COPY.
    for number in [1_000_001, 1_000_003, 1_000_005] {
        let message = if server.copying.is_some() { Sends::CopyDone } else { Sends::Sync };
        send(&mut protocol, &mut server, message, number);
    }
    while !server.says.is_empty() {
        receive(&mut protocol, &mut server, &mut own);
    }
    assert!(protocol.is_quiet(), "{protocol:?}");
    assert!(!protocol.owes_end() && protocol.depended == 0 && !protocol.is_skipping());
    assert!(own.is_sorted());
}

/// Checks that the protocol has a reply for any message of a server, and that no counter overflows. Each message of the client is followed by one of
/// the server: its type (or an index into the known types) and the first byte of its payload.
pub(super) fn a_server_says_anything(script: impl IntoIterator<Item = (Sends, u8, Option<u8>)>) {
    let mut protocol = Protocol::new();
    for (number, (message, tag, first)) in (1..).zip(script) {
        let mut deaf = Server::default();
        send(&mut protocol, &mut deaf, message, number);
        protocol.received(*b"123tTnDdcHVCIsGEZSNA".get(usize::from(tag) % 24).unwrap_or(&tag), first.or(Some(b'I')));
        protocol.due();
        assert!(protocol.depended_before <= protocol.depended && protocol.units_ended <= protocol.units_sent);
    }
}

/// Decodes a fuzzer's byte: a message of the client, and the number of the server's messages after it.
#[cfg(fuzzing)]
fn step(byte: u8) -> (Sends, usize) {
    let fails = byte & 0x10 != 0;
    let message = match byte & 0x0f {
        0 | 1 => Sends::Parse(fails),
        2 | 3 => Sends::Bind(fails),
        4 => Sends::Describe(fails),
        5 => Sends::Close,
        6 | 7 => Sends::Execute(fails),
        8 => Sends::Copy,
        9 | 10 => Sends::Sync,
        11 => Sends::Query(fails),
        12 => Sends::QueryCopy,
        13 => Sends::CopyData,
        14 => Sends::CopyDone,
        _ => Sends::Own,
    };
    (message, usize::from(byte >> 6))
}

/// Runs scripts made from the fuzzer's bytes.
#[cfg(fuzzing)]
pub(in crate::core) fn fuzz(data: &[u8]) {
    answers_find_their_requests(data.iter().map(|byte| step(*byte)));
    a_server_says_anything(data.chunks_exact(3).map(|chunk| (step(chunk[0]).0, chunk[1], Some(chunk[2]))));
}
