//! Configuration of TLS.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `[proxy.tls]`: connections of clients.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListenConfig {
    /// Use of TLS by clients.
    pub mode: ListenMode,
    /// PEM file with the proxy's certificate and its intermediate certificates.
    pub cert_file: Option<PathBuf>,
    /// PEM file with the certificate's private key, without a passphrase.
    pub key_file: Option<PathBuf>,
    /// PEM file with the CAs for verifying clients' certificates.
    pub ca_file: Option<PathBuf>,
    /// Use of certificates by clients.
    pub client_cert: ClientCert,
    /// Oldest supported version.
    pub min_protocol_version: ProtocolVersion,
}

/// Use of TLS by clients. Unix sockets never use TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ListenMode {
    /// No TLS.
    #[default]
    Disable,
    /// TLS for clients that ask for it.
    Allow,
    /// TLS required over TCP (except for cancel requests: most clients send them without TLS).
    Require,
}

/// Use of certificates by clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientCert {
    /// Certificates are not requested.
    #[default]
    None,
    /// A certificate is optional, and must be of a CA in `ca_file`.
    Optional,
    /// A certificate of a CA in `ca_file` is required.
    VerifyCa,
    /// Like `VerifyCa`, and the certificate's common name (CN) must be the user's name.
    VerifyFull,
}

/// A version of TLS, spelled as in PostgreSQL's `ssl_min_protocol_version`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
pub enum ProtocolVersion {
    /// Versions 1.2 and 1.3.
    #[default]
    #[serde(rename = "TLSv1.2")]
    Tls12,
    /// Version 1.3 only.
    #[serde(rename = "TLSv1.3")]
    Tls13,
}

/// `[cluster.tls]`: connections to servers.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConnectConfig {
    /// The mode, like libpq's `sslmode`.
    pub mode: ConnectMode,
    /// PEM file with the CAs for verifying servers' certificates.
    pub ca_file: Option<PathBuf>,
    /// PEM file with the certificate for servers that request one, and its intermediate certificates.
    pub cert_file: Option<PathBuf>,
    /// PEM file with that certificate's private key, without a passphrase.
    pub key_file: Option<PathBuf>,
    /// Oldest supported version.
    pub min_protocol_version: ProtocolVersion,
}

/// Modes of libpq's `sslmode`, except `allow`. Unix sockets never use TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectMode {
    /// No TLS.
    #[default]
    Disable,
    /// TLS if the server supports it. Unlike in libpq, a failed handshake is not retried without TLS.
    Prefer,
    /// TLS required; the server's certificate is verified only if there is a `ca_file`.
    Require,
    /// TLS required, with a server certificate of a CA in `ca_file`.
    VerifyCa,
    /// Like `VerifyCa`, and the certificate must be for the host in the node's address.
    VerifyFull,
}
