//! Record layer of a connection.

use std::io;
use std::sync::{Arc, OnceLock};

use rustls::client::UnbufferedClientConnection;
use rustls::server::{ClientHello, ResolvesServerCert, ServerConfig, UnbufferedServerConnection};
use rustls::sign::CertifiedKey;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus, WriteTraffic};
use rustls::{CertificateError, CommonState};

use crate::peers::{Acceptor, Target};
use crate::{ALPN, x509};

/// Maximum number of bytes buffered of an incomplete record or handshake message: a record has little more than 16 KiB, a handshake message of an
/// honest peer (a chain of certificates) less.
pub const LONGEST_PART: usize = 32 << 10;

/// Maximum overhead of a record in bytes, and maximum length of its contents.
const RECORD_OVERHEAD: usize = 64;
const RECORD: usize = 16 << 10;

/// Maximum number of messages that rustls has ready at once, with a large margin.
const MOST_MESSAGES: usize = 64;

/// Reason why a connection fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The peer's certificate is invalid or missing.
    #[error("{0}")]
    Certificate(String),
    /// The peer's bytes are not TLS, or violate the protocol.
    #[error("TLS: {0}")]
    Protocol(String),
    /// The peer has ended the connection with an alert.
    #[error("the peer ended TLS: {0}")]
    Alert(String),
    /// A message is longer than [`LONGEST_PART`].
    #[error("TLS: a handshake message is longer than {LONGEST_PART} bytes")]
    TooLong,
    /// The client started with TLS directly, without offering PostgreSQL's protocol by ALPN.
    #[error("TLS without SSLRequest needs ALPN: the client did not offer \"postgresql\"")]
    NoAlpn,
}

/// An event decoded from received bytes.
#[derive(Debug)]
pub enum Event<'a> {
    /// The end of the handshake, with the peer's identity. Sent once, before any data.
    Secured(Identity),
    /// Plaintext, at least one byte.
    Data(&'a [u8]),
    /// The peer's close_notify: no more data follows.
    Closed,
}

/// Identity of a peer after the handshake.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// True if the peer has sent a certificate, which was verified as configured.
    pub certificate: bool,
    /// The common name in the certificate.
    pub common_name: Option<String>,
    /// Hash of the server's certificate for channel binding: of the proxy's own towards clients, of the server's towards servers.
    pub end_point: Option<Vec<u8>>,
    /// The host name requested by a client (SNI), in lower case.
    pub server_name: Option<String>,
}

/// Records the host name of a ClientHello, which rustls does not expose to users of unbuffered connections.
#[derive(Debug)]
struct Asked {
    certificate: Arc<dyn ResolvesServerCert>,
    name: OnceLock<String>,
}

impl ResolvesServerCert for Asked {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if let Some(name) = hello.server_name() {
            // The name in a second ClientHello (after HelloRetryRequest) is the same, or rustls rejects it.
            let _ = self.name.set(name.to_ascii_lowercase());
        }
        self.certificate.resolve(hello)
    }
}

/// TLS of a connection, without a socket.
///
/// A reader first calls [`Link::unfinished`], reads behind the bytes that were put into its buffer, and passes all of it to [`Link::received`]. A
/// writer writes [`Link::pending`] until nothing is left.
pub struct Link {
    side: Side,
    state: State,
    direct: bool,
    end_point: Option<Vec<u8>>,
    /// Set until the end of the handshake.
    asked: Option<Arc<Asked>>,
    /// Incomplete record or handshake message.
    part: Vec<u8>,
    /// Bytes for the peer; the first `written` of them were written.
    out: Vec<u8>,
    written: usize,
    /// Bytes of plaintext that `out` carries.
    carried: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Handshake,
    Open,
    /// The peer has closed its half.
    Ended,
    Failed,
}

enum Side {
    Server(Box<UnbufferedServerConnection>),
    Client(Box<UnbufferedClientConnection>),
}

/// Result of processing records.
enum Step {
    Again,
    /// More bytes are needed; true if plaintext can be written.
    Wait(bool),
    Ended,
}

// === impl LinkError ===

