//! TLS settings with their files loaded: one value for all clients, one for all servers.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion};

use crate::ALPN;
use crate::config::{ClientCert, ConnectConfig, ConnectMode, ListenConfig, ListenMode, ProtocolVersion};
use crate::files::{Error, File};
use crate::verify::Lenient;
use crate::x509;

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn versions(oldest: ProtocolVersion) -> &'static [&'static SupportedProtocolVersion] {
    static BOTH: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
    match oldest {
        ProtocolVersion::Tls12 => &BOTH,
        ProtocolVersion::Tls13 => &BOTH[..1],
    }
}

/// Returns a required setting.
fn needed<'a>(path: Option<&'a PathBuf>, setting: &'static str, why: &'static str) -> Result<File<'a>, Error> {
    path.map(|path| File { setting, path }).ok_or(Error::Missing { setting, why })
}

/// Reads a certificate and its key, and checks that they match.
fn identity(
    provider: &CryptoProvider,
    certificate: File<'_>,
    key: File<'_>,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Error> {
    let (chain, private) = (certificate.certificates()?, key.key()?);
    match CertifiedKey::from_der(chain.clone(), private.clone_key(), provider) {
        Ok(_) => Ok((chain, private)),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err(key.contents(format!("it is not the key of cert_file {}", certificate.path.display())))
        }
        Err(rustls::Error::InvalidCertificate(error)) => Err(certificate.contents(format!("cannot be used: {error}"))),
        Err(_) => {
            Err(key.contents("the key cannot be used, expected RSA (2048 bits or more), ECDSA P-256/P-384 or Ed25519"))
        }
    }
}

// === Acceptor ===

/// TLS for clients' connections: `[proxy.tls]` with its files loaded.
pub struct Acceptor {
    /// Use of TLS by clients.
    pub mode: ListenMode,
    /// Use of certificates by clients.
    pub client_cert: ClientCert,
    /// Hash of the proxy's certificate, for channel binding; see [`x509::end_point`].
    pub end_point: Option<Vec<u8>>,
    pub(crate) config: Arc<ServerConfig>,
}

impl Acceptor {
    /// Loads the files; returns `None` if TLS is disabled.
    ///
    /// # Errors
    /// The first fault found.
    pub fn new(config: &ListenConfig) -> Result<Option<Acceptor>, Error> {
        if config.mode == ListenMode::Disable {
            return Ok(None);
        }
        let provider = provider();
        let why = "TLS for clients needs a certificate and its key";
        let certificate = needed(config.cert_file.as_ref(), "cert_file", why)?;
        let key = needed(config.key_file.as_ref(), "key_file", why)?;
        let (chain, private) = identity(&provider, certificate, key)?;
        let end_point = chain.first().and_then(|own| x509::end_point(own));
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions(config.min_protocol_version))
            .map_err(|error| certificate.contents(error.to_string()))?;
        let builder = if config.client_cert == ClientCert::None {
            builder.with_no_client_auth()
        } else {
            let authorities = needed(config.ca_file.as_ref(), "ca_file", "clients' certificates are verified with it")?;
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(authorities.authorities()?), provider.clone());
            let verifier = match config.client_cert {
                ClientCert::Optional => verifier.allow_unauthenticated(),
                _ => verifier,
            };
            builder
                .with_client_cert_verifier(verifier.build().map_err(|error| authorities.contents(error.to_string()))?)
        };
        let mut server =
            builder.with_single_cert(chain, private).map_err(|error| certificate.contents(error.to_string()))?;
        server.alpn_protocols = vec![ALPN.to_vec()];
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Some(Acceptor { mode: config.mode, client_cert: config.client_cert, end_point, config: Arc::new(server) }))
    }
}

impl Acceptor {
    /// Returns a configuration with these protocols in ALPN instead of [`ALPN`], for callers that use rustls without a [`Link`](crate::Link) and
    /// another protocol. A client that offers only other protocols is rejected.
    #[must_use]
    pub fn speaking(&self, protocols: &[&[u8]]) -> Arc<ServerConfig> {
        let mut config = ServerConfig::clone(&self.config);
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Arc::new(config)
    }
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acceptor")
            .field("mode", &self.mode)
            .field("client_cert", &self.client_cert)
            .finish_non_exhaustive()
    }
}

