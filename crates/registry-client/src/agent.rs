//! `kingpost registry agent`: keeps the lease of the host that it runs on.
//!
//! The lease is a check of the host's node with Consul's own name, which the registry lets expire like any other: when the host is gone, every
//! instance on it is critical, whether or not it has checks of its own.

use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::{Method, StatusCode};
use process::http::{Remote, segment};
use process::{Failure, StopSignals, systemd, terminal};
use serde_json::{Value, json};
use tokio::time::MissedTickBehavior;

/// Id of the check; Consul's agents have it for each node.
const CHECK: &str = "serfHealth";
/// Longest reason of a refusal that is read, in bytes.
const LONGEST_REASON: usize = 4096;
/// Longest time for a request, as a share of the lease, so that a request that hangs does not end it.
const PATIENCE: u32 = 3;

/// The lease of this host in one namespace.
struct Lease<'a> {
    remote: &'a Remote,
    namespace: &'a str,
    ttl: Duration,
}

/// The answer to a renewal.
#[derive(Debug, PartialEq, Eq)]
enum Renewed {
    Kept,
    /// The registry has no such lease, for instance because somebody removed it.
    Unknown,
}

/// Keeps the lease until a signal ends the process. The lease then ends after its time, unless another agent goes on with it.
pub(super) async fn run(remote: &Remote, namespace: &str, ttl: Duration) -> Result<(), Failure> {
    let mut stop = StopSignals::new()?;
    let lease = Lease { remote, namespace, ttl };
    tokio::select! {
        kept = lease.keep() => kept,
        _ = stop.next() => {
            terminal::note(format_args!("the lease of this host ends in {}, unless an agent goes on with it", humantime::format_duration(ttl)));
            Ok(())
        }
    }
}

impl Lease<'_> {
    async fn keep(&self) -> Result<(), Failure> {
        // What is refused at first will not be taken later.
        self.register().await?;
        terminal::note(format_args!("the lease of this host is kept, of {}", humantime::format_duration(self.ttl)));
        systemd::ready();
        let mut beats = tokio::time::interval(self.ttl / PATIENCE);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_failing = false;
        loop {
            beats.tick().await;
            let kept = match self.renew().await {
                Ok(Renewed::Unknown) => self.register().await,
                Ok(Renewed::Kept) => Ok(()),
                Err(failure) => Err(failure),
            };
            match kept {
                Err(failure) if !is_failing => {
                    is_failing = true;
                    terminal::note(format_args!("the lease of this host cannot be kept; trying again: {failure}"));
                }
                Ok(()) if is_failing => {
                    is_failing = false;
                    terminal::note("the lease of this host is kept again");
                }
                _ => {}
            }
        }
    }

    async fn register(&self) -> Result<(), Failure> {
        let check = json!({
            "CheckID": CHECK,
            "Name": "Serf Health Status",
            "Notes": "lease of the host, kept by kingpost registry agent",
            "TTL": humantime::format_duration(self.ttl).to_string().replace(' ', ""),
            "Status": "passing",
        });
        let (status, reason) = self.put("register", Some(&check)).await?;
        match status.is_success() {
            true => Ok(()),
            false => Err(refused(status, &reason)),
        }
    }

    async fn renew(&self) -> Result<Renewed, Failure> {
        let (status, reason) = self.put(&format!("pass/{CHECK}"), None).await?;
        match status {
            StatusCode::NOT_FOUND => Ok(Renewed::Unknown),
            status if status.is_success() => Ok(Renewed::Kept),
            status => Err(refused(status, &reason)),
        }
    }

    /// Sends a request about checks; returns the status and the reason of a refusal.
    async fn put(&self, what: &str, body: Option<&Value>) -> Result<(StatusCode, String), Failure> {
        let path = format!("/v1/agent/check/{what}?ns={}", segment(self.namespace));
        let whole = async {
            let response = self.remote.send(Method::PUT, &path, body).await?;
            let status = response.status();
            let reason = Limited::new(response.into_body(), LONGEST_REASON).collect().await;
            let reason = reason.map(|reason| String::from_utf8_lossy(&reason.to_bytes()).trim().to_owned());
            Ok((status, reason.unwrap_or_default()))
        };
        let limit = self.ttl / PATIENCE;
        let late = || {
            let limit = humantime::format_duration(limit);
            Err(Failure::runtime(format!("the registry did not answer within {limit}")))
        };
        tokio::time::timeout(limit, whole).await.unwrap_or_else(|_| late())
    }
}

fn refused(status: StatusCode, reason: &str) -> Failure {
    let failure = Failure::runtime(format!("the registry refused the lease of this host ({status}): {reason}"));
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => failure.advise(
            "give a token in KINGPOST_REGISTRY_TOKEN: one with the role write, or whose policies may write the node (node_prefix \"\")",
        ),
        _ => failure,
    }
}
