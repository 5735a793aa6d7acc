//! TLS between clients, the proxy and the servers.
//!
//! ```text
//!  [proxy.tls]   ─ ListenConfig  ─▶ Acceptor  ─┐                                   ┌─ Identity: whose certificate it was
//!  [cluster.tls] ─ ConnectConfig ─▶ Connector ─┴▶ Link: ciphertext in ─▶ plaintext ┴─ ciphertext out
//! ```
//!
//! [`Acceptor`] and [`Connector`] are made from the files of certificates and keys at the start and at each reload, and shared by all connections
//! that begin later. A [`Link`] is the record layer of one connection: bytes in, bytes and events out, no socket. It wraps rustls' unbuffered
//! connection, so that input stays in its owner's buffer.
//!
//! # Invariants
//! - An idle link holds no buffer of its own (apart from rustls' own connection state).
//! - The buffered part of an unfinished record or handshake is limited to [`LONGEST_PART`].
//! - A file that is not usable is an error of its setting; a configuration is never partially loaded.
//! - A key that other users may read is rejected, as in PostgreSQL.
//! - There is no session resumption, and there are no tickets (as in PostgreSQL): a new connection always uses the current certificates and rules.
//!   Renegotiation is not offered.

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
/// Re-exported for callers that use rustls without a [`Link`].
pub use rustls;
#[cfg(feature = "stream")]
pub use stream::{Stream, grpc, secured};
pub use x509::{common_name, end_point};

/// ALPN name of PostgreSQL's protocol: a client that starts with TLS directly must offer it.
pub const ALPN: &[u8] = b"postgresql";
