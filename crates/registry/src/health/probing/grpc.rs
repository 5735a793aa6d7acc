//! The gRPC probe: `grpc.health.v1.Health/Check`, over HTTP/2, in clear or over TLS.

use std::io;

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::model::Health;

/// Maximum length of an answer: a message of two bytes, and its frame.
const LONGEST: usize = 1024;
/// Length of a frame's header: the compression flag, and the message's length.
const FRAME: usize = 5;

/// A guard that aborts a task when dropped.
pub(super) struct Ending(pub(super) AbortHandle);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sends the request over `stream`; `secure` is true if the stream uses TLS already.
pub(super) async fn ask(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    secure: bool,
    target: &str,
    service: &str,
) -> io::Result<Health> {
    let io = TokioIo::new(stream);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.map_err(io::Error::other)?;
    // The probe's time limit drops this.
    let _connection = Ending(tokio::spawn(connection).abort_handle());
    let scheme = if secure { "https" } else { "http" };
    let request = hyper::Request::post(format!("{scheme}://{target}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(question(service)))
        .map_err(io::Error::other)?;
    let response = sender.send_request(request).await.map_err(io::Error::other)?;
    let refused =
        |headers: &hyper::HeaderMap| headers.get("grpc-status").is_some_and(|status| status.as_bytes() != b"0");
    if response.status() != hyper::StatusCode::OK || refused(response.headers()) {
        return Ok(Health::Critical);
    }
    let body = Limited::new(response.into_body(), LONGEST).collect().await.map_err(io::Error::other)?;
    if body.trailers().is_some_and(refused) {
        return Ok(Health::Critical);
    }
    Ok(health(&body.to_bytes()))
}

/// Encodes the request's message in its frame.
fn question(service: &str) -> Bytes {
    let message = HealthCheckRequest { service: service.to_owned() }.encode_to_vec();
    let mut framed = BytesMut::with_capacity(FRAME + message.len());
    framed.put_u8(0);
    framed.put_u32(message.len() as u32);
    framed.put_slice(&message);
    framed.freeze()
}

fn health(body: &[u8]) -> Health {
    let message =
        body.get(FRAME..).filter(|_| body[0] == 0).and_then(|message| HealthCheckResponse::decode(message).ok());
    match message {
        Some(answer) if answer.status == i32::from(ServingStatus::Serving) => Health::Passing,
        _ => Health::Critical,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        for (body, expected) in [
            (&b"\0\0\0\0\x02\x08\x01"[..], Health::Passing),
            (b"\0\0\0\0\x02\x08\x02", Health::Critical),
            (b"\0\0\0\0\0", Health::Critical),
            (b"\x01\0\0\0\x02\x08\x01", Health::Critical),
            (b"\0\0\0\0\x02\xff\xff", Health::Critical),
            (b"", Health::Critical),
        ] {
            assert_eq!(health(body), expected, "{body:?}");
        }
        assert_eq!(&question("a")[..], b"\0\0\0\0\x03\x0a\x01a");
    }
}
