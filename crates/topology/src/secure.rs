//! TLS for the probes' sessions, by tokio-rustls: what the proxy's workers do with [`tls::Link`], in the form that
//! tokio-postgres takes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client;

/// Begins TLS on a connection whose server has agreed to it.
pub(crate) struct Secure(pub(crate) tls::Target);

/// A connection with TLS.
pub(crate) struct Secured(client::TlsStream<TcpStream>);

impl TlsConnect<TcpStream> for Secure {
    type Stream = Secured;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Secured>> + Send>>;

    fn connect(self, stream: TcpStream) -> Self::Future {
        let connector = TlsConnector::from(self.0.connector.config().clone());
        Box::pin(async move { connector.connect(self.0.name, stream).await.map(Secured).map_err(explain) })
    }
}

/// In the words that the proxy's own connections use.
fn explain(error: io::Error) -> io::Error {
    let known = error.get_ref().and_then(|inner| inner.downcast_ref::<tls::rustls::Error>());
    match known {
        Some(known) => io::Error::new(error.kind(), tls::LinkError::from(known.clone()).to_string()),
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
