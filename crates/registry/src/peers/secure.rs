//! Between two nodes, before they know each other: in clear, or by TLS in which both show a certificate of one CA.
//!
//! Which host a certificate is for is not looked at. The hand-shake that follows is bound to this connection of TLS (see [`Binding`]), so somebody in
//! between, who has a certificate of the CA but not the store's secret, cannot pass it on from one connection to another.

use std::sync::Arc;

use tls::rustls::pki_types::ServerName;
use tls::rustls::{ClientConfig, ConnectionCommon, ServerConfig};
use tls::{Acceptor, ClientCert, ConnectConfig, ConnectMode, Connector, ListenConfig, ListenMode, ProtocolVersion};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::link::Ended;
use crate::error::OpenError;
use crate::settings::{PeerTls, PeerTlsMode};

/// What nodes speak, in ALPN.
const PROTOCOL: &[u8] = b"kingpost-registry";
/// Of what is taken from a connection of TLS to bind the hand-shake to it.
const LABEL: &[u8] = b"EXPORTER-kingpost-registry-peers";

/// What both ends of one connection of TLS know, and nobody else.
pub(super) type Binding = [u8; 32];
pub(super) type Reading = Box<dyn AsyncRead + Send + Unpin>;
pub(super) type Writing = Box<dyn AsyncWrite + Send + Unpin>;

/// How nodes speak TLS: `[registry.peer_tls]` with its files read.
#[derive(Debug)]
pub(crate) struct Secure {
    connect: Arc<ClientConfig>,
    accept: Arc<ServerConfig>,
}

/// A way to another node. What is said on it is authenticated only after the hand-shake.
pub(super) struct Way {
    pub(super) read: Reading,
    pub(super) write: Writing,
    /// None: in clear.
    pub(super) binding: Option<Binding>,
}

impl Secure {
    /// Reads the files; none if there is to be no TLS.
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
    /// A way to a node that this one has called.
    pub(super) async fn out(stream: TcpStream, secure: Option<&Secure>) -> Result<Way, Ended> {
        stream.set_nodelay(true)?;
        let Some(secure) = secure else { return Ok(Way::clear(stream)) };
        // Verified is the chain alone. An address, unlike a name, is not sent.
        let name = ServerName::IpAddress(stream.peer_addr()?.ip().into());
        let stream = TlsConnector::from(Arc::clone(&secure.connect)).connect(name, stream).await.map_err(no_tls)?;
        let binding = binding(stream.get_ref().1)?;
        Ok(Way::split(stream, binding))
    }

    /// A way from a node that has called.
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

    /// Sends all of it.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        self.write.write_all(bytes).await?;
        Ok(self.write.flush().await?)
    }
}

fn binding<D>(connection: &ConnectionCommon<D>) -> Result<Binding, Ended> {
    let exported = connection.export_keying_material([0; 32], LABEL, None);
    exported.map_err(|error| std::io::Error::other(error).into())
}

/// A handshake failed: because what was heard is no TLS, or for another reason.
fn no_tls(error: std::io::Error) -> Ended {
    let known = error.get_ref().and_then(|inner| inner.downcast_ref::<tls::rustls::Error>());
    match known {
        Some(tls::rustls::Error::InvalidMessage(_)) => Ended::NoTls,
        _ => error.into(),
    }
}