impl From<rustls::Error> for LinkError {
    fn from(error: rustls::Error) -> LinkError {
        use rustls::Error as E;
        let certificate = |text: &str| LinkError::Certificate(text.to_owned());
        match &error {
            E::InvalidCertificate(CertificateError::UnknownIssuer) => {
                certificate("the peer's certificate is not of a CA in ca_file")
            }
            E::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
                certificate("the peer's certificate has expired")
            }
            E::InvalidCertificate(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => {
                certificate("the peer's certificate is not valid yet: is the clock right?")
            }
            E::InvalidCertificate(other) => {
                LinkError::Certificate(format!("the peer's certificate is refused: {other}"))
            }
            E::NoCertificatesPresented => certificate("the peer showed no certificate"),
            E::AlertReceived(alert) => LinkError::Alert(format!("{alert:?}")),
            _ => LinkError::Protocol(error.to_string()),
        }
    }
}

/// Replaces the text of a rustls error by that of the [`LinkError`], for callers that use rustls without a [`Link`].
#[must_use]
pub fn explain(error: io::Error) -> io::Error {
    let known = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match known {
        Some(known) => io::Error::new(error.kind(), LinkError::from(known.clone()).to_string()),
        None => error,
    }
}

// === impl Link ===

impl Link {
    /// Creates the link of a client's connection. `direct` means that the client started with TLS instead of SSLRequest.
    ///
    /// # Errors
    /// rustls rejects its configuration, which [`Acceptor::new`] would have detected.
    pub fn accept(acceptor: &Acceptor, direct: bool) -> Result<Link, LinkError> {
        let mut config = ServerConfig::clone(&acceptor.config);
        let asked = Arc::new(Asked { certificate: config.cert_resolver.clone(), name: OnceLock::new() });
        config.cert_resolver = asked.clone();
        let connection = UnbufferedServerConnection::new(Arc::new(config))?;
        let mut link = Link::new(Side::Server(Box::new(connection)), direct, acceptor.end_point.clone());
        link.asked = Some(asked);
        Ok(link)
    }

    /// Creates the link of a connection to a server that has agreed to TLS: the first message is [`pending`](Link::pending).
    ///
    /// # Errors
    /// The same as for [`accept`](Link::accept).
    pub fn connect(target: &Target) -> Result<Link, LinkError> {
        let connection = UnbufferedClientConnection::new(Arc::clone(target.connector.config()), target.name.clone())?;
        let mut link = Link::new(Side::Client(Box::new(connection)), false, None);
        link.received(&mut [], &mut |_| {})?;
        Ok(link)
    }

    fn new(side: Side, direct: bool, end_point: Option<Vec<u8>>) -> Link {
        let (part, out) = (Vec::new(), Vec::new());
        Link { side, state: State::Handshake, direct, end_point, asked: None, part, out, written: 0, carried: 0 }
    }

    /// Adds bytes to be written before the first TLS message: the answer to SSLRequest.
    pub fn prime(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// True once plaintext can be sent.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open | State::Ended)
    }

    /// Moves the remainder of earlier bytes to the front of `buffer`, and returns its length. `buffer` must be longer than [`LONGEST_PART`].
    pub fn unfinished(&mut self, buffer: &mut [u8]) -> usize {
        let length = self.part.len();
        if length > 0 {
            buffer[..length].copy_from_slice(&self.part);
            self.part = Vec::new();
        }
        length
    }

    /// Takes back the bytes of [`unfinished`](Link::unfinished), if nothing was read behind them.
    pub fn keep(&mut self, part: &[u8]) {
        self.part = part.to_vec();
    }

