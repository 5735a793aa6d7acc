//! A connection to a server of MariaDB or MySQL: login and queries. Blocking; every wait is bounded by the socket's time-outs.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use ::binlog::protocol::login::{ClientLogin, Greeting, Login, LoginError, Privacy, SEED, tls_request};
use ::binlog::protocol::reply::{ReplyParser, Row, ServerError};
use ::binlog::protocol::{Messages, ProtocolError, command, message};

use crate::channel::Channel;
use crate::error::Cause;
use crate::socket::Socket;

/// Longest message of a login or an answer, in bytes.
const MAX_MESSAGE: usize = 1 << 20;
/// Longest time to connect.
const CONNECT: Duration = Duration::from_secs(3);
/// Longest time for a step of the login, or for an answer.
const STEP: Duration = Duration::from_secs(10);

/// Address and credentials of a server.
pub(crate) struct Access<'a> {
    /// `host:port`, or the path of a Unix socket.
    pub(crate) address: &'a str,
    pub(crate) user: &'a str,
    pub(crate) password: &'a str,
    /// None: without TLS.
    pub(crate) connector: Option<Arc<tls::Connector>>,
    /// Time without acknowledgements after which a host is considered dead.
    pub(crate) host_timeout: Duration,
}

/// A connection to a server failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error("cannot connect to {address}: {source}")]
    Connect { address: String, source: std::io::Error },
    #[error("the connection broke: {0}")]
    Io(#[from] std::io::Error),
    #[error("the server closed the connection")]
    Closed,
    #[error("nothing came for {0:?}")]
    Silent(Duration),
    #[error("{0}")]
    Login(#[from] LoginError),
    #[error("the server refuses {doing:?}: {error}")]
    Refused { doing: String, error: ServerError },
    #[error("the server does not keep to the protocol: {0}")]
    Protocol(#[from] ProtocolError),
    #[error("the server has no TLS, and is to have it")]
    NoTls,
    #[error("TLS: {0}")]
    Tls(String),
}

impl ClientError {
    /// True if a retry does not help.
    pub(crate) fn is_lasting(&self) -> bool {
        matches!(self, ClientError::Login(_) | ClientError::NoTls | ClientError::Tls(_))
    }
}

/// A connection that is logged in.
pub(crate) struct Client {
    channel: Channel,
    messages: Messages,
    buffer: Vec<u8>,
    unread: std::ops::Range<usize>,
    /// Longest time for an answer.
    patience: Duration,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

/// Reads exactly one packet: TLS may begin behind the greeting.
fn first_packet(raw: &mut Socket) -> Result<Vec<u8>, ClientError> {
    let mut header = [0; 4];
    let read = raw.read_exact(&mut header).and_then(|()| {
        let length = usize::from(header[0]) | usize::from(header[1]) << 8 | usize::from(header[2]) << 16;
        let mut packet = vec![0; length.min(MAX_MESSAGE)];
        raw.read_exact(&mut packet).map(|()| packet)
    });
    read.map_err(timed_out(STEP))
}

fn timed_out(limit: Duration) -> impl Fn(std::io::Error) -> ClientError {
    move |error| match error.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => ClientError::Silent(limit),
        std::io::ErrorKind::UnexpectedEof => ClientError::Closed,
        _ => ClientError::Io(error),
    }
}

impl Client {
    /// Connects and logs in. Before each wait `known` gets a handle that can end the connection: one for each address of the name, until one answers.
    pub(crate) fn open<E: From<ClientError>>(
        access: &Access<'_>,
        known: impl Fn(Channel) -> Result<(), E>,
    ) -> Result<Client, E> {
        let connect = |source| ClientError::Connect { address: access.address.into(), source };
        let to_be_ended = |socket| known(Channel::plain(socket));
        let mut raw = Socket::connect(access.address, CONNECT, to_be_ended, |source| E::from(connect(source)))?;
        raw.notice_a_dead_host(access.host_timeout).map_err(connect)?;
        raw.set_timeouts(STEP, STEP).map_err(connect)?;
        let client = || -> Result<Client, ClientError> {
            let greeting = Greeting::parse(&first_packet(&mut raw)?)?;
            let mut sequence = 1;
            let mut privacy = if access.address.starts_with('/') { Privacy::Local } else { Privacy::None };
            let channel = match &access.connector {
                Some(connector) if privacy == Privacy::None && greeting.tls => {
                    let host = access
                        .address
                        .rsplit_once(':')
                        .map_or(access.address, |(host, _)| host)
                        .trim_matches(['[', ']']);
                    let target = tls::Target::new(Arc::clone(connector), host)
                        .ok_or_else(|| ClientError::Tls(format!("{host:?} is no name that a certificate has")))?;
                    let mut out = Vec::new();
                    sequence = message(&mut out, sequence, &tls_request());
                    raw.write_all(&out)?;
                    privacy = Privacy::Tls;
                    let secured = Channel::secure(raw, &target).map_err(|cause| match cause {
                        Cause::Io(error) => ClientError::Io(error),
                        Cause::Tls(error) => ClientError::Tls(error.to_string()),
                        _ => ClientError::Closed,
                    });
                    secured?.0
                }
                Some(connector) if privacy == Privacy::None && !connector.is_optional() => {
                    return Err(ClientError::NoTls);
                }
                _ => Channel::plain(raw),
            };
            let mut seed = [0; SEED];
            getrandom::fill(&mut seed).map_err(std::io::Error::other)?;
            let mut login = ClientLogin::new(&greeting, access.user, access.password, privacy, seed);
            let mut client = Client {
                channel,
                messages: Messages::new(MAX_MESSAGE),
                buffer: vec![0; 64 << 10],
                unread: 0..0,
                patience: STEP,
            };
            let response = login.response()?;
            client.send(sequence, &response)?;
            loop {
                let (sequence, message) = client.message()?;
                match login.received(&message)? {
                    Login::In => return Ok(client),
                    Login::Wait => {}
                    Login::Send(proof) => client.send(sequence.wrapping_add(1), &proof)?,
                }
            }
        };
        Ok(client()?)
    }

    /// Sets the time limit for each further answer.
    pub(crate) fn set_patience(&mut self, limit: Duration) -> Result<(), ClientError> {
        self.patience = limit;
        Ok(self.channel.set_timeouts(limit, STEP)?)
    }

    fn send(&mut self, sequence: u8, payload: &[u8]) -> Result<(), ClientError> {
        let mut out = Vec::new();
        message(&mut out, sequence, payload);
        Ok(self.channel.write_all(&out)?)
    }

    fn message(&mut self) -> Result<(u8, Vec<u8>), ClientError> {
        loop {
            let mut input = &self.buffer[self.unread.clone()];
            let message = self.messages.next(&mut input).map_err(|error| ProtocolError(error.to_string()))?;
            self.unread.start = self.unread.end - input.len();
            if let Some(message) = message {
                return Ok(message);
            }
            let count = self.channel.read(&mut self.buffer).map_err(timed_out(self.patience))?;
            if count == 0 {
                return Err(ClientError::Closed);
            }
            self.unread = 0..count;
        }
    }

    /// Sends a query, and waits for all rows.
    pub(crate) fn query(&mut self, statement: &str) -> Result<Vec<Row>, ClientError> {
        self.ask(&command::query(statement), statement)
    }

    /// Sends a command, and waits for its answer. `doing` is its name in errors, and must not hold a secret.
    pub(crate) fn ask(&mut self, payload: &[u8], doing: &str) -> Result<Vec<Row>, ClientError> {
        self.send(0, payload)?;
        let mut parser = ReplyParser::default();
        loop {
            let (_, message) = self.message()?;
            if let Some(done) = parser.received(&message)? {
                return done.map_err(|error| ClientError::Refused { doing: doing.into(), error });
            }
        }
    }

    /// Sends a command whose answer has no end. Returns the connection, and the part of the answer already read.
    pub(crate) fn begin(mut self, payload: &[u8]) -> Result<(Channel, Vec<u8>), ClientError> {
        self.send(0, payload)?;
        let read = self.buffer[self.unread.clone()].to_vec();
        Ok((self.channel, read))
    }
}
