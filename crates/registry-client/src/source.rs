//! A proxy's list of servers from a service of a registry, instead of from the file. Only the list: the topology finds the primary, the live servers
//! and their positions by itself, as always.

use std::time::Duration;

use futures_util::future::select_all;
use hyper::Method;
use serde_json::Value;
use tokio::sync::watch;
use topology::{MOST_NODES, NodeConfig, RegistrySource};

use config::Config;
use process::Failure;
use process::http::{Remote, segment};

/// Longest wait of a request at the registry for a change.
const WAIT: &str = "20s";
/// Time between two attempts while no registry answers.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// Longest wait for the first list of a proxy that starts.
const FIRST: Duration = Duration::from_secs(30);

/// A list of servers that is kept up to date until it is dropped.
pub(crate) struct Source {
    pub lists: watch::Receiver<Vec<NodeConfig>>,
    task: tokio::task::AbortHandle,
}

impl Drop for Source {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Source {
    /// Starts to follow the list, and waits for the first one.
    ///
    /// # Errors
    /// No registry has given a list in time, or an address or file cannot be used.
    pub(crate) async fn start(from: &RegistrySource) -> Result<Source, Failure> {
        let asked = Asked::new(from)?;
        let (list, lists) = watch::channel(Vec::new());
        let task = tokio::spawn(follow(asked, list)).abort_handle();
        let mut source = Source { lists, task };
        let first = tokio::time::timeout(FIRST, source.lists.changed()).await;
        if !matches!(first, Ok(Ok(()))) {
            let (service, seconds) = (&from.service, FIRST.as_secs());
            let text = format!("no registry of cluster.from has named the nodes of {service:?} within {seconds} s");
            return Err(Failure::runtime(text).advise("the log says what each of them answered"));
        }
        Ok(source)
    }

    /// Returns the latest list.
    pub(crate) fn list(&mut self) -> Vec<NodeConfig> {
        self.lists.borrow_and_update().clone()
    }
}

/// The lists of all clusters of a process that are in a registry, by the clusters' names.
pub struct Sources(Vec<(String, Source)>);

impl Sources {
    /// Follows the lists of these clusters, and puts the first ones into the configuration.
    ///
    /// # Errors
    /// As for `Source::start`.
    pub async fn start(config: &mut Config) -> Result<Sources, Failure> {
        let mut sources = Vec::new();
        for cluster in std::iter::once(&mut config.cluster).chain(&mut config.clusters) {
            if !cluster.from.urls.is_empty() {
                let mut source = Source::start(&cluster.from).await?;
                cluster.nodes = source.list();
                sources.push((cluster.name.clone(), source));
            }
        }
        Ok(Sources(sources))
    }

