//! One request to an endpoint of etcd.

use config::etcd::Endpoint;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request};
use process::http::{Broken, exchange};
use serde_json::Value;

/// Longest answer read.
const LARGEST: usize = 1 << 20;
/// Most characters of a non-JSON answer in an error.
const LONGEST: usize = 200;

/// The reason for a missing answer.
pub(super) struct Refused {
    /// Text of the reason, without secrets.
    pub(super) text: String,
    /// True if the token is unknown (any more): it has expired, or the member was restarted.
    pub(super) is_for_the_token: bool,
}

/// Sends one request on its own connection, and reads the answer.
pub(super) async fn ask(endpoint: &Endpoint, path: &str, body: &Value, token: Option<&str>) -> Result<Value, Refused> {
    if endpoint.is_secure && endpoint.tls.is_none() {
        return Err(Refused::because("TLS is not set up".into()));
    }
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(HOST, &endpoint.address)
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body.to_string())))?;
    if let Some(token) = token {
        let mut value = HeaderValue::from_str(token).map_err(|_| Refused::because("its token is odd".into()))?;
        value.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, value);
    }
    let response = exchange(&endpoint.address, endpoint.tls.as_ref(), request).await.map_err(broken)?;
    let status = response.status();
    let bytes = Limited::new(response.into_body(), LARGEST).collect().await?.to_bytes();
    match serde_json::from_slice(&bytes) {
        Ok(answer) if status.is_success() => Ok(answer),
        Ok(answer) => Err(refused(status.as_u16(), &answer)),
        Err(_) => Err(not_json(status.as_u16(), &bytes)),
    }
}

/// Converts an error answer. etcd sends `{"error": "etcdserver: invalid auth token", "code": 16}`, later versions add `message`.
fn refused(status: u16, answer: &Value) -> Refused {
    let text = answer["message"].as_str().or(answer["error"].as_str()).unwrap_or("no reason given");
    // UNAUTHENTICATED of gRPC; or the users have changed since the token was issued.
    let is_for_the_token =
        answer["code"] == 16 || text.contains("invalid auth token") || text.contains("revision of auth store is old");
    let advice = match text {
        text if text.contains("permission denied") => {
            ": the user needs a role with readwrite on /kingpost/failover/ and read on /service/"
        }
        text if text.contains("user name is empty") => {
            ": access control is on, so set user and password_file in [failover.etcd]"
        }
        _ => "",
    };
    Refused { text: format!("{text} (status {status}){advice}"), is_for_the_token }
}

/// Converts an answer that is not JSON, from another program or from etcd's gateway itself.
fn not_json(status: u16, bytes: &[u8]) -> Refused {
    let text: String = String::from_utf8_lossy(bytes).chars().filter(|c| !c.is_control()).take(LONGEST).collect();
    let advice = match text.contains("CommonName") {
        true => ": where access control is on, the certificate of cert_file must not have a common name",
        false => "",
    };
    Refused::because(format!("{text:?} (status {status}){advice}"))
}

/// Converts an error of the connection or of HTTP; one of TLS as the other connections describe it.
fn broken(broken: Broken) -> Refused {
    match broken {
        Broken::Reach(error) => error.into(),
        Broken::Secure(error) => Refused::because(format!("TLS: {}", tls::explain(error))),
        Broken::Talk(error) | Broken::Ask(error) => error.into(),
    }
}

impl Refused {
    fn because(text: String) -> Refused {
        Refused { text, is_for_the_token: false }
    }
}

/// Errors of the connection, of HTTP, or of a too long answer.
impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Refused {
    fn from(error: E) -> Refused {
        let error = error.into();
        let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
        Refused::because(format!("{error}{source}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn refusals() {
        for (answer, token, says) in [
            (json!({ "error": "etcdserver: invalid auth token", "code": 16 }), true, "invalid auth token (status 401)"),
            (json!({ "error": "etcdserver: revision of auth store is old", "code": 3 }), true, "is old"),
            (json!({ "error": "etcdserver: permission denied", "code": 7 }), false, "readwrite on /kingpost/failover/"),
            (json!({ "error": "etcdserver: user name is empty", "code": 3 }), false, "set user"),
            (
                json!({ "code": 3, "message": "etcdserver: authentication failed, invalid user ID or password" }),
                false,
                "invalid user ID",
            ),
            (json!("odd"), false, "no reason given"),
        ] {
            let why = refused(401, &answer);
            assert_eq!(why.is_for_the_token, token, "{answer}");
            assert!(why.text.contains(says), "{answer}: {}", why.text);
        }
        let gateway = not_json(
            400,
            b"CommonName of client sending a request against gateway will be ignored and not used as expected\n",
        );
        assert!(gateway.text.contains("must not have a common name") && !gateway.is_for_the_token, "{}", gateway.text);
        assert!(not_json(200, &[b'x'; 5000]).text.len() < 300);
    }
}
