//! Eureka's own servers, which this node tells what clients change here: a deployment moves from them to the registry, or back, server by server.
//!
//! ```text
//!  client ─▶ front ─tell─▶ backlog of each server ─next─▶ driver ──HTTP──▶ /eureka/peerreplication/batch
//!                               ▲ register there (404)        │
//!                               └──────── answered ◀──────────┘──▶ adopt newer data (409, /eureka/apps)
//! ```
//!
//! As the original's servers do, each node tells what its own clients asked of it, and nothing that another server replicated: so of several nodes on one
//! store one tells each change. Nothing here does I/O; a driver asks [`EurekaServers::next`] for requests, and passes their answers on.

mod backlog;
mod wire;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::Notify;

pub(super) use backlog::Action;
use backlog::{Backlog, Task, limit};
use wire::Verdict;

use super::changes;
use crate::{InstanceId, NamespaceName, Registry};

/// Path of the list of all instances, behind a server's address.
const LIST: &str = "apps";
/// Path of changes.
const CHANGES: &str = "peerreplication/batch/";
/// Header of a request that another server sends.
pub(super) const REPLICATION: &str = "x-netflix-discovery-replication";
/// Actions of a full batch: that of the original's server.
const BATCH: usize = 250;
/// Longest time for which the actions of a batch gather: that of the original's server.
const GATHER: Duration = Duration::from_millis(500);
/// Shortest and longest time before a failed request is tried again. A server that starts has all leases by a list, and needs renewals within one.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(4));

/// Eureka's own servers, beside this registry's nodes.
pub struct EurekaServers {
    registry: Registry,
    namespace: NamespaceName,
    servers: Vec<Server>,
}

#[derive(Debug)]
struct Server {
    name: String,
    state: Mutex<State>,
    /// Signalled when there is something to tell.
    told: Notify,
}

#[derive(Debug, Default)]
struct State {
    backlog: Backlog,
    /// Time at which the first action of the next batch came.
    first: Option<Instant>,
    /// Actions of the request under way.
    under_way: Vec<Task>,
    /// True once the server's instances were taken over.
    fetched: bool,
    /// Failed requests in a row.
    failures: u32,
    /// Time of the next request after a failure.
    retry: Option<Instant>,
    /// Reason of the last failure; None after a success.
    error: Option<String>,
    /// True after a request that succeeded, until one fails.
    reached: bool,
    sent: u64,
    refused: u64,
}

/// The next step of a server's driver.
#[derive(Debug, PartialEq, Eq)]
pub enum ServerStep {
    /// `GET` this path behind the server's address.
    Get(&'static str),
    /// `POST` JSON to this path behind the server's address.
    Post(&'static str, String),
    /// Wait for [`EurekaServers::told`], at most so long.
    Wait(Option<Duration>),
}

/// A server's answer: status and body, or the reason why there is none.
pub type ServerAnswer = Result<(u16, Vec<u8>), String>;

/// Status of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EurekaServer {
    /// Address, without a password.
    pub name: String,
    /// True if the last request succeeded.
    pub reached: bool,
    /// Reason of the last failure; None after a success.
    pub error: Option<String>,
    /// Instances whose changes have not been sent.
    pub waiting: usize,
    /// Changes sent since the start.
    pub sent: u64,
    /// Changes that the server refused.
    pub refused: u64,
    /// Changes that were given up because they came too late or were too many.
    pub lost: u64,
}

impl EurekaServers {
    /// Creates the servers, by their names, that replicate one namespace.
    pub fn new(registry: Registry, namespace: NamespaceName, names: Vec<String>) -> EurekaServers {
        let server = |name| Server { name, state: Mutex::default(), told: Notify::new() };
        EurekaServers { registry, namespace, servers: names.into_iter().map(server).collect() }
    }

    /// Adds a change of a client to what all servers are told.
    pub(super) fn tell(
        &self,
        namespace: &NamespaceName,
        action: Action,
        instance: &InstanceId,
        app: &str,
        client_id: &str,
    ) {
        if *namespace != self.namespace {
            return;
        }
        let now = Instant::now();
        let check = self.registry.instance(instance).and_then(|instance| instance.check.clone());
        let task = Task {
            action,
            instance: instance.clone(),
            app: super::app_name(app),
            client_id: client_id.to_owned(),
            until: limit(now, check.and_then(|check| check.time_to_live())),
        };
        for server in &self.servers {
            let mut state = server.state();
            state.push(task.clone(), now);
            drop(state);
            server.told.notify_one();
        }
    }

