//! A replication connection to a server or a relay: login, commands, streaming. Blocking; every wait is limited by the socket's time-outs.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use wire::payload::{self, Authentication};
use wire::replication::{ANSWERS_QUESTIONS, Event, MAX_CONTROL, Rows, TimelineEnd, WalStream};
use wire::scram::{Client as Scram, Credential, MECHANISM, MECHANISM_PLUS};
use wire::{Frame, HEADER, message};

use crate::channel::Channel;
use crate::error::{Cause, Peer, SessionError};
use crate::socket::Socket;

/// Size limit of one read, in bytes.
const READ: usize = 1 << 20;
/// Size limit of an answer to a command, in bytes: a timeline's history may have very many lines.
const MAX_ANSWER: usize = 4 << 20;
/// Time limit for a connection to one address: a lost host answers nothing.
const CONNECT: Duration = Duration::from_secs(3);
/// Default time limit of any one step of a login or a command.
pub(crate) const STEP: Duration = Duration::from_secs(10);

/// Address and login of a peer.
#[derive(Clone)]
pub(crate) struct Login<'a> {
    /// Name in errors.
    pub(crate) peer: Peer,
    /// `host:port`, or the path of a Unix socket.
    pub(crate) address: &'a str,
    pub(crate) user: &'a str,
    pub(crate) password: Option<&'a str>,
    pub(crate) application_name: &'a str,
    /// None for a connection without TLS.
    pub(crate) connector: Option<Arc<tls::Connector>>,
    /// Time without a TCP acknowledgement after which a host counts as lost.
    pub(crate) host_timeout: Duration,
    /// Time limit of any one step of the login or a command.
    pub(crate) step: Duration,
}

/// A logged-in connection.
pub(crate) struct Session {
    peer: Peer,
    socket: Channel,
    /// Hash of the server's certificate, for channel binding.
    end_point: Option<Vec<u8>>,
    buffer: Vec<u8>,
    /// Range of the buffer that was read and not processed yet.
    unread: std::ops::Range<usize>,
    stream: WalStream,
    server_version: String,
    /// True if the peer reports at login what only relays do.
    is_relay: bool,
}

/// Result of `START_REPLICATION`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Started {
    /// WAL follows.
    Streaming,
    /// The timeline ended where streaming was to start.
    Ended(TimelineEnd),
}

/// Information other than WAL from one read of a stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// True if the server requests an immediate reply.
    pub(crate) reply: bool,
    /// The furthest end of the server's log that it reported.
    pub(crate) end: u64,
    /// True if the timeline has ended: no more WAL comes.
    pub(crate) done: bool,
}

impl Session {
    /// Connects and logs in. `known` gets a handle before anything is waited for, to end the connection by; a handle for each address of the name, if
    /// the first one does not answer.
    pub(crate) fn open<E: From<SessionError>>(
        login: &Login<'_>,
        known: impl Fn(Channel) -> Result<(), E>,
    ) -> Result<Session, E> {
        let failed = |cause| SessionError { peer: login.peer.clone(), cause };
        let address = login.address;
        let connect = |source| failed(Cause::Connect { address: address.into(), source });
        let to_be_ended = |socket| known(Channel::plain(socket));
        let socket = Socket::connect(address, CONNECT, to_be_ended, |source| E::from(connect(source)))?;
        socket.notice_a_dead_host(login.host_timeout).map_err(connect)?;
        socket.set_timeouts(login.step, login.step).map_err(connect)?;
        let target = match &login.connector {
            // As with servers: TLS is not used on a Unix socket.
            Some(connector) if !address.starts_with('/') => {
                let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
                let named = tls::Target::new(Arc::clone(connector), host);
                let unnamed = || failed(Cause::Protocol(format!("{host:?} is no name that a certificate has")));
                Some(named.ok_or_else(unnamed)?)
            }
            _ => None,
        };
        let (socket, end_point) = Channel::begin(socket, target.as_ref()).map_err(failed)?;
        let mut session = Session {
            peer: login.peer.clone(),
            socket,
            end_point,
            buffer: vec![0; 64 << 10],
            unread: 0..0,
            stream: WalStream::default(),
            server_version: String::new(),
            is_relay: false,
        };
        session.log_in(login).map_err(failed)?;
        Ok(session)
    }

    /// Makes an error of this connection.
    pub(crate) fn failed(&self, cause: Cause) -> SessionError {
        SessionError { peer: self.peer.clone(), cause }
    }

    /// Returns the version as the server reported it: `15.8 (Debian …)`.
    pub(crate) fn server_version(&self) -> &str {
        &self.server_version
    }

    /// True if the peer is a relay.
    pub(crate) fn is_relay(&self) -> bool {
        self.is_relay
    }

    /// Returns a second handle of the connection, to write to it or to end it.
    pub(crate) fn socket(&self) -> Result<Channel, SessionError> {
        self.socket.another().map_err(|error| self.failed(error.into()))
    }

