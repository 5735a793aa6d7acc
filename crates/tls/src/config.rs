//! Configuration of TLS.

use std::path::PathBuf;

::settings::settings! {
    /// `[proxy.tls]`: connections of clients.
    #[derive(Debug, Clone, PartialEq)]
    pub struct ListenConfig: Default {
        /// Use of TLS: "disable"; "allow": for clients that ask for it; "require": a client without it is turned away.
        pub mode: ListenMode = ListenMode::default();
        /// Certificate, followed by those between it and its CA.
        pub cert_file: Option<PathBuf> = None, example(r#""/etc/kingpost/server.crt""#);
        /// Key of the certificate, without a passphrase. Nobody else may be able to read it: mode 600, or 640 if it is root's.
        pub key_file: Option<PathBuf> = None, example(r#""/etc/kingpost/server.key""#);
        /// CAs that clients' certificates are verified with.
        pub ca_file: Option<PathBuf> = None, example(r#""/etc/kingpost/clients-ca.crt""#);
        /// Certificates of clients: "none": they are not asked for one; "optional": one that is shown must be of a CA in ca_file; "verify-ca": each
        /// must show one; "verify-full": and its common name must be the user's (not for the registry). auth = "cert" needs one of the last three.
        pub client_cert: ClientCert = ClientCert::default();
        /// Oldest version: "TLSv1.2" or "TLSv1.3".
        pub min_protocol_version: ProtocolVersion = ProtocolVersion::default();
    }
}

::settings::settings! {
    /// Use of TLS by clients. Unix sockets never use TLS.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum ListenMode {
        /// No TLS.
        #[default]
        Disable = "disable",
        /// TLS for clients that ask for it.
        Allow = "allow",
        /// TLS required over TCP (except for cancel requests: most clients send them without TLS).
        Require = "require",
    }
}

::settings::settings! {
    /// Use of certificates by clients.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum ClientCert {
        /// Certificates are not requested.
        #[default]
        None = "none",
        /// A certificate is optional, and must be of a CA in `ca_file`.
        Optional = "optional",
        /// A certificate of a CA in `ca_file` is required.
        VerifyCa = "verify-ca",
        /// Like `VerifyCa`, and the certificate's common name (CN) must be the user's name.
        VerifyFull = "verify-full",
    }
}

::settings::settings! {
    /// A version of TLS, spelled as in PostgreSQL's `ssl_min_protocol_version`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum ProtocolVersion {
        /// Versions 1.2 and 1.3.
        #[default]
        Tls12 = "TLSv1.2",
        /// Version 1.3 only.
        Tls13 = "TLSv1.3",
    }
}

::settings::settings! {
    /// `[cluster.tls]`: connections to servers.
    #[derive(Debug, Clone, PartialEq)]
    pub struct ConnectConfig: Default {
        /// Use of TLS, as libpq's sslmode: "disable"; "prefer": where the server has it; "require": TLS or nothing; "verify-ca": the server's
        /// certificate is of a CA in ca_file; "verify-full": and it is for the host in the node's address.
        pub mode: ConnectMode = ConnectMode::default();
        /// CAs that servers' certificates are verified with: also in the modes "prefer" and "require", if given.
        pub ca_file: Option<PathBuf> = None, example(r#""/etc/kingpost/servers-ca.crt""#);
        /// Certificate that is shown to a server which asks for one (hba method cert, clientcert=…).
        pub cert_file: Option<PathBuf> = None, example(r#""/etc/kingpost/client.crt""#);
        /// Key of that certificate, without a passphrase.
        pub key_file: Option<PathBuf> = None, example(r#""/etc/kingpost/client.key""#);
        /// Oldest version: "TLSv1.2" or "TLSv1.3".
        pub min_protocol_version: ProtocolVersion = ProtocolVersion::default();
    }
}

::settings::settings! {
    /// Modes of libpq's `sslmode`, except `allow`. Unix sockets never use TLS.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum ConnectMode {
        /// No TLS.
        #[default]
        Disable = "disable",
        /// TLS if the server supports it. Unlike in libpq, a failed handshake is not retried without TLS.
        Prefer = "prefer",
        /// TLS required; the server's certificate is verified only if there is a `ca_file`.
        Require = "require",
        /// TLS required, with a server certificate of a CA in `ca_file`.
        VerifyCa = "verify-ca",
        /// Like `VerifyCa`, and the certificate must be for the host in the node's address.
        VerifyFull = "verify-full",
    }
}
