//! A small HTTP client for the registry's own API: one connection a request, with limits.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::address;
use crate::error::Failure;

/// Most bytes of an answer.
const LARGEST: usize = 256 << 20;
/// Longest time for a request, its answer included.
const LIMIT: Duration = Duration::from_secs(60);

/// The step at which a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The connection.
    #[error("{0}")]
    Reach(std::io::Error),
    /// The TLS handshake.
    #[error("{0}")]
    Secure(std::io::Error),
    /// The HTTP handshake.
    #[error("{0}")]
    Talk(hyper::Error),
    /// The request.
    #[error("{0}")]
    Ask(hyper::Error),
}

impl Broken {
    /// Returns the verb of the failed step, for messages.
    fn what(&self) -> &'static str {
        match self {
            Broken::Reach(_) => "reach",
            Broken::Secure(_) => "agree on TLS with",
            Broken::Talk(_) => "talk to",
            Broken::Ask(_) => "ask",
        }
    }
}

/// Sends a request over a connection of its own, with TLS if there is a target; returns the answer with its body unread.
pub async fn exchange(
    address: &str,
    tls: Option<&tls::Target>,
    request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>, Broken> {
    let stream = TcpStream::connect(address).await.map_err(Broken::Reach)?;
    let stream = tls::secured(stream, tls, &[b"http/1.1"]).await.map_err(Broken::Secure)?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(Broken::Talk)?;
    tokio::spawn(async move {
        // The request returns the error.
        let _ = connection.await;
    });
    sender.send_request(request).await.map_err(Broken::Ask)
}

/// Address of a registry, and how to reach it.
#[derive(Clone)]
pub struct Remote {
    /// `host:port`.
    address: String,
    token: Option<String>,
    /// True for `https://`.
    is_secure: bool,
    tls: Option<tls::Target>,
}

impl Remote {
    /// Parses the address of a registry.
    ///
    /// # Errors
    /// The address is not `http://host:port`, `https://host:port` or `host:port`.
    pub fn new(url: &str, token: Option<String>) -> Result<Remote, Failure> {
        let Some((is_secure, address)) = address::of_url(url) else {
            return Err(Failure::config(format!(
                "the registry's address is {url:?}: expected http://host:port or https://host:port"
            )));
        };
        Ok(Remote { address: address.to_owned(), token, is_secure, tls: None })
    }

    /// True if nobody on the network can read the traffic: it uses TLS, or stays within this machine.
    pub fn is_private(&self) -> bool {
        self.is_secure || address::is_loopback(&self.address)
    }

    /// Adds the files for TLS; reads none of them for an `http://` address.
    ///
    /// # Errors
    /// A file cannot be used, or the host is no name for a certificate.
    pub fn secured(self, ca: Option<&Path>, cert: Option<&Path>, key: Option<&Path>) -> Result<Remote, Failure> {
        if !self.is_secure {
            return Ok(self);
        }
        let config = tls::ConnectConfig {
            mode: tls::ConnectMode::VerifyFull,
            ca_file: Some(ca.unwrap_or_else(|| tls::system_authorities()).to_owned()),
            cert_file: cert.map(Path::to_owned),
            key_file: key.map(Path::to_owned),
            ..tls::ConnectConfig::default()
        };
        let connector = tls::Connector::new(&config).map_err(|error| {
            Failure::config(format!("TLS to the registry: {error}")).advise("--ca, --cert and --key name the files")
        })?;
        let host = address::host(&self.address);
        let target = connector.and_then(|connector| tls::Target::new(Arc::new(connector), host));
        let Some(target) = target else {
            return Err(Failure::config(format!("{host:?} is no name that a certificate can be for")));
        };
        Ok(Remote { tls: Some(target), ..self })
    }

    /// Sends a request; returns the answer with its body unread.
    pub async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Response<Incoming>, Failure> {
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            Failure::runtime(format!("cannot {what} the registry at {}: {error}", self.address))
                .advise("is it running? --url or KINGPOST_REGISTRY_URL name another one")
        };
        if self.is_secure && self.tls.is_none() {
            return Err(Failure::config("an https:// address needs --ca"));
        }
        let mut request = Request::builder().method(method).uri(path).header(HOST, &self.address);
        // Eureka answers in XML otherwise.
        request = request.header(ACCEPT, "application/json, text/event-stream");
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = body.map(ToString::to_string).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body))).map_err(|error| failed("ask", &error))?;
        exchange(&self.address, self.tls.as_ref(), request).await.map_err(|broken| failed(broken.what(), &broken))
    }

    /// Sends a request and reads the answer; `null` if it is not JSON.
    ///
    /// # Errors
    /// The registry cannot be reached, does not answer in time, or refuses.
    pub async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        let (status, answer) = self.answer(method, path, body).await?;
        if status.is_success() { Ok(answer) } else { Err(self.refusal(status, &answer)) }
    }

    /// Reads an object; None if there is none.
    ///
    /// # Errors
    /// As for [`ask`](Remote::ask).
    pub async fn find(&self, path: &str) -> Result<Option<Value>, Failure> {
        match self.answer(Method::GET, path, None).await? {
            (StatusCode::NOT_FOUND, _) => Ok(None),
            (status, answer) if status.is_success() => Ok(Some(answer)),
            (status, answer) => Err(self.refusal(status, &answer)),
        }
    }

    fn refusal(&self, status: StatusCode, answer: &Value) -> Failure {
        let why = answer["error"]["message"].as_str().unwrap_or("no reason given");
        Failure::runtime(format!("the registry at {} refused ({status}): {why}", self.address))
    }

    async fn answer(&self, method: Method, path: &str, body: Option<&Value>) -> Result<(StatusCode, Value), Failure> {
        let whole = async {
            let response = self.send(method, path, body).await?;
            let status = response.status();
            let bytes = Limited::new(response.into_body(), LARGEST)
                .collect()
                .await
                .map_err(|error| Failure::runtime(format!("the answer of {} broke off: {error}", self.address)))?
                .to_bytes();
            Ok((status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
        };
        tokio::time::timeout(LIMIT, whole).await.unwrap_or_else(|_| {
            Err(Failure::runtime(format!(
                "the registry at {} did not answer within {} s",
                self.address,
                LIMIT.as_secs()
            )))
        })
    }
}

/// Encodes a name as a segment of a path.
pub fn segment(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_segments() {
        for (url, good) in [
            ("http://127.0.0.1:8632", true),
            ("127.0.0.1:8632/", true),
            ("[::1]:1", true),
            ("https://a:1", true),
            ("a", false),
            (":1", false),
            ("a:b", false),
        ] {
            assert_eq!(Remote::new(url, None).is_ok(), good, "{url}");
        }
        assert_eq!(segment("a/b ä"), "a%2Fb%20%C3%A4");
    }
}