    /// Returns the next step of a server's driver; nothing for a server that does not exist.
    pub fn next(&self, server: usize, now: Instant) -> ServerStep {
        let Some(server) = self.servers.get(server) else { return ServerStep::Wait(None) };
        let mut state = server.state();
        match state.step(now) {
            Step::Wait(limit) => ServerStep::Wait(limit),
            Step::Fetch => ServerStep::Get(LIST),
            Step::Send(tasks) => {
                let change = |task: &Task| wire::change(task, self.registry.instance(&task.instance).as_deref());
                let (tasks, changes): (Vec<Task>, Vec<Value>) =
                    tasks.into_iter().filter_map(|task| change(&task).map(|change| (task, change))).unzip();
                if tasks.is_empty() {
                    return ServerStep::Wait(Some(Duration::ZERO));
                }
                state.under_way = tasks;
                ServerStep::Post(CHANGES, json!({ "replicationList": changes }).to_string())
            }
        }
    }

    /// Waits until there is something to tell a server.
    pub async fn told(&self, server: usize) {
        match self.servers.get(server) {
            Some(server) => server.told.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Takes a server's answer to the last request.
    pub async fn answered(&self, server: usize, answer: ServerAnswer) {
        let Some(server) = self.servers.get(server) else { return };
        let answer = answer.and_then(|(status, body)| match status {
            200..=299 => serde_json::from_slice::<Value>(&body).map_err(|error| format!("its answer: {error}")),
            status => Err(format!("it answered with status {status}")),
        });
        let now = Instant::now();
        let newer = match answer {
            Ok(body) => server.succeeded(&body, now),
            Err(why) => return server.failed(why, now),
        };
        for instance in newer {
            let adopted = match wire::instance(&instance) {
                Ok(sent) => changes::adopt(&self.registry, &self.namespace, &sent).await,
                Err(error) => Err(error),
            };
            if let Err(error) = adopted {
                tracing::warn!(server = server.name, %error, "cannot take an instance over from a Eureka server");
            }
        }
    }

    /// Returns the status of each server.
    pub fn status(&self) -> Vec<EurekaServer> {
        let status = |server: &Server| {
            let state = server.state();
            EurekaServer {
                name: server.name.clone(),
                reached: state.reached,
                error: state.error.clone(),
                waiting: state.backlog.len(),
                sent: state.sent,
                refused: state.refused,
                lost: state.backlog.lost(),
            }
        };
        self.servers.iter().map(status).collect()
    }
}

impl Server {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a success; returns the instances that the server knows better.
    fn succeeded(&self, body: &Value, now: Instant) -> Vec<Value> {
        let mut state = self.state();
        if state.failures > 0 {
            tracing::info!(server = self.name, "a Eureka server takes changes again");
        }
        state.succeeded(body, now)
    }

    fn failed(&self, why: String, now: Instant) {
        let mut state = self.state();
        if state.failures == 0 {
            tracing::warn!(server = self.name, why, "a Eureka server takes no changes; they are tried again");
        }
        state.failed(why, now);
    }
}

/// The next step, without its request.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Fetch,
    Send(Vec<Task>),
    Wait(Option<Duration>),
}

impl State {
    fn push(&mut self, task: Task, now: Instant) {
        self.first.get_or_insert(now);
        self.backlog.push(task);
    }

    fn step(&mut self, now: Instant) -> Step {
        let left = |until: Instant| until.saturating_duration_since(now);
        if let Some(retry) = self.retry.filter(|retry| *retry > now) {
            return Step::Wait(Some(left(retry)));
        }
        if !self.fetched {
            return Step::Fetch;
        }
        let Some(first) = self.first else { return Step::Wait(None) };
        if self.backlog.len() < BATCH && first + GATHER > now {
            return Step::Wait(Some(left(first + GATHER)));
        }
        let tasks = self.backlog.take(BATCH, now);
        self.first = (self.backlog.len() > 0).then_some(now);
        match tasks.is_empty() {
            true => Step::Wait(self.first.map(|_| Duration::ZERO)),
            false => Step::Send(tasks),
        }
    }

    fn succeeded(&mut self, body: &Value, now: Instant) -> Vec<Value> {
        (self.failures, self.retry, self.error, self.reached) = (0, None, None, true);
        let tasks = std::mem::take(&mut self.under_way);
        if tasks.is_empty() {
            self.fetched = true;
            return wire::instances(body).cloned().collect();
        }
        self.sent += tasks.len() as u64;
        let mut newer = Vec::new();
        for (number, task) in tasks.into_iter().enumerate() {
            let answer = &body["responseList"][number];
            match wire::verdict(task.action, answer["statusCode"].as_u64().unwrap_or(0)) {
                Verdict::Done => {}
                Verdict::Register => self.push(Task { action: Action::Register, ..task }, now),
                Verdict::Adopt => newer.push(answer["responseEntity"].clone()),
                Verdict::Refused => self.refused += 1,
            }
        }
        newer
    }