// === Connector ===

/// TLS for connections to servers: `[cluster.tls]` with its files loaded.
pub struct Connector {
    /// The configured mode; never [`ConnectMode::Disable`].
    pub mode: ConnectMode,
    config: Arc<ClientConfig>,
}

/// A server to be connected by TLS.
#[derive(Debug, Clone)]
pub struct Target {
    /// TLS settings of the connection.
    pub connector: Arc<Connector>,
    /// Name that the server's certificate must be for.
    pub name: ServerName<'static>,
}

impl Connector {
    /// Loads the files; returns `None` if TLS is disabled.
    ///
    /// # Errors
    /// The first fault found.
    pub fn new(config: &ConnectConfig) -> Result<Option<Connector>, Error> {
        if config.mode == ConnectMode::Disable {
            return Ok(None);
        }
        let provider = provider();
        let authorities = config.ca_file.as_ref().map(|path| File { setting: "ca_file", path });
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions(config.min_protocol_version))
            .map_err(|error| Error::Contents {
                setting: "min_protocol_version",
                path: PathBuf::new(),
                why: error.to_string(),
            })?;
        let chain = |file: File<'_>| {
            let roots = Arc::new(file.authorities()?);
            WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
                .build()
                .map_err(|error| file.contents(error.to_string()))
        };
        let builder = match (config.mode, authorities) {
            (ConnectMode::VerifyCa | ConnectMode::VerifyFull, None) => {
                return Err(Error::Missing {
                    setting: "ca_file",
                    why: "servers' certificates are verified with it (the system's CAs are in /etc/ssl/certs/ca-certificates.crt)",
                });
            }
            (ConnectMode::VerifyFull, Some(file)) => builder.with_webpki_verifier(chain(file)?),
            // As in libpq, CAs are used whenever they are given.
            (_, file) => {
                let lenient = Lenient { provider: provider.clone(), chain: file.map(chain).transpose()? };
                builder.dangerous().with_custom_certificate_verifier(Arc::new(lenient))
            }
        };
        let mut client = match (&config.cert_file, &config.key_file) {
            (None, None) => builder.with_no_client_auth(),
            (certificate, key) => {
                let certificate = needed(certificate.as_ref(), "cert_file", "key_file is its key")?;
                let key = needed(key.as_ref(), "key_file", "cert_file needs its key")?;
                let (chain, private) = identity(&provider, certificate, key)?;
                builder
                    .with_client_auth_cert(chain, private)
                    .map_err(|error| certificate.contents(error.to_string()))?
            }
        };
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.resumption = Resumption::disabled();
        Ok(Some(Connector { mode: config.mode, config: Arc::new(client) }))
    }

    /// Returns [`Connector::config`] with these protocols in ALPN instead of [`ALPN`].
    #[must_use]
    pub fn speaking(&self, protocols: &[&[u8]]) -> Arc<ClientConfig> {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Arc::new(config)
    }

    /// Returns the configuration, for callers that use rustls without a [`Link`](crate::Link).
    #[must_use]
    pub fn config(&self) -> &Arc<ClientConfig> {
        &self.config
    }

    #[cfg(test)]
    pub(crate) fn with_config(&self, config: ClientConfig) -> Connector {
        Connector { mode: self.mode, config: Arc::new(config) }
    }

    /// True if a server without TLS is acceptable.
    #[must_use]
    pub fn is_optional(&self) -> bool {
        self.mode == ConnectMode::Prefer
    }
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl Target {
    /// Creates the target at `host` (a name or an IP address).
    #[must_use]
    pub fn new(connector: Arc<Connector>, host: &str) -> Option<Target> {
        let name = ServerName::try_from(host).ok()?.to_owned();
        Some(Target { connector, name })
    }

    /// Creates the target at this address.
    #[must_use]
    pub fn at(connector: Arc<Connector>, address: std::net::IpAddr) -> Target {
        Target { connector, name: ServerName::IpAddress(address.into()) }
    }
}