    fn log_in(&mut self, login: &Login<'_>) -> Result<(), Cause> {
        self.send(|out| {
            message::startup(
                out,
                &[
                    ("user", login.user),
                    ("database", "replication"),
                    ("replication", "true"),
                    ("application_name", login.application_name),
                ],
            );
        })?;
        let mut scram: Option<Scram> = None;
        loop {
            let (tag, data) = self.message("the login")?;
            match tag {
                b'R' => match payload::authentication(&data).ok_or_else(|| protocol("authentication"))? {
                    Authentication::Ok => {}
                    Authentication::Cleartext => {
                        let password = password(login)?;
                        self.send(|out| message::password(out, password))?;
                    }
                    Authentication::Sasl(list) if payload::has_mechanism(list, MECHANISM.as_bytes()) => {
                        let mut client = Scram::new(Credential::password(password(login)?))?;
                        if let Some(end_point) = self.end_point.take() {
                            client = client.bound(end_point, payload::has_mechanism(list, MECHANISM_PLUS.as_bytes()));
                        }
                        let (mechanism, first) = (client.mechanism(), client.first());
                        self.send(|out| message::sasl_initial(out, mechanism, &first))?;
                        scram = Some(client);
                    }
                    Authentication::SaslContinue(challenge) => {
                        let client = scram.as_mut().ok_or_else(|| protocol("SASL out of order"))?;
                        let answer = client.final_(challenge)?;
                        self.send(|out| message::sasl_response(out, &answer))?;
                    }
                    Authentication::SaslFinal(proof) => {
                        scram.as_mut().ok_or_else(|| protocol("SASL out of order"))?.verify(proof)?;
                    }
                    Authentication::Sasl(_) | Authentication::Md5(_) | Authentication::Other(_) => {
                        return Err(Cause::Method);
                    }
                },
                b'S' => match payload::parameter_status(&data) {
                    Some((b"server_version", value)) => {
                        self.server_version = String::from_utf8_lossy(value).into_owned();
                    }
                    Some((name, _)) if name == ANSWERS_QUESTIONS.0.as_bytes() => self.is_relay = true,
                    _ => {}
                },
                b'Z' => return Ok(()),
                _ => {}
            }
        }
    }

    /// Runs a command; returns its rows.
    pub(crate) fn ask(&mut self, command: &str) -> Result<Vec<Rows>, SessionError> {
        let sent = self.send(|out| message::query(out, command));
        sent.and_then(|()| self.rows(command)).map_err(|cause| self.failed(cause))
    }

    /// Reads the rows up to `ReadyForQuery`.
    fn rows(&mut self, command: &str) -> Result<Vec<Rows>, Cause> {
        let (mut rows, mut refused) = (Vec::new(), None);
        loop {
            match self.reply()? {
                (b'D', data) => rows.push(Rows::read(&data).ok_or_else(|| protocol("a row"))?),
                (b'E', data) => refused = Some(refusal(command, &data)),
                (b'Z', _) => return refused.map_or(Ok(rows), Err),
                _ => {}
            }
            if rows.len() > 16 {
                return Err(protocol("more rows than the command gives"));
            }
        }
    }

    /// Runs `START_REPLICATION`.
    pub(crate) fn start(&mut self, command: &str) -> Result<Started, SessionError> {
        self.start_streaming(command).map_err(|cause| self.failed(cause))
    }

    fn start_streaming(&mut self, command: &str) -> Result<Started, Cause> {
        self.send(|out| message::query(out, command))?;
        let mut end = None;
        loop {
            match self.reply()? {
                (b'W', _) => {
                    self.stream = WalStream::default();
                    self.buffer.resize(READ, 0);
                    return Ok(Started::Streaming);
                }
                (b'D', data) => {
                    end = Some(Rows::read(&data).and_then(|row| row.timeline_end()).ok_or_else(|| protocol("a row"))?);
                }
                (b'E', data) => {
                    let error = refusal(command, &data);
                    self.until_ready()?;
                    return Err(error);
                }
                (b'Z', _) => {
                    return end.map(Started::Ended).ok_or_else(|| protocol("no stream and no end of a timeline"));
                }
                _ => {}
            }
        }
    }

    /// Reads once from the stream, as much as there is, and returns its WAL as one piece: the start position, and the bytes. The read may contain no
    /// whole message: it still proves that the upstream is alive.
    pub(crate) fn receive(&mut self, wal: &mut Vec<u8>) -> Result<(Heard, Option<u64>), SessionError> {
        self.receive_once(wal).map_err(|cause| self.failed(cause))
    }

