//! TLS of probes: the accepted certificates.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tls::{ConnectConfig, ConnectMode, Connector};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::model::ProbeTls;

/// Protocols offered by ALPN: HTTP/1.1, HTTP/2 and none, each in a configuration of its own.
const PROTOCOLS: [&[u8]; 3] = [b"http/1.1", b"h2", b""];

/// TLS configurations, by offered protocol.
type Configs = [Arc<ClientConfig>; PROTOCOLS.len()];

/// TLS configurations of probes.
pub(crate) struct Secure {
    /// The file of trusted CA certificates, if it is set.
    ca_file: Option<PathBuf>,
    /// For checks that verify the certificate. The system's CAs are read at the first use, since that takes a while.
    verifying: OnceLock<Result<Configs, String>>,
    /// For checks that accept any certificate.
    lenient: OnceLock<Result<Configs, String>>,
}

impl Secure {
    /// Makes the configurations. `ca_file`: PEM, the trusted CA certificates; `None` for those of the system.
    ///
    /// # Errors
    /// The file is unusable.
    pub(crate) fn new(ca_file: Option<&Path>) -> Result<Secure, String> {
        let secure =
            Secure { ca_file: ca_file.map(Path::to_owned), verifying: OnceLock::new(), lenient: OnceLock::new() };
        if ca_file.is_some() {
            secure.configs(false).clone()?;
        }
        Ok(secure)
    }

    fn configs(&self, lenient: bool) -> &Result<Configs, String> {
        if lenient {
            return self.lenient.get_or_init(|| configs(ConnectMode::Require, None));
        }
        self.verifying.get_or_init(|| {
            let file = self.ca_file.clone().unwrap_or_else(|| tls::system_authorities().to_owned());
            configs(ConnectMode::VerifyFull, Some(file))
        })
    }

    /// Starts TLS on a connection to `target` (`host:port`), and offers `protocol` by ALPN, unless it is empty.
    ///
    /// # Errors
    /// There are no CAs to verify with; the server's certificate is not accepted; any error of a connection.
    pub(super) async fn connect(
        &self,
        stream: TcpStream,
        tls: &ProbeTls,
        target: &str,
        protocol: &[u8],
    ) -> io::Result<TlsStream<TcpStream>> {
        let configs = self.configs(tls.skip_verify).as_ref().map_err(|why| io::Error::other(why.clone()))?;
        let config = PROTOCOLS.iter().position(|offered| *offered == protocol).map(|n| &configs[n]);
        let config = config.ok_or_else(|| io::Error::other("no such protocol"))?;
        let host = match tls.server_name.as_str() {
            "" => target.rsplit_once(':').map_or(target, |(host, _)| host).trim_matches(['[', ']']),
            name => name,
        };
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(Arc::clone(config)).connect(name, stream).await
    }
}

fn configs(mode: ConnectMode, ca_file: Option<PathBuf>) -> Result<Configs, String> {
    let config = ConnectConfig { mode, ca_file, ..ConnectConfig::default() };
    let connector = Connector::new(&config).map_err(|error| error.to_string())?;
    let connector = connector.ok_or("TLS is disabled")?;
    let offered = |protocol: &'static [u8]| Some(protocol).filter(|protocol| !protocol.is_empty());
    Ok(PROTOCOLS.map(|protocol| connector.speaking(offered(protocol).as_slice())))
}
