//! A model of a server: which request each of its messages answers, it knows; [`Protocol`] has to find out. For tests and the fuzzer.

#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;

use super::*;

/// A request's number; depended on if the number is even.
impl Note for u32 {
    fn is_depended_on(&self) -> bool {
        self.is_multiple_of(2)
    }
}

/// What a client sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sends {
    /// A message that is answered, and whether the server gives an error.
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
    /// What the caller answers by itself.
    Own,
}

/// A server's message with the number of the request that it answers, and what it has skipped before it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Says {
    Answer(u8, Option<u32>),
    Error { failed: Option<u32>, skipped: Vec<u32> },
    Ready(u32),
    CopyIn,
}

/// What PostgreSQL does with messages, and what it says.
#[derive(Default)]
struct Server {
    skipping: bool,
    /// In COPY: by a Query with this number, or by an Execute.
    copying: Option<Option<u32>>,
    says: VecDeque<Says>,
    /// The error that is being collected for: its place in `says`.
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
                // Data, and what is ignored.
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
    // A client that knows that the server reads COPY data sends nothing else; one that does not may send Syncs.
    if copies && !matches!(message, Sends::CopyData | Sends::CopyDone | Sends::Sync) {
        return;
    }
    // What the protocol knows to be skipped is not sent at all.
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
            // With nothing before it its turn has come at once.
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

/// The protocol is told the server's next message.
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
                    // The end of COPY, which the model does not number when it is an Execute's.
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
                // The protocol may know of fewer by now: what comes later it skips by itself.
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

/// However a client's messages and a server's answers interleave, each answer ends what the server says it ends. Each message is followed by so many
/// of the server's.
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
    // The client ends whatever it is in.
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

/// Whatever a server says, there is an answer, and nothing overflows. Each message is followed by one of the server's: its type, or which of those
/// that there are, and the first byte of its payload.
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

/// What a byte of a fuzzer's stands for: a message, and how many of the server's follow it.
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

/// Runs what a fuzzer has thought of.
#[cfg(fuzzing)]
pub(in crate::core) fn fuzz(data: &[u8]) {
    answers_find_their_requests(data.iter().map(|byte| step(*byte)));
    a_server_says_anything(data.chunks_exact(3).map(|chunk| (step(chunk[0]).0, chunk[1], Some(chunk[2]))));
}