    fn receive_once(&mut self, wal: &mut Vec<u8>) -> Result<(Heard, Option<u64>), Cause> {
        wal.clear();
        let (mut heard, mut start) = (Heard::default(), None);
        let mut progress = false;
        // Messages that arrived with the answer to the command are processed before any wait.
        for read in [false, true] {
            if progress {
                break;
            }
            if read {
                self.fill()?;
            }
            while let Some((event, used)) = self
                .stream
                .next(&self.buffer[self.unread.clone()])
                .map_err(|error| Cause::Protocol(error.to_string()))?
            {
                progress = true;
                self.unread.start += used;
                match event {
                    Event::Wal { at, data } => {
                        let from = *start.get_or_insert(at);
                        if from + wal.len() as u64 != at {
                            return Err(protocol("WAL that does not follow what was sent before it"));
                        }
                        wal.extend_from_slice(data);
                    }
                    Event::Keepalive { end, reply } => {
                        heard.end = heard.end.max(end);
                        heard.reply |= reply;
                    }
                    Event::Done => {
                        heard.done = true;
                        return Ok((heard, start));
                    }
                    Event::Message { tag: b'E', payload } => return Err(refusal("streaming", payload)),
                    // CommandComplete in the middle of a copy: the server stops.
                    Event::Message { tag: b'C', .. } => return Err(Cause::ShuttingDown),
                    Event::Message { .. } => {}
                }
            }
        }
        Ok((heard, start))
    }

    /// True if [`Session::receive`] would not have to wait.
    pub(crate) fn is_readable(&self) -> bool {
        self.socket.is_readable()
    }

    /// Ends the copy from this side after the server has ended it, and reads the next timeline.
    pub(crate) fn finish_timeline(&mut self) -> Result<TimelineEnd, SessionError> {
        let sent = self.send(|out| message::empty(out, b'c'));
        let rows = sent.and_then(|()| self.rows("the end of a timeline"));
        let end = rows.and_then(|rows| {
            let end = rows.first().and_then(Rows::timeline_end);
            end.ok_or_else(|| protocol("the stream ended without naming the next timeline"))
        });
        end.map_err(|cause| self.failed(cause))
    }

    /// Ends a copy and the connection in good order, without waiting.
    pub(crate) fn leave(mut self) {
        let _ = self.send(|out| {
            message::empty(out, b'c');
            message::empty(out, b'X');
        });
    }

    /// Sets the time limits of later reads and writes.
    pub(crate) fn set_patience(&self, read: Duration, write: Duration) -> Result<(), SessionError> {
        self.socket.set_timeouts(read, write).map_err(|error| self.failed(error.into()))
    }

    fn until_ready(&mut self) -> Result<(), Cause> {
        while self.reply()?.0 != b'Z' {}
        Ok(())
    }

    /// Sends messages.
    pub(crate) fn send(&mut self, fill: impl FnOnce(&mut Vec<u8>)) -> Result<(), Cause> {
        let mut out = Vec::new();
        fill(&mut out);
        Ok(self.socket.write_all(&out)?)
    }

    /// Returns the next message; an error of the server ends the wait.
    pub(crate) fn message(&mut self, doing: &str) -> Result<(u8, Vec<u8>), Cause> {
        match self.reply()? {
            (b'E', data) => Err(refusal(doing, &data)),
            other => Ok(other),
        }
    }

    /// Returns the next message of any kind.
    fn reply(&mut self) -> Result<(u8, Vec<u8>), Cause> {
        loop {
            let bytes = &self.buffer[self.unread.clone()];
            if let Some(frame) = Frame::read(bytes).map_err(|error| Cause::Protocol(error.to_string()))? {
                if frame.payload > MAX_ANSWER {
                    return Err(protocol("an answer of more than 4 MiB"));
                }
                if let Some(data) = bytes.get(HEADER..frame.total()) {
                    let data = data.to_vec();
                    self.unread.start += frame.total();
                    return Ok((frame.tag, data));
                }
                if self.buffer.len() < frame.total() {
                    self.buffer.resize(frame.total(), 0);
                }
            }
            self.fill()?;
        }
    }

    /// Reads once, after the unprocessed bytes.
    fn fill(&mut self) -> Result<(), Cause> {
        if self.unread.start > 0 {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        if self.unread.end == self.buffer.len() {
            // Only an incomplete control message can fill the buffer.
            self.buffer.resize(self.buffer.len() + MAX_CONTROL, 0);
        }
        loop {
            match self.socket.read(&mut self.buffer[self.unread.end..]) {
                Ok(0) => return Err(Cause::Closed),
                Ok(n) => {
                    self.unread.end += n;
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Cause::Io(error)),
            }
        }
    }
}

fn protocol(what: &str) -> Cause {
    Cause::Protocol(format!("unexpected {what}"))
}

fn password<'a>(login: &Login<'a>) -> Result<&'a str, Cause> {
    login.password.ok_or_else(|| Cause::NoPassword { user: login.user.into() })
}

/// Turns an `ErrorResponse` into an error.
fn refusal(doing: &str, data: &[u8]) -> Cause {
    let field = |kind| payload::error_field(data, kind).map(String::from_utf8_lossy).unwrap_or_default().into_owned();
    let (mut text, detail) = (field(b'M'), field(b'D'));
    if !detail.is_empty() {
        text = format!("{text} ({detail})");
    }
    Cause::Refused { doing: doing.into(), code: field(b'C'), text }
}
