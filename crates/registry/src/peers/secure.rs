//! Transport between two nodes before the handshake: in clear, or TLS with certificates of one CA on both sides.
//!
//! The host name of a certificate is not checked. The handshake that follows is bound to this TLS connection (see [`Binding`]), so an attacker in
//! between, with a certificate of the CA but without the store's secret, cannot relay it from one connection to another.

use std::sync::Arc;

use tls::rustls::pki_types::ServerName;
use tls::rustls::{ClientConfig, ConnectionCommon, ServerConfig};
use tls::{Acceptor, ClientCert, ConnectConfig, ConnectMode, Connector, ListenConfig, ListenMode, ProtocolVersion};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::ended::Ended;
use crate::error::OpenError;
use crate::settings::{PeerTls, PeerTlsMode};

/// ALPN protocol of the nodes.
const PROTOCOL: &[u8] = b"kingpost-registry";
/// Label of the exported keying material that binds the handshake to a TLS connection.
const LABEL: &[u8] = b"EXPORTER-kingpost-registry-peers";

/// Keying material known only to the two ends of one TLS connection.
pub(super) type Binding = [u8; 32];
pub(super) type Reading = Box<dyn AsyncRead + Send + Unpin>;
pub(super) type Writing = Box<dyn AsyncWrite + Send + Unpin>;

/// TLS between nodes: `[registry.peer_tls]` with its files read.
#[derive(Debug)]
pub(crate) struct Secure {
    connect: Arc<ClientConfig>,
    accept: Arc<ServerConfig>,
}

/// A transport to another node. Authenticated only after the handshake.
pub(super) struct Way {
    pub(super) read: Reading,
    pub(super) write: Writing,
    /// None: in clear.
    pub(super) binding: Option<Binding>,
}

impl PeerTls {
    /// Reads and validates the files.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check(&self) -> Result<(), OpenError> {
        Secure::new(self).map(drop)
    }
}

impl Secure {
    /// Reads the files; returns None if TLS is disabled.
    pub(crate) fn new(settings: &PeerTls) -> Result<Option<Secure>, OpenError> {
        if settings.mode == PeerTlsMode::Disable {
            return Ok(None);
        }
        for (setting, file) in
            [("cert_file", &settings.cert_file), ("key_file", &settings.key_file), ("ca_file", &settings.ca_file)]
        {
            if file.is_none() {
                let why = "a node needs a certificate, its key, and the CAs of the others' certificates";
                return Err(OpenError::PeerTls { setting, reason: format!("{setting} is missing: {why}") });
            }
        }
        let failed = |error: tls::Error| OpenError::PeerTls { setting: error.setting(), reason: error.to_string() };
        let PeerTls { cert_file, key_file, ca_file, .. } = settings.clone();
        let accept = Acceptor::new(&ListenConfig {
            mode: ListenMode::Require,
            client_cert: ClientCert::VerifyCa,
            min_protocol_version: ProtocolVersion::Tls13,
            cert_file: cert_file.clone(),
            key_file: key_file.clone(),
            ca_file: ca_file.clone(),
        });
        let accept = accept.map_err(failed)?.map(|acceptor| acceptor.speaking(&[PROTOCOL]));
        let connect = Connector::new(&ConnectConfig {
            mode: ConnectMode::VerifyCa,
            min_protocol_version: ProtocolVersion::Tls13,
            cert_file,
            key_file,
            ca_file,
        });
        let connect = connect.map_err(failed)?.map(|connector| connector.speaking(&[PROTOCOL]));
        Ok(connect.zip(accept).map(|(connect, accept)| Secure { connect, accept }))
    }
}

impl Way {
    /// Sets up a connection that this node has opened.
    pub(super) async fn out(stream: TcpStream, secure: Option<&Secure>) -> Result<Way, Ended> {
        stream.set_nodelay(true)?;
        let Some(secure) = secure else { return Ok(Way::clear(stream)) };
        // Only the chain is verified. An address, unlike a name, is not sent.
        let name = ServerName::IpAddress(stream.peer_addr()?.ip().into());
        let stream = TlsConnector::from(Arc::clone(&secure.connect)).connect(name, stream).await.map_err(no_tls)?;
        let binding = binding(stream.get_ref().1)?;
        Ok(Way::split(stream, binding))
    }

    /// Sets up a connection that this node has accepted.
    pub(super) async fn to_here(stream: TcpStream, secure: Option<&Secure>) -> Result<Way, Ended> {
        stream.set_nodelay(true)?;
        let Some(secure) = secure else { return Ok(Way::clear(stream)) };
        let stream = TlsAcceptor::from(Arc::clone(&secure.accept)).accept(stream).await.map_err(no_tls)?;
        let binding = binding(stream.get_ref().1)?;
        Ok(Way::split(stream, binding))
    }

    fn clear(stream: TcpStream) -> Way {
        let (read, write) = stream.into_split();
        Way { read: Box::new(read), write: Box::new(write), binding: None }
    }

    fn split(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, binding: Binding) -> Way {
        let (read, write) = tokio::io::split(stream);
        Way { read: Box::new(read), write: Box::new(write), binding: Some(binding) }
    }

    /// Sends all bytes.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        self.write.write_all(bytes).await?;
        Ok(self.write.flush().await?)
    }
}

fn binding<D>(connection: &ConnectionCommon<D>) -> Result<Binding, Ended> {
    let exported = connection.export_keying_material([0; 32], LABEL, None);
    exported.map_err(|error| std::io::Error::other(error).into())
}

/// Converts a handshake error: the peer does not use TLS, or another reason.
fn no_tls(error: std::io::Error) -> Ended {
    let known = error.get_ref().and_then(|inner| inner.downcast_ref::<tls::rustls::Error>());
    match known {
        Some(tls::rustls::Error::InvalidMessage(_)) => Ended::NoTls,
        _ => error.into(),
    }
}
