//! tokio connections with or without TLS, for other protocols than PostgreSQL's: gRPC, HTTP.

use std::io::{Error, ErrorKind};
use std::sync::Arc;

use http::Uri;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::{Connector, Target};

/// The bytes of a connection, encrypted or not.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Returns the stream itself, or with TLS to `target`, offering these protocols (ALPN).
///
/// # Errors
/// The handshake fails.
pub async fn secured(
    stream: TcpStream,
    target: Option<&Target>,
    protocols: &[&[u8]],
) -> Result<Box<dyn Stream>, Error> {
    let Some(target) = target else { return Ok(Box::new(stream)) };
    let connector = TlsConnector::from(target.connector.speaking(protocols));
    Ok(Box::new(connector.connect(target.name.clone(), stream).await?))
}

/// Connects to a URI's host and port for gRPC; with a connector, by TLS for any scheme.
///
/// # Errors
/// The URI has no host or port, the host cannot be reached, or the handshake fails.
pub async fn grpc(uri: &Uri, connector: Option<&Arc<Connector>>) -> Result<Box<dyn Stream>, Error> {
    let wrong = |why: &'static str| Error::new(ErrorKind::InvalidInput, why);
    let authority = uri.authority().ok_or_else(|| wrong("no host"))?;
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let port = authority.port_u16().ok_or_else(|| wrong("no port"))?;
    let target = |connector: &Arc<Connector>| {
        Target::new(Arc::clone(connector), host).ok_or_else(|| wrong("no name that a certificate can be for"))
    };
    let target = connector.map(target).transpose()?;
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    secured(stream, target.as_ref(), &[b"h2"]).await
}