    fn failed(&mut self, why: String, now: Instant) {
        let wait = RETRY.0.saturating_mul(1 << self.failures.min(8)).min(RETRY.1);
        self.failures = self.failures.saturating_add(1);
        (self.retry, self.error, self.reached) = (Some(now + wait), Some(why), false);
        let tasks = std::mem::take(&mut self.under_way);
        if !tasks.is_empty() {
            self.backlog.put_back(tasks);
            self.first.get_or_insert(now);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::backlog::tests::task;
    use super::*;

    fn actions(step: Step) -> Vec<(Action, String)> {
        match step {
            Step::Send(tasks) => tasks.into_iter().map(|task| (task.action, task.client_id)).collect(),
            other => panic!("{other:?}"),
        }
    }

    /// Makes the next step, with the actions under way as a driver's request leaves them.
    fn sends(state: &mut State, now: Instant) -> Vec<(Action, String)> {
        let step = state.step(now);
        if let Step::Send(tasks) = &step {
            state.under_way.clone_from(tasks);
        }
        actions(step)
    }

    #[test]
    fn a_server_that_comes_and_goes() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let until = at(90_000);
        let mut state = State::default();
        assert_eq!(state.step(at(0)), Step::Fetch);
        // Until the first fetch nothing is sent, and each failure doubles the wait.
        for (now, wait) in [(0, 1000), (1000, 2000), (3000, 4000), (7000, 4000), (11_000, 4000)] {
            assert_eq!(state.step(at(now)), Step::Fetch);
            state.failed("refused".into(), at(now));
            assert_eq!(state.step(at(now)), Step::Wait(Some(Duration::from_millis(wait))));
        }
        assert!(!state.reached && state.error.is_some());
        let found = state.succeeded(&json!({ "applications": { "application": [{ "instance": [{}] }] } }), at(61_000));
        assert_eq!((found.len(), state.reached, &state.error), (1, true, &None));
        assert_eq!(state.step(at(61_000)), Step::Wait(None));
        // Actions gather.
        state.push(task(Action::Register, "a", until), at(62_000));
        state.push(task(Action::Heartbeat, "b", until), at(62_100));
        assert_eq!(state.step(at(62_100)), Step::Wait(Some(Duration::from_millis(400))));
        let sent = [(Action::Register, "a".to_owned()), (Action::Heartbeat, "b".to_owned())];
        assert_eq!(sends(&mut state, at(62_500)), sent);
        assert_eq!(state.step(at(62_500)), Step::Wait(None));
        // A batch that fails is sent again.
        state.failed("gone".into(), at(62_600));
        assert_eq!(sends(&mut state, at(63_600)), sent);
        // The server lacks b, and knows c better.
        let body = json!({ "responseList": [{ "statusCode": 200 }, { "statusCode": 404 }] });
        assert!(state.succeeded(&body, at(63_700)).is_empty());
        assert_eq!(sends(&mut state, at(64_200)), [(Action::Register, "b".to_owned())]);
        state.succeeded(&json!({ "responseList": [{ "statusCode": 500 }] }), at(64_300));
        state.push(task(Action::Heartbeat, "c", until), at(65_000));
        assert_eq!(sends(&mut state, at(66_000)).len(), 1);
        let body = json!({ "responseList": [{ "statusCode": 409, "responseEntity": { "hostName": "h" } }] });
        assert_eq!(state.succeeded(&body, at(66_000)), [json!({ "hostName": "h" })]);
        assert_eq!((state.sent, state.refused), (4, 1));
        // An answer that is too short leaves the rest refused.
        state.push(task(Action::Heartbeat, "c", until), at(67_000));
        assert_eq!(sends(&mut state, at(68_000)).len(), 1);
        state.succeeded(&json!({}), at(68_000));
        assert_eq!((state.sent, state.refused), (5, 2));
    }

    #[test]
    fn full_batches_do_not_wait() {
        let now = Instant::now();
        let until = now + Duration::from_secs(90);
        let mut state = State { fetched: true, ..State::default() };
        for number in 0..BATCH + 1 {
            state.push(task(Action::Heartbeat, &number.to_string(), until), now);
        }
        assert_eq!(sends(&mut state, now).len(), BATCH);
        assert_eq!(state.step(now), Step::Wait(Some(GATHER)));
        assert_eq!(sends(&mut state, now + GATHER).len(), 1);
        // What has become too old is not sent.
        state.push(task(Action::Heartbeat, "a", until), now);
        assert_eq!(state.step(until), Step::Wait(None));
        assert_eq!(state.backlog.lost(), 1);
    }
}
