//! A lock in Kingpost's registry, over Consul's API: a key that a session holds, which lives for as long as it is renewed. A Consul works as well.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Limited};
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use crate::args::WatchArgs;
use process::Failure;
use process::http::{Remote, segment};

/// Longest answer read.
const LARGEST: usize = 1 << 20;
/// Longest time for one node of the registry, so that a dead one costs no lock.
const LIMIT: Duration = Duration::from_secs(1);

/// Nodes of one registry.
#[derive(Clone)]
pub(super) struct Sessions {
    nodes: Vec<Remote>,
    /// Index of the node that answered last, which is asked first.
    answered: Arc<AtomicUsize>,
}

/// A lock that is held until `until`, unless it is renewed.
#[derive(Clone, Debug)]
pub(super) struct Lock {
    session: String,
    ttl: Duration,
    /// Time of expiry by this machine's clock, a little before that of the session; the registry waits for twice that.
    pub(super) until: Instant,
}

impl Sessions {
    /// Parses addresses, `http://host:port` or `https://host:port`, separated by commas.
    ///
    /// # Errors
    /// An address is invalid, or a file of TLS or of the token is unusable.
    pub(super) fn of_watch(text: &str, args: &WatchArgs) -> Result<Sessions, Failure> {
        let token = match &args.registry_token_file {
            None => args.registry_token.clone(),
            Some(file) => {
                let text = std::fs::read_to_string(file)
                    .map_err(|error| Failure::config(format!("cannot read {}: {error}", file.display())))?;
                Some(text.trim().to_owned())
            }
        };
        let urls = text.split(',').map(str::trim).filter(|url| !url.is_empty());
        Sessions::new(urls, token, args.registry_ca.as_deref())
    }

    /// Prepares access to the nodes of a registry; connects to nobody.
    ///
    /// # Errors
    /// An address is invalid, a file of TLS is unusable, or a token would cross the network in clear.
    pub(super) fn new<'a>(
        urls: impl Iterator<Item = &'a str>,
        token: Option<String>,
        ca: Option<&Path>,
    ) -> Result<Sessions, Failure> {
        let node = |url| Remote::new(url, token.clone())?.secured(ca, None, None);
        let nodes = urls.map(node).collect::<Result<Vec<Remote>, Failure>>()?;
        if nodes.is_empty() {
            return Err(Failure::config("no node of the registry is given"));
        }
        if token.is_some() && !nodes.iter().all(Remote::is_private) {
            return Err(Failure::config(
                "a token is not sent in clear over the network: use https:// for the registry",
            ));
        }
        Ok(Sessions { nodes, answered: Arc::default() })
    }

    /// Checks that a session with this time to live is granted: creates one, and ends it.
    ///
    /// # Errors
    /// The registry's refusal; or no node answers.
    pub(super) async fn would_grant(&self, ttl: Duration) -> Result<(), String> {
        let tried = self.begin("kingpost: a trial", ttl).await?;
        self.unlock(&tried).await;
        Ok(())
    }

    /// Creates a session, which holds nothing yet.
    async fn begin(&self, owner: &str, ttl: Duration) -> Result<Lock, String> {
        let asked = Instant::now();
        let session = json!({
            "Name": owner, "TTL": format!("{}ms", ttl.as_millis()), "Behavior": "delete", "LockDelay": "0s", "Checks": [],
        });
        let (_, made) = self.ask(Method::PUT, "/v1/session/create", Some(&session)).await?;
        let session = made["ID"].as_str().ok_or("the registry makes no session")?.to_owned();
        Ok(Lock { session, ttl, until: end(asked, ttl) })
    }

    /// Takes the lock if nobody has it.
    ///
    /// # Errors
    /// No node gives a valid answer.
    pub(super) async fn lock(&self, key: &str, owner: &str, ttl: Duration) -> Result<Option<Lock>, String> {
        let lock = self.begin(owner, ttl).await?;
        let path = format!("/v1/kv/{}?acquire={}", path(key), lock.session);
        let taken = self.ask(Method::PUT, &path, Some(&json!(owner))).await;
        if !taken.as_ref().is_ok_and(|(_, answer)| *answer == true) {
            // The session ends by itself; ending it is tidier.
            self.unlock(&lock).await;
            return taken.map(|_| None);
        }
        Ok(Some(lock))
    }

    /// Renews a lock.
    ///
    /// # Errors
    /// It is lost, or no node answers: it holds until `until` all the same.
    pub(super) async fn keep(&self, lock: &mut Lock) -> Result<(), String> {
        let asked = Instant::now();
        let (status, _) = self.ask(Method::PUT, &format!("/v1/session/renew/{}", lock.session), None).await?;
        if status == StatusCode::NOT_FOUND {
            lock.until = asked;
            return Err("the session has ended".into());
        }
        lock.until = end(asked, lock.ttl);
        Ok(())
    }

    /// Releases a lock.
    pub(super) async fn unlock(&self, lock: &Lock) {
        // On failure it ends by itself.
        let _ = self.ask(Method::PUT, &format!("/v1/session/destroy/{}", lock.session), None).await;
    }

    /// Returns the keys that begin with `prefix`. Here, and in Consul, keys begin without a slash; `prefix` and the returned keys have one.
    ///
    /// # Errors
    /// No node gives a valid answer.
    pub(super) async fn keys(&self, prefix: &str) -> Result<Vec<String>, String> {
        let (_, answer) = self.ask(Method::GET, &format!("/v1/kv/{}?keys&consistent", path(prefix)), None).await?;
        let keys = answer.as_array().into_iter().flatten().filter_map(Value::as_str);
        Ok(keys.map(|key| format!("/{key}")).collect())
    }

    /// Asks one node after the other; returns status 200 or 404, and the body as JSON.
    async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<(StatusCode, Value), String> {
        let mut failures = Vec::new();
        let first = self.answered.load(Ordering::Relaxed);
        for index in (0..self.nodes.len()).map(|index| (first + index) % self.nodes.len()) {
            match tokio::time::timeout(LIMIT, ask(&self.nodes[index], method.clone(), path, body)).await {
                Ok(Ok(answer)) => {
                    self.answered.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                Ok(Err(why)) => failures.push(why),
                Err(_) => failures.push(format!("no answer within {LIMIT:?}")),
            }
        }
        Err(format!("the registry: {}", failures.join("; ")))
    }
}

/// Computes the expiry: nine tenths of the agreed time from the moment of the request, as clocks run differently.
fn end(asked: Instant, ttl: Duration) -> Instant {
    asked + ttl * 9 / 10
}

/// Converts a key to a path, without the slash at its beginning.
fn path(key: &str) -> String {
    key.trim_start_matches('/').split('/').map(segment).collect::<Vec<_>>().join("/")
}

async fn ask(node: &Remote, method: Method, path: &str, body: Option<&Value>) -> Result<(StatusCode, Value), String> {
    let response = node.send(method, path, body).await.map_err(|failure| failure.to_string())?;
    let status = response.status();
    let bytes =
        Limited::new(response.into_body(), LARGEST).collect().await.map_err(|error| error.to_string())?.to_bytes();
    if status.is_success() || status == StatusCode::NOT_FOUND {
        return Ok((status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)));
    }
    Err(format!("{status}: {}", String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_as_paths() {
        for (key, expected) in [
            ("/kingpost/failover/main", "kingpost/failover/main"),
            ("/service/", "service/"),
            ("/a b/ä", "a%20b/%C3%A4"),
        ] {
            assert_eq!(path(key), expected);
        }
    }
}
