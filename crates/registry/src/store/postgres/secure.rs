//! TLS for the store's connections, by tokio-rustls, in the form that tokio-postgres takes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tls::{Connector, LinkError, Target};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client;

/// TLS with whatever host the driver tries; none if there is to be no TLS.
#[derive(Clone)]
pub(super) struct Secure(Option<Arc<Connector>>);

impl Secure {
    pub(super) fn new(connector: Option<Arc<Connector>>) -> Secure {
        Secure(connector)
    }
}

/// TLS with one host.
pub(super) struct Named(Option<Target>);

/// A connection with TLS.
pub(super) struct Secured(client::TlsStream<Socket>);

impl MakeTlsConnect<Socket> for Secure {
    type Stream = Secured;
    type TlsConnect = Named;
    type Error = io::Error;

    /// Asked for every connection, before it is known whether the server has TLS: a host that no certificate can be for, such as a Unix
    /// socket, is an error only once there is to be a handshake.
    fn make_tls_connect(&mut self, host: &str) -> io::Result<Named> {
        Ok(Named(self.0.as_ref().and_then(|connector| Target::new(Arc::clone(connector), host))))
    }
}

impl TlsConnect<Socket> for Named {
    type Stream = Secured;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Secured>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let no_host =
                || io::Error::other("the host is neither a name nor an address that a certificate can be for");
            let target = self.0.ok_or_else(no_host)?;
            let connector = TlsConnector::from(Arc::clone(target.connector.config()));
            connector.connect(target.name, socket).await.map(Secured).map_err(explain)
        })
    }
}

/// In the words that the proxy's own connections use.
fn explain(error: io::Error) -> io::Error {
    let known = error.get_ref().and_then(|inner| inner.downcast_ref::<tls::rustls::Error>());
    match known {
        Some(known) => io::Error::new(error.kind(), LinkError::from(known.clone()).to_string()),
        None => error,
    }
}

impl TlsStream for Secured {
    fn channel_binding(&self) -> ChannelBinding {
        let certificates = self.0.get_ref().1.peer_certificates();
        match certificates.and_then(<[_]>::first).and_then(|certificate| tls::end_point(certificate)) {
            Some(hash) => ChannelBinding::tls_server_end_point(hash),
            None => ChannelBinding::none(),
        }
    }
}

impl AsyncRead for Secured {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Secured {
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