    /// Processes the bytes of [`unfinished`](Link::unfinished) and those read behind them. After an error, only [`pending`](Link::pending) may still
    /// be written: the alert for the peer.
    ///
    /// # Errors
    /// The connection cannot continue.
    pub fn received(&mut self, bytes: &mut [u8], deliver: &mut dyn FnMut(Event<'_>)) -> Result<(), LinkError> {
        let outcome = self.take(bytes, deliver);
        if outcome.is_err() {
            self.state = State::Failed;
            // Encodes the alert. Called only while there is something to send: otherwise rustls would expect the bytes again that it has already
            // seen, and they are gone.
            for _ in 0..MOST_MESSAGES {
                if !self.side.common().wants_write() || self.side.step(&mut [], &mut self.out, &mut |_| {}).1.is_err() {
                    break;
                }
            }
        }
        outcome
    }

    fn take(&mut self, bytes: &mut [u8], deliver: &mut dyn FnMut(Event<'_>)) -> Result<(), LinkError> {
        if matches!(self.state, State::Ended | State::Failed) {
            return Ok(());
        }
        let mut used = 0;
        // The first data can arrive together with the end of the handshake.
        let mut first = Vec::new();
        loop {
            let shaking = self.state == State::Handshake;
            let (discard, step) = self.side.step(&mut bytes[used..], &mut self.out, &mut |plain| {
                if shaking {
                    first.extend_from_slice(plain);
                } else {
                    deliver(Event::Data(plain));
                }
            });
            used += discard;
            let step = step?;
            if shaking && (!first.is_empty() || matches!(step, Step::Wait(true))) {
                self.open(deliver)?;
                if !first.is_empty() {
                    deliver(Event::Data(&std::mem::take(&mut first)));
                }
            }
            match step {
                Step::Again => {}
                Step::Ended => {
                    self.state = State::Ended;
                    deliver(Event::Closed);
                    return Ok(());
                }
                Step::Wait(_) => {
                    let rest = &bytes[used..];
                    if rest.len() > LONGEST_PART {
                        return Err(LinkError::TooLong);
                    }
                    self.part = rest.to_vec();
                    return Ok(());
                }
            }
        }
    }

    fn open(&mut self, deliver: &mut dyn FnMut(Event<'_>)) -> Result<(), LinkError> {
        if self.direct && self.side.common().alpn_protocol() != Some(ALPN) {
            return Err(LinkError::NoAlpn);
        }
        self.state = State::Open;
        deliver(Event::Secured(self.identity()));
        Ok(())
    }

    fn identity(&mut self) -> Identity {
        let asked = self.asked.take();
        let common = self.side.common();
        let theirs = common.peer_certificates().and_then(<[_]>::first);
        let end_point = match self.side {
            Side::Server(_) => self.end_point.clone(),
            Side::Client(_) => theirs.and_then(|certificate| x509::end_point(certificate)),
        };
        Identity {
            certificate: theirs.is_some(),
            common_name: theirs.and_then(|certificate| x509::common_name(certificate)),
            end_point,
            server_name: asked.and_then(|asked| asked.name.get().cloned()),
        }
    }

    /// Encrypts plaintext and appends it to the pending bytes. `spare` lends a buffer if the link has none.
    ///
    /// # Errors
    /// The keys are used up (after 2^64 records), or the link is not open.
    pub fn encrypt(&mut self, plain: &[u8], spare: &mut Vec<u8>) -> Result<(), LinkError> {
        if !self.is_open() {
            return Err(LinkError::Protocol("not open".into()));
        }
        if self.out.capacity() == 0 {
            std::mem::swap(&mut self.out, spare);
            self.out.clear();
        }
        self.side.write(Write::Plain(plain), &mut self.part, &mut self.out)?;
        self.carried += plain.len();
        Ok(())
    }

    /// How many bytes of plaintext were encrypted and are not written yet.
    #[must_use]
    pub fn carried(&self) -> usize {
        self.carried
    }

    /// Appends a close_notify for the peer. Afterwards nothing may be encrypted.
    pub fn close(&mut self) {
        if self.is_open() {
            // Without it the peer sees a broken connection, which loses nothing else.
            let _ = self.side.write(Write::CloseNotify, &mut self.part, &mut self.out);
            self.state = State::Failed;
        }
    }

    // Deprecated because it omits later changes of the connection's keys; the test ends before any.
    #[cfg(test)]
    #[allow(deprecated)]
    pub(crate) fn into_secrets(self) -> rustls::ExtractedSecrets {
        match self.side {
            Side::Client(connection) => connection.dangerous_extract_secrets(),
            Side::Server(connection) => connection.dangerous_extract_secrets(),
        }
        .expect("secrets of an open link")
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.part.capacity() + self.out.capacity()
    }

    /// Returns the bytes to be written to the peer.
    #[must_use]
    pub fn pending(&self) -> &[u8] {
        &self.out[self.written..]
    }

    /// Marks `count` bytes as written. After the last one, the buffer goes to `spare` if that has none. Returns the number of bytes of plaintext
    /// that are written with them: none before all are.
    pub fn wrote(&mut self, count: usize, spare: &mut Vec<u8>) -> usize {
        self.written += count;
        debug_assert!(self.written <= self.out.len());
        if self.written == self.out.len() {
            self.written = 0;
            let mut out = std::mem::take(&mut self.out);
            if spare.capacity() == 0 {
                out.clear();
                *spare = out;
            }
            return std::mem::take(&mut self.carried);
        }
        0
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("state", &self.state).finish_non_exhaustive()
    }
}

// === impl Side ===

/// Input of the record layer.
#[derive(Clone, Copy)]
enum Write<'a> {
    Plain(&'a [u8]),
    CloseNotify,
}

impl Side {
    fn common(&self) -> &CommonState {
        match self {
            Side::Server(connection) => connection,
            Side::Client(connection) => connection,
        }
    }

    fn step(
        &mut self,
        bytes: &mut [u8],
        out: &mut Vec<u8>,
        plain: &mut dyn FnMut(&[u8]),
    ) -> (usize, Result<Step, LinkError>) {
        match self {
            Side::Server(connection) => look(connection.process_tls_records(bytes), out, plain),
            Side::Client(connection) => look(connection.process_tls_records(bytes), out, plain),
        }
    }

    /// `part` contains the bytes that rustls has not released: it remembers offsets in them, and panics if they are missing.
    fn write(&mut self, what: Write<'_>, part: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<(), LinkError> {
        // rustls' own messages come before the plaintext.
        for _ in 0..MOST_MESSAGES {
            let (used, done) = match self {
                Side::Server(connection) => put(connection.process_tls_records(part), what, out),
                Side::Client(connection) => put(connection.process_tls_records(part), what, out),
            };
            part.drain(..used);
            if done? {
                return Ok(());
            }
        }
        Err(LinkError::Protocol("no end of messages before the data".into()))
    }
}

/// Executes a step of rustls. Returns the number of input bytes used, and the next step.
fn look<D>(
    status: UnbufferedStatus<'_, '_, D>,
    out: &mut Vec<u8>,
    plain: &mut dyn FnMut(&[u8]),
) -> (usize, Result<Step, LinkError>) {
    let mut used = status.discard;
    let step = match status.state {
        Err(error) => Err(error.into()),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
            match traffic.next_record() {
                Some(Ok(record)) => {
                    used += record.discard;
                    if !record.payload.is_empty() {
                        plain(record.payload);
                    }
                }
                Some(Err(error)) => break Err(error.into()),
                None => break Ok(Step::Again),
            }
        },
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            let at = out.len();
            match data.encode(&mut []) {
                Err(EncodeError::InsufficientSize(need)) => {
                    out.resize(at + need.required_size, 0);
                    data.encode(&mut out[at..]).map(|_| Step::Again).map_err(|e| LinkError::Protocol(e.to_string()))
                }
                other => other.map(|_| Step::Again).map_err(|e| LinkError::Protocol(e.to_string())),
            }
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            // From here on the link holds the bytes.
            data.done();
            Ok(Step::Again)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Step::Wait(false)),
        Ok(ConnectionState::WriteTraffic(_)) => Ok(Step::Wait(true)),
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Step::Ended),
        Ok(_) => Err(LinkError::Protocol("early data, which was not offered".into())),
    };
    (used, step)
}

