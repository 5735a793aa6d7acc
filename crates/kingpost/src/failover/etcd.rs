//! A lock in etcd, over the JSON of its gateway: a key that lives as long as a lease is kept alive.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

/// Longest answer that is read.
const LARGEST: usize = 1 << 20;
/// Longest time for one endpoint: less than the shortest life of a lock, so that an endpoint that is gone costs none.
const LIMIT: Duration = Duration::from_secs(1);

/// Some endpoints of one etcd.
#[derive(Debug, Clone)]
pub(super) struct Etcd {
    endpoints: Vec<String>,
    /// The one that answered last is asked first.
    answered: Arc<AtomicUsize>,
}

/// A lock that is held until `until`, unless it is kept.
#[derive(Debug)]
pub(super) struct Lock {
    lease: String,
    ttl: Duration,
    /// By this machine's clock, and a little before etcd's own end.
    pub(super) until: Instant,
}

impl Lock {
    pub(super) fn copy(&self) -> Lock {
        Lock { lease: self.lease.clone(), ttl: self.ttl, until: self.until }
    }
}

impl Etcd {
    /// `host:port` or `http://host:port`, with commas in between.
    ///
    /// # Errors
    /// It is none of these.
    pub(super) fn new(text: &str) -> Result<Etcd, String> {
        let mut endpoints = Vec::new();
        for endpoint in text.split(',').map(str::trim).filter(|endpoint| !endpoint.is_empty()) {
            let address = endpoint.strip_prefix("http://").unwrap_or(endpoint).trim_end_matches('/');
            let port =
                address.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
            if !matches!(port, Some(Ok(_))) || address.contains('/') {
                return Err(format!(
                    "{endpoint:?} is no endpoint of etcd: expected http://host:port (TLS is not spoken)"
                ));
            }
            endpoints.push(address.to_owned());
        }
        if endpoints.is_empty() {
            return Err("no endpoint of etcd is given".into());
        }
        Ok(Etcd { endpoints, answered: Arc::default() })
    }

    /// Takes the lock if nobody has it.
    ///
    /// # Errors
    /// No endpoint answers as it should.
    pub(super) async fn lock(&self, key: &str, owner: &str, ttl: Duration) -> Result<Option<Lock>, String> {
        let asked = Instant::now();
        let granted = self.ask("/v3/lease/grant", &json!({ "TTL": ttl.as_secs().max(2).to_string() })).await?;
        let lease = granted["ID"].as_str().ok_or("etcd grants no lease")?.to_owned();
        let body = json!({
            "compare": [{ "key": encode(key), "target": "CREATE", "result": "EQUAL", "create_revision": "0" }],
            "success": [{ "request_put": { "key": encode(key), "value": encode(owner), "lease": lease } }],
        });
        let taken = self.ask("/v3/kv/txn", &body).await;
        if !taken.as_ref().is_ok_and(|answer| answer["succeeded"] == true) {
            // The lease ends by itself; sooner is tidier.
            let _ = self.ask("/v3/lease/revoke", &json!({ "ID": lease })).await;
            return taken.map(|_| None);
        }
        Ok(Some(Lock { lease, ttl, until: end(asked, ttl) }))
    }

    /// Keeps a lock.
    ///
    /// # Errors
    /// It is lost, or etcd does not answer: it holds until `until` all the same.
    pub(super) async fn keep(&self, lock: &mut Lock) -> Result<(), String> {
        let asked = Instant::now();
        let answer = self.ask("/v3/lease/keepalive", &json!({ "ID": lock.lease })).await?;
        let left = answer["result"]["TTL"].as_str().and_then(|ttl| ttl.parse::<u64>().ok()).unwrap_or(0);
        if left == 0 {
            lock.until = asked;
            return Err("the lease has ended".into());
        }
        lock.until = end(asked, lock.ttl.min(Duration::from_secs(left)));
        Ok(())
    }

    /// Gives a lock back.
    pub(super) async fn unlock(&self, lock: &Lock) {
        // If it cannot be given back, it ends by itself.
        let _ = self.ask("/v3/lease/revoke", &json!({ "ID": lock.lease })).await;
    }

    /// Keys that begin with `prefix`.
    ///
    /// # Errors
    /// No endpoint answers as it should.
    pub(super) async fn keys(&self, prefix: &str) -> Result<Vec<String>, String> {
        let mut end = prefix.as_bytes().to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        let body =
            json!({ "key": encode(prefix), "range_end": STANDARD.encode(&end), "keys_only": true, "limit": "1000" });
        let answer = self.ask("/v3/kv/range", &body).await?;
        let keys = answer["kvs"].as_array().into_iter().flatten();
        let key = |entry: &Value| String::from_utf8(STANDARD.decode(entry["key"].as_str()?).ok()?).ok();
        Ok(keys.filter_map(key).collect())
    }

    /// Asks one endpoint after the other.
    async fn ask(&self, path: &str, body: &Value) -> Result<Value, String> {
        let mut failures = Vec::new();
        let first = self.answered.load(Ordering::Relaxed);
        for index in (0..self.endpoints.len()).map(|index| (first + index) % self.endpoints.len()) {
            let endpoint = &self.endpoints[index];
            match tokio::time::timeout(LIMIT, ask(endpoint, path, body)).await {
                Ok(Ok(answer)) => {
                    self.answered.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                Ok(Err(why)) => failures.push(format!("etcd at {endpoint}: {why}")),
                Err(_) => failures.push(format!("etcd at {endpoint}: no answer within {LIMIT:?}")),
            }
        }
        Err(failures.join("; "))
    }
}

/// A tenth less than what was agreed, from before it was asked for: clocks run differently.
fn end(asked: Instant, ttl: Duration) -> Instant {
    asked + ttl * 9 / 10
}

fn encode(text: &str) -> String {
    STANDARD.encode(text)
}

async fn ask(endpoint: &str, path: &str, body: &Value) -> Result<Value, String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let stream = TcpStream::connect(endpoint).await.map_err(|error| failed(&error))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
    tokio::spawn(async move {
        // An error shows at the request.
        let _ = connection.await;
    });
    let request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(HOST, endpoint)
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body.to_string())))
        .map_err(|error| failed(&error))?;
    let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
    let status = response.status();
    let bytes = Limited::new(response.into_body(), LARGEST).collect().await.map_err(|error| failed(&error))?.to_bytes();
    let answer: Value = serde_json::from_slice(&bytes).map_err(|error| format!("{status}, and no JSON: {error}"))?;
    if status.is_success() { Ok(answer) } else { Err(format!("{status}: {}", answer["error"])) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        for (text, good) in [
            ("127.0.0.1:2379", true),
            ("http://a:2379,http://b:2379/", true),
            ("https://a:1", false),
            ("a", false),
            ("", false),
            ("a:1/x", false),
        ] {
            assert_eq!(Etcd::new(text).is_ok(), good, "{text}");
        }
    }
}
