//! TLS between clients, the proxy and the servers.
//!
//! ```text
//!  [proxy.tls]   ─ ListenConfig  ─▶ Acceptor  ─┐                                   ┌─ Identity: whose certificate it was
//!  [cluster.tls] ─ ConnectConfig ─▶ Connector ─┴▶ Link: ciphertext in ─▶ plaintext ┴─ ciphertext out
//! ```
//!
//! [`Acceptor`] and [`Connector`] are what files of certificates and keys become: made at the start and at each reload,
//! shared by all connections that begin after that. A [`Link`] is one connection's record layer: bytes in, bytes and
//! events out, no socket. It wraps rustls' unbuffered connection, so that what is read can stay in its owner's buffer.
//!
//! # Invariants
//! - A link that carries nothing holds no buffer of its own (rustls' own state of a connection apart).
//! - What a link keeps of an unfinished record or handshake is bounded by [`LONGEST_PART`].
//! - A file that is not usable is an error of its setting; nothing is half loaded.
//! - A key that others than its owner may read is refused, as PostgreSQL refuses it.
//! - There is no resumption and there are no tickets (as with PostgreSQL): a new connection meets the certificates and rules
//!   of its day. Renegotiation is not offered.

mod config;
mod files;
mod link;
mod peers;
#[cfg(feature = "tokio-postgres")]
pub mod postgres;
#[cfg(feature = "stream")]
mod stream;
#[cfg(test)]
mod tests;
mod verify;
mod x509;

pub use config::{ClientCert, ConnectConfig, ConnectMode, ListenConfig, ListenMode, ProtocolVersion};
pub use files::{Error, system_authorities};
pub use link::{Event, Identity, LONGEST_PART, Link, LinkError, explain};
pub use peers::{Acceptor, Connector, Target};
/// For those who drive rustls by other means than a [`Link`].
pub use rustls;
#[cfg(feature = "stream")]
pub use stream::{Stream, grpc, secured};
pub use x509::{common_name, end_point};

/// The name of PostgreSQL's protocol in ALPN: a client that begins with TLS at once must give it.
pub const ALPN: &[u8] = b"postgresql";