/// Returns the number of input bytes used; and true once the data is written, false if another message had to be first.
fn put<D>(status: UnbufferedStatus<'_, '_, D>, what: Write<'_>, out: &mut Vec<u8>) -> (usize, Result<bool, LinkError>) {
    let used = status.discard;
    match status.state {
        Ok(ConnectionState::WriteTraffic(writer)) => (used, put_with(writer, what, out).map(|()| true)),
        state => {
            let (used, step) = look(UnbufferedStatus { discard: used, state }, out, &mut |_| {});
            let done = match step {
                Ok(Step::Wait(_)) => Err(LinkError::Protocol("the handshake is not done".into())),
                Ok(Step::Again | Step::Ended) => Ok(false),
                Err(error) => Err(error),
            };
            (used, done)
        }
    }
}

fn put_with<D>(mut writer: WriteTraffic<'_, D>, what: Write<'_>, out: &mut Vec<u8>) -> Result<(), LinkError> {
    let at = out.len();
    let mut room = match what {
        Write::Plain(plain) => plain.len() + RECORD_OVERHEAD * (1 + plain.len().div_ceil(RECORD)),
        Write::CloseNotify => RECORD_OVERHEAD,
    };
    // The second attempt has the required size.
    for _ in 0..2 {
        out.resize(at + room, 0);
        let written = match what {
            Write::Plain(plain) => writer.encrypt(plain, &mut out[at..]),
            Write::CloseNotify => writer.queue_close_notify(&mut out[at..]),
        };
        match written {
            Ok(count) => {
                out.truncate(at + count);
                return Ok(());
            }
            Err(EncryptError::InsufficientSize(need)) => room = need.required_size,
            Err(error) => {
                out.truncate(at);
                return Err(LinkError::Protocol(error.to_string()));
            }
        }
    }
    out.truncate(at);
    Err(LinkError::Protocol("no room for a record".into()))
}
