//! What a user writes about TLS.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `[proxy.tls]`: connections of clients.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListenConfig {
    /// Whether clients can or must use TLS.
    pub mode: ListenMode,
    /// PEM: the proxy's certificate, and those between it and its CA.
    pub cert_file: Option<PathBuf>,
    /// PEM: the certificate's private key, without a passphrase.
    pub key_file: Option<PathBuf>,
    /// PEM: CAs that certificates of clients are verified with.
    pub ca_file: Option<PathBuf>,
    /// Whether clients can or must have a certificate.
    pub client_cert: ClientCert,
    /// Oldest version spoken.
    pub min_protocol_version: ProtocolVersion,
}

/// Whether clients can or must use TLS. Unix sockets never do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ListenMode {
    /// They are told that there is none.
    #[default]
    Disable,
    /// Those that ask for it.
    Allow,
    /// Those over TCP are turned away without it (cancel requests excepted: most clients send them bare).
    Require,
}

/// Whether clients can or must have a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientCert {
    /// They are not asked for one.
    #[default]
    None,
    /// One that they have must be of a CA of `ca_file`.
    Optional,
    /// They must have one of a CA of `ca_file`.
    VerifyCa,
    /// And its common name (CN) must be the user's name.
    VerifyFull,
}

/// A version of TLS, as PostgreSQL's `ssl_min_protocol_version` writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
pub enum ProtocolVersion {
    /// 1.2 and 1.3.
    #[default]
    #[serde(rename = "TLSv1.2")]
    Tls12,
    /// 1.3 only.
    #[serde(rename = "TLSv1.3")]
    Tls13,
}

/// `[cluster.tls]`: connections to servers.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConnectConfig {
    /// As libpq's `sslmode`.
    pub mode: ConnectMode,
    /// PEM: CAs that certificates of servers are verified with.
    pub ca_file: Option<PathBuf>,
    /// PEM: the certificate that is shown to servers which ask for one, and those between it and its CA.
    pub cert_file: Option<PathBuf>,
    /// PEM: that certificate's private key, without a passphrase.
    pub key_file: Option<PathBuf>,
    /// Oldest version spoken.
    pub min_protocol_version: ProtocolVersion,
}

/// As libpq's `sslmode`, but for `allow`. Unix sockets never use TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectMode {
    /// No TLS.
    #[default]
    Disable,
    /// Where the server has it. Unlike libpq: a handshake that fails is not tried again without TLS.
    Prefer,
    /// TLS or nothing; whose server it is, is verified only if there is a `ca_file`.
    Require,
    /// The server's certificate must be of a CA of `ca_file`.
    VerifyCa,
    /// And for the host that is configured as the node's address.
    VerifyFull,
}
