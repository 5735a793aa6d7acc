//! TLS for tokio-postgres, on any tokio stream. tokio-rustls is used here in place of the proxy workers' [`Link`](crate::Link).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::{TlsConnector, client};

use crate::link::explain;
use crate::peers::{Connector, Target};
use crate::x509;

/// TLS with any host that the driver connects to; `None` disables TLS.
#[derive(Debug, Clone)]
pub struct Secure(Option<Arc<Connector>>);

/// TLS with one host. Begins after the server has agreed to it.
#[derive(Debug)]
pub struct Named(Option<Target>);

/// A connection with TLS.
#[derive(Debug)]
pub struct Secured<S>(client::TlsStream<S>);

impl Secure {
    /// Creates it with loaded settings.
    #[must_use]
    pub fn new(connector: Option<Arc<Connector>>) -> Secure {
        Secure(connector)
    }

    /// Returns the TLS parameters for `host`. A host that no certificate can be for, such as a Unix socket, is an error only at the handshake: the
    /// driver calls this for every connection, before it knows whether the server supports TLS.
    #[must_use]
    pub fn named(&self, host: &str) -> Named {
        Named(self.0.as_ref().and_then(|connector| Target::new(Arc::clone(connector), host)))
    }
}

impl<S> Secured<S> {
    /// Returns the state of the TLS connection: the agreed parameters and the peer's certificate.
    pub fn connection(&self) -> &rustls::ClientConnection {
        self.0.get_ref().1
    }
}

impl From<Target> for Named {
    fn from(target: Target) -> Named {
        Named(Some(target))
    }
}

impl Named {
    /// Starts TLS.
    ///
    /// # Errors
    /// No certificate can be for the host, or the handshake fails.
    pub async fn begin<S: AsyncRead + AsyncWrite + Unpin>(self, stream: S) -> io::Result<Secured<S>> {
        let no_host = || io::Error::other("the host is neither a name nor an address that a certificate can be for");
        let target = self.0.ok_or_else(no_host)?;
        let connector = TlsConnector::from(Arc::clone(target.connector.config()));
        connector.connect(target.name, stream).await.map(Secured).map_err(explain)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Secure {
    type Stream = Secured<S>;
    type TlsConnect = Named;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Named> {
        Ok(self.named(host))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Named {
    type Stream = Secured<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Secured<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(self.begin(stream))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Secured<S> {
    fn channel_binding(&self) -> ChannelBinding {
        let certificates = self.connection().peer_certificates();
        match certificates.and_then(<[_]>::first).and_then(|certificate| x509::end_point(certificate)) {
            Some(hash) => ChannelBinding::tls_server_end_point(hash),
            None => ChannelBinding::none(),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Secured<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Secured<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
