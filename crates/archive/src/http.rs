//! HTTP for `object_store`: connections of hyper over this workspace's TLS, so that no second HTTP client or TLS library is linked.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::Uri;
use http::header::{HOST, HeaderValue};
use http_body_util::{BodyExt as _, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpService,
};
use tokio::net::TcpStream;

use crate::seal::LARGEST;

/// Most idle connections kept.
const IDLE: usize = 8;

/// Most bytes of an answer: an object, or a page of a listing.
const LARGEST_ANSWER: usize = LARGEST + (1 << 20);

/// A client of one service.
#[derive(Clone)]
pub(crate) struct Client(Arc<Inner>);

struct Inner {
    connector: Option<Arc<tls::Connector>>,
    timeout: Duration,
    idle: Mutex<Vec<(String, SendRequest<HttpRequestBody>)>>,
}

impl Client {
    /// Makes a client; `connector` is for `https` addresses.
    pub(crate) fn new(connector: Option<Arc<tls::Connector>>, timeout: Duration) -> Client {
        Client(Arc::new(Inner { connector, timeout, idle: Mutex::default() }))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

impl HttpConnector for Client {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        match tokio::time::timeout(self.0.timeout, self.0.exchange(request)).await {
            Ok(answered) => answered,
            Err(_) => {
                let late = io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {:?}", self.0.timeout));
                Err(HttpError::new(HttpErrorKind::Timeout, late))
            }
        }
    }
}

impl Inner {
    async fn exchange(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (mut parts, body) = request.into_parts();
        let wrong = |why: &'static str| {
            HttpError::new(HttpErrorKind::Unknown, io::Error::new(io::ErrorKind::InvalidInput, why))
        };
        let authority = parts.uri.authority().ok_or_else(|| wrong("the address has no host"))?.as_str().to_owned();
        let (origin, is_secure) = (parts.uri.clone(), parts.uri.scheme_str() == Some("https"));
        if !parts.headers.contains_key(HOST) {
            let host = HeaderValue::from_str(&authority).map_err(|_| wrong("the address has no valid host"))?;
            parts.headers.insert(HOST, host);
        }
        // HTTP/1.1 to a server itself names the path only.
        let path = parts.uri.path_and_query().cloned().unwrap_or_else(|| http::uri::PathAndQuery::from_static("/"));
        parts.uri = Uri::from(path);
        let mut sender = match self.take(&authority) {
            Some(sender) => sender,
            None => self.connect(&origin, is_secure).await?,
        };
        let response =
            sender.send_request(http::Request::from_parts(parts, body)).await.map_err(|error| failed(&error))?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, LARGEST_ANSWER).collect().await;
        let body: Bytes = body.map_err(|error| HttpError::new_boxed(HttpErrorKind::Interrupted, error))?.to_bytes();
        self.keep(authority, sender);
        Ok(HttpResponse::from_parts(parts, body.into()))
    }

    async fn connect(&self, uri: &Uri, is_secure: bool) -> Result<SendRequest<HttpRequestBody>, HttpError> {
        let refused = |error: io::Error| HttpError::new(HttpErrorKind::Connect, error);
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let port = uri.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
        let target = match (is_secure, &self.connector) {
            (false, _) => None,
            (true, Some(connector)) => {
                let target = tls::Target::new(Arc::clone(connector), host);
                Some(target.ok_or_else(|| refused(io::Error::other("no name that a certificate can be for")))?)
            }
            (true, None) => return Err(refused(io::Error::other("an https address without TLS"))),
        };
        let stream = TcpStream::connect((host, port)).await.map_err(refused)?;
        stream.set_nodelay(true).map_err(refused)?;
        let stream = tls::secured(stream, target.as_ref(), &[b"http/1.1"]).await.map_err(refused)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
        tokio::spawn(async move {
            // The request returns the error.
            let _ = connection.await;
        });
        Ok(sender)
    }

    fn take(&self, authority: &str) -> Option<SendRequest<HttpRequestBody>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // The service has closed these.
        idle.retain(|(_, sender)| sender.is_ready());
        let index = idle.iter().position(|(of, _)| of == authority)?;
        Some(idle.swap_remove(index).1)
    }

    fn keep(&self, authority: String, sender: SendRequest<HttpRequestBody>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE && !sender.is_closed() {
            idle.push((authority, sender));
        }
    }
}

/// Says whether a request may be sent again.
fn failed(error: &hyper::Error) -> HttpError {
    let kind = if error.is_timeout() {
        HttpErrorKind::Timeout
    } else if error.is_canceled() || error.is_closed() || error.is_incomplete_message() || error.is_body_write_aborted()
    {
        HttpErrorKind::Request
    } else {
        HttpErrorKind::Interrupted
    };
    HttpError::new(kind, io::Error::other(crate::store::causes(error)))
}
