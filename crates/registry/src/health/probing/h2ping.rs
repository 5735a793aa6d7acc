//! The HTTP/2 probe: a `PING` frame and its answer.

use std::io;

use h2::Ping;
use tokio::io::{AsyncRead, AsyncWrite};

use super::grpc::Ending;
use crate::model::Health;

/// Sends the frame over `stream`; the probe's time limit bounds the wait for the answer.
pub(super) async fn ask(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> io::Result<Health> {
    let (_sender, mut connection) = h2::client::handshake(stream).await.map_err(io::Error::other)?;
    let mut pings = connection.ping_pong().ok_or_else(|| io::Error::other("no pings"))?;
    let _connection = Ending(tokio::spawn(connection).abort_handle());
    pings.ping(Ping::opaque()).await.map_err(io::Error::other)?;
    Ok(Health::Passing)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[tokio::test]
    async fn a_server_of_http_2_answers() {
        let (ours, theirs) = tokio::io::duplex(4096);
        let server = tokio::spawn(async move {
            let mut connection = h2::server::handshake(theirs).await.unwrap();
            // Until the probe is gone.
            while connection.accept().await.is_some_and(|accepted| accepted.is_ok()) {}
        });
        assert_eq!(ask(ours).await.unwrap(), Health::Passing);
        server.await.unwrap();
        // A server of another protocol is none.
        let (ours, mut theirs) = tokio::io::duplex(4096);
        tokio::io::AsyncWriteExt::write_all(&mut theirs, b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        drop(theirs);
        assert!(ask(ours).await.is_err());
    }
}
