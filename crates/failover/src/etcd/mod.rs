//! A lock in etcd, over the JSON of its gateway: a key that lives as long as a lease is renewed.
//!
//! With a user, etcd issues a token for the password, which is sent with each request. Tokens expire (after five minutes without use, by default) and
//! are lost when a member restarts: on such a refusal the client logs in once more.

mod request;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use config::etcd::{Endpoint, EtcdConfig, Wrong};
use config::secret;
use process::Failure;
use request::{Refused, ask};

/// Longest time for one endpoint: less than the shortest life of a lock, so that a dead endpoint costs no lock.
const LIMIT: Duration = Duration::from_secs(1);
/// Prefix of Patroni's keys, whose presence is checked.
pub(super) const PATRONI: &str = "/service/";

/// Endpoints of one etcd.
#[derive(Clone)]
pub(super) struct Etcd {
    endpoints: Arc<[Endpoint]>,
    login: Option<Arc<Login>>,
    /// Index of the endpoint that answered last, which is asked first.
    answered: Arc<AtomicUsize>,
}

/// A user, and the token that etcd has issued for the password.
struct Login {
    user: String,
    password: String,
    token: Mutex<Option<String>>,
}

/// A lock that is held until `until`, unless it is renewed.
#[derive(Debug)]
pub(super) struct Lock {
    lease: String,
    ttl: Duration,
    /// Time of expiry by this machine's clock, a little before that of etcd.
    pub(super) until: Instant,
}

impl Lock {
    pub(super) fn copy(&self) -> Lock {
        Lock { lease: self.lease.clone(), ttl: self.ttl, until: self.until }
    }
}

impl Etcd {
    /// Makes a client from the configuration, reading its files. `endpoints`: those of the command line, separated by commas; empty: those of the
    /// configuration.
    ///
    /// # Errors
    /// An endpoint is invalid, a file is unusable, or there are no endpoints.
    pub(super) fn new(config: &EtcdConfig, endpoints: &str) -> Result<Etcd, Failure> {
        let given = endpoints.split(',').map(str::trim).filter(|endpoint| !endpoint.is_empty());
        let mut config = config.clone();
        if !endpoints.is_empty() {
            config.endpoints = given.map(str::to_owned).collect();
        }
        let wrong = |(key, why): Wrong| Failure::config(format!("failover.etcd.{key}: {why}"));
        let endpoints = config.endpoints().map_err(wrong)?;
        if endpoints.is_empty() {
            return Err(Failure::config("no endpoint of etcd is given")
                .advise("say --etcd https://etcd1:2379, or set endpoints in [failover.etcd]"));
        }
        let password = secret(config.password.as_ref(), config.password_file.as_deref())?;
        let login = password.map(|password| Arc::new(Login { user: config.user, password, token: Mutex::default() }));
        Ok(Etcd { endpoints: endpoints.into(), login, answered: Arc::default() })
    }

    /// Takes the lock if nobody has it.
    ///
    /// # Errors
    /// No endpoint gives a valid answer.
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
            // The lease ends by itself; revoking it is tidier.
            let _ = self.ask("/v3/lease/revoke", &json!({ "ID": lease })).await;
            return taken.map(|_| None);
        }
        Ok(Some(Lock { lease, ttl, until: end(asked, ttl) }))
    }

    /// Renews a lock.
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

    /// Releases a lock.
    pub(super) async fn unlock(&self, lock: &Lock) {
        // On failure it ends by itself.
        let _ = self.ask("/v3/lease/revoke", &json!({ "ID": lock.lease })).await;
    }

    /// Returns the keys that begin with `prefix`.
    ///
    /// # Errors
    /// No endpoint gives a valid answer.
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

    /// Checks that each endpoint accepts this program, and lets it see the keys that it needs. Otherwise the fault of an endpoint that is never
    /// asked, because another one answers, could stay unnoticed.
    ///
    /// # Errors
    /// The error of each endpoint that fails.
    pub(super) async fn check(&self, key: &str) -> Result<(), String> {
        let mut failures = Vec::new();
        for index in 0..self.endpoints.len() {
            let endpoint = Arc::from([self.endpoints[index].clone()]);
            let alone = Etcd { endpoints: endpoint, login: self.login.clone(), answered: Arc::default() };
            for prefix in [key, PATRONI] {
                if let Err(why) = alone.keys(prefix).await {
                    failures.push(why);
                    break;
                }
            }
        }
        if failures.is_empty() { Ok(()) } else { Err(failures.join("\n  ")) }
    }

    /// Asks one endpoint after the other, logged in if there is a user.
    async fn ask(&self, path: &str, body: &Value) -> Result<Value, String> {
        let Some(login) = &self.login else { return self.ask_with(path, body, None).await.map_err(|why| why.text) };
        let known = login.token();
        let token = match &known {
            Some(token) => token.clone(),
            None => self.log_in(login).await?,
        };
        match self.ask_with(path, body, Some(&token)).await {
            // Only for an earlier token: the refusal of a new one is final.
            Err(why) if why.is_for_the_token && known.is_some() => {
                let token = self.log_in(login).await?;
                self.ask_with(path, body, Some(&token)).await
            }
            other => other,
        }
        .map_err(|why| why.text)
    }

    /// Obtains a token from etcd.
    async fn log_in(&self, login: &Login) -> Result<String, String> {
        let body = json!({ "name": login.user, "password": login.password });
        let answer = self.ask_with("/v3/auth/authenticate", &body, None).await;
        let answer = answer.map_err(|why| format!("cannot log in as {:?}: {}", login.user, why.text))?;
        let token = answer["token"].as_str().ok_or("etcd gives no token")?.to_owned();
        *login.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.clone());
        Ok(token)
    }

    async fn ask_with(&self, path: &str, body: &Value, token: Option<&str>) -> Result<Value, Refused> {
        let mut failures = Vec::new();
        let first = self.answered.load(Ordering::Relaxed);
        for index in (0..self.endpoints.len()).map(|index| (first + index) % self.endpoints.len()) {
            let endpoint = &self.endpoints[index];
            match tokio::time::timeout(LIMIT, ask(endpoint, path, body, token)).await {
                Ok(Ok(answer)) => {
                    self.answered.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                // Another member would give the same answer.
                Ok(Err(why)) if why.is_for_the_token => return Err(why),
                Ok(Err(why)) => failures.push(format!("etcd at {endpoint}: {}", why.text)),
                Err(_) => failures.push(format!("etcd at {endpoint}: no answer within {LIMIT:?}")),
            }
        }
        Err(Refused { text: failures.join("; "), is_for_the_token: false })
    }
}

impl Login {
    fn token(&self) -> Option<String> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Computes the expiry: nine tenths of the agreed time from the moment of the request, as clocks run differently.
fn end(asked: Instant, ttl: Duration) -> Instant {
    asked + ttl * 9 / 10
}

fn encode(text: &str) -> String {
    STANDARD.encode(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn config(endpoints: &[&str]) -> EtcdConfig {
        EtcdConfig { endpoints: endpoints.iter().map(|text| (*text).to_owned()).collect(), ..EtcdConfig::default() }
    }

    #[test]
    fn endpoints_of_the_command_line_come_first() {
        let both = Etcd::new(&config(&["http://a:1"]), "b:2, c:3").unwrap();
        assert_eq!(both.endpoints.iter().map(ToString::to_string).collect::<Vec<_>>(), ["http://b:2", "http://c:3"]);
        assert!(Etcd::new(&config(&[]), "").is_err());
    }
}