    /// Waits for the next changed list and returns it with the cluster's name; never returns if there are no lists.
    pub async fn next(&mut self) -> (String, Vec<NodeConfig>) {
        let changes = self.0.iter_mut().map(|(name, source)| {
            Box::pin(async move {
                match source.lists.changed().await {
                    Ok(()) => (name.clone(), source.list()),
                    Err(_) => std::future::pending().await,
                }
            })
        });
        let changes: Vec<_> = changes.collect();
        if changes.is_empty() {
            return std::future::pending().await;
        }
        select_all(changes).await.0
    }
}

pub(crate) struct Asked {
    pub(crate) remotes: Vec<Remote>,
    path: String,
}

impl Asked {
    pub(crate) fn new(from: &RegistrySource) -> Result<Asked, Failure> {
        let remote = |url: &String| Remote::new(url, from.token.clone())?.secured(from.ca_file.as_deref(), None, None);
        let remotes = from.urls.iter().map(remote).collect::<Result<_, Failure>>()?;
        let path = format!("/v1/namespaces/{}/services/{}/instances", segment(&from.namespace), segment(&from.service));
        Ok(Asked { remotes, path })
    }
}

/// Follows the list at one registry until that does not answer, and then at the next.
async fn follow(asked: Asked, list: watch::Sender<Vec<NodeConfig>>) {
    let mut revision = None;
    let mut pause = PAUSE;
    for remote in asked.remotes.iter().cycle() {
        loop {
            // The first request to each registry has no revision, and is answered at once with the whole list.
            let path = match revision {
                Some(revision) => format!("{}?after={revision}&wait={WAIT}", asked.path),
                None => asked.path.clone(),
            };
            match remote.ask(Method::GET, &path, None).await {
                Ok(answer) => {
                    pause = PAUSE;
                    revision = answer["revision"].as_u64();
                    take(nodes(&answer), &list);
                    if revision.is_none() {
                        break;
                    }
                }
                Err(failure) => {
                    tracing::warn!("the cluster's nodes stay as they are: {failure}");
                    break;
                }
            }
        }
        revision = None;
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Takes over a list, but never an empty one: a registry that has lost everything must not take the servers away.
fn take(nodes: Vec<NodeConfig>, list: &watch::Sender<Vec<NodeConfig>>) {
    if nodes.is_empty() {
        tracing::warn!("the registry names no node of the cluster: the list stays as it is");
        return;
    }
    list.send_if_modified(|before| {
        let differs = *before != nodes;
        if differs {
            let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
            tracing::info!(nodes = names.join(", "), "the registry names the cluster's nodes");
            *before = nodes;
        }
        differs
    });
}

/// Returns the instances that can be nodes, by name. Health is not considered: this proxy may reach a server that a registry cannot. An isolated
/// instance is no node.
pub(crate) fn nodes(answer: &Value) -> Vec<NodeConfig> {
    let open = listed(answer).into_iter().filter(|listed| !listed.isolated);
    open.map(|listed| listed.node).collect()
}

/// A server that a registry lists.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// The server.
    pub node: NodeConfig,
    /// True if it is isolated: proxies leave it.
    pub isolated: bool,
}

/// Returns the instances that can be nodes, by name, also those that are isolated.
pub(crate) fn listed(answer: &Value) -> Vec<Listed> {
    let instances = answer["instances"].as_array().into_iter().flatten();
    let listed = |instance: &Value| Some(Listed { node: node(instance)?, isolated: instance["isolate"] == true });
    let mut all: Vec<Listed> = instances.filter_map(listed).collect();
    all.sort_by(|a, b| (a.isolated, &a.node.name).cmp(&(b.isolated, &b.node.name)));
    all.truncate(MOST_NODES);
    all
}

fn node(instance: &Value) -> Option<NodeConfig> {
    let host = instance["host"].as_str().filter(|host| !host.is_empty())?;
    let port = instance["port"].as_u64().filter(|port| (1..=65_535).contains(port))?;
    let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let weight = instance["weight"].as_u64().unwrap_or(100);
    Some(NodeConfig {
        weight: u32::try_from(weight).unwrap_or(u32::MAX),
        zone: instance["location"]["zone"].as_str().filter(|zone| !zone.is_empty()).map(str::to_owned),
        ..NodeConfig::new(instance["id"].as_str()?, address)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn instances_become_nodes() {
        let answer = json!({ "revision": 7, "instances": [
            { "id": "b", "host": "10.0.0.2", "port": 5432, "weight": 50, "health": "critical", "location": { "zone": "z1" } },
            { "id": "a", "host": "::1", "port": 5433 },
            { "id": "isolated", "host": "10.0.0.3", "port": 5432, "isolate": true },
            { "id": "no-port", "host": "10.0.0.4", "port": 0 },
            { "id": "no-host", "port": 1 },
        ]});
        let shown: Vec<_> =
            nodes(&answer).into_iter().map(|node| (node.name, node.address, node.weight, node.zone)).collect();
        let expected = [
            ("a".to_owned(), "[::1]:5433".to_owned(), 100, None),
            ("b".to_owned(), "10.0.0.2:5432".to_owned(), 50, Some("z1".to_owned())),
        ];
        assert_eq!(shown, expected);
        assert!(nodes(&json!({})).is_empty());
        let isolated: Vec<_> = listed(&answer).into_iter().map(|listed| (listed.node.name, listed.isolated)).collect();
        assert_eq!(isolated, [("a".to_owned(), false), ("b".to_owned(), false), ("isolated".to_owned(), true)]);
    }

    #[test]
    fn an_empty_list_is_not_believed_and_the_same_one_is_no_news() {
        let (list, mut lists) = watch::channel(Vec::new());
        let some = || nodes(&json!({ "instances": [{ "id": "a", "host": "h", "port": 1 }] }));
        take(some(), &list);
        assert!(lists.has_changed().unwrap());
        lists.borrow_and_update();
        take(some(), &list);
        take(Vec::new(), &list);
        assert!(!lists.has_changed().unwrap() && lists.borrow().len() == 1);
    }
}
