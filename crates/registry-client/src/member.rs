//! One server's own entry in a registry: registration, the list of its peers, and its removal.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hyper::Method;
use serde_json::{Value, json};
use topology::{NodeConfig, RegistrySource};

use crate::source::{Asked, Listed, listed};
use process::Failure;
use process::address::split;
use process::http::segment;

/// A member of a service in a registry.
pub struct Member {
    asked: Asked,
    namespace: String,
    service: String,
}

/// The entry of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Name of the server.
    pub name: String,
    /// Address, host:port.
    pub address: String,
    /// `primary` or `replica`, or another state of its agent.
    pub role: String,
    /// Share of reads; 0 takes reads off it.
    pub weight: u32,
    /// Zone of the server.
    pub zone: Option<String>,
}

/// The right of one node to make a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Name of the node.
    pub name: String,
    /// Random id of the node.
    pub id: String,
}

/// The value of a key in the registry.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// Index of the last change.
    pub index: u64,
    /// The value.
    pub value: Value,
}

impl Member {
    /// Prepares access to the registry; connects to nobody.
    ///
    /// # Errors
    /// An address or a file cannot be used.
    pub fn new(from: &RegistrySource) -> Result<Member, Failure> {
        Ok(Member { asked: Asked::new(from)?, namespace: from.namespace.clone(), service: from.service.clone() })
    }

    /// Registers the entry; the registry does not write an unchanged one.
    ///
    /// # Errors
    /// No node of the registry answers, or the first that does refuses.
    pub async fn register(&self, entry: &Entry) -> Result<(), Failure> {
        let (host, port) = split(&entry.address, "5432");
        let port: u16 =
            port.parse().map_err(|_| Failure::config(format!("{:?}: expected host:port", entry.address)))?;
        let instance = json!({
            "id": entry.name, "service": self.service, "host": host, "port": port,
            "protocol": "postgresql", "weight": entry.weight, "metadata": { "role": entry.role },
            "location": { "zone": entry.zone.as_deref().unwrap_or_default() },
            "check": { "type": "postgres" },
        });
        let answer = self.ask(Method::POST, "instances", Some(&json!({ "instances": [instance] }))).await?;
        match answer["results"][0]["error"]["message"].as_str() {
            Some(why) => Err(Failure::runtime(format!("the registry refused the server {}: {why}", entry.name))),
            None => Ok(()),
        }
    }

    /// Returns the servers of the service; none before the first is registered.
    ///
    /// # Errors
    /// No node of the registry answers.
    pub async fn nodes(&self) -> Result<Vec<NodeConfig>, Failure> {
        let listed = self.listed().await?.into_iter();
        Ok(listed.filter(|listed| !listed.isolated).map(|listed| listed.node).collect())
    }

    /// Returns the servers of the service, also those that are isolated; none before the first is registered.
    ///
    /// # Errors
    /// No node of the registry answers.
    pub async fn listed(&self) -> Result<Vec<Listed>, Failure> {
        let path = format!("services/{}/instances", segment(&self.service));
        match self.ask(Method::GET, &path, None).await {
            Ok(answer) => Ok(listed(&answer)),
            Err(failure) => match self.is_known().await? {
                true => Err(failure),
                false => Ok(Vec::new()),
            },
        }
    }

    /// True if the registry has the service.
    async fn is_known(&self) -> Result<bool, Failure> {
        let listed = self.ask(Method::GET, &format!("services?prefix={}", segment(&self.service)), None).await?;
        let mut services = listed["services"].as_array().into_iter().flatten();
        Ok(services.any(|service| service["service"].as_str() == Some(self.service.as_str())))
    }

    /// Isolates a server, so that proxies leave it, or takes that back; registrations leave it as it is.
    ///
    /// # Errors
    /// No node of the registry answers, or it has no such server.
    pub async fn isolate(&self, name: &str, isolated: bool) -> Result<(), Failure> {
        let path = format!("instances/{}", segment(name));
        self.ask(Method::PATCH, &path, Some(&json!({ "isolate": isolated }))).await.map(drop)
    }

    /// Removes the entry of a server.
    ///
    /// # Errors
    /// No node of the registry answers.
    pub async fn deregister(&self, name: &str) -> Result<(), Failure> {
        self.ask(Method::POST, "deregistrations", Some(&json!({ "ids": [name] }))).await.map(drop)
    }

    /// Claims the right to make the cluster of this service, for good. Returns the holder: the first node that claimed it.
    ///
    /// # Errors
    /// No node of the registry answers, or the first that does refuses.
    pub async fn claim(&self, node: &Claim) -> Result<Claim, Failure> {
        let path = format!("/v1/kv/{}", path(&self.claim_key()));
        let claim = json!({ "node": node.name, "id": node.id });
        self.ask_for(Method::PUT, &format!("{path}?cas=0"), Some(&claim)).await?;
        let held = self.ask_for(Method::GET, &format!("{path}?raw&consistent"), None).await?;
        match (held["node"].as_str(), held["id"].as_str()) {
            (Some(name), Some(id)) => Ok(Claim { name: name.to_owned(), id: id.to_owned() }),
            _ => Err(Failure::runtime(format!("the registry's key {} is no claim of a node", self.claim_key()))
                .advise("another program uses the key: remove it if there is no cluster yet")),
        }
    }

    /// Returns the registry's key of the claim.
    pub fn claim_key(&self) -> String {
        format!("kingpost/clusters/{}/{}", self.namespace, self.service)
    }

    /// Reads a key of the registry; None if it is not there.
    ///
    /// # Errors
    /// No node of the registry answers, or the key's value is no JSON.
    pub async fn stored(&self, key: &str) -> Result<Option<Stored>, Failure> {
        let Some(found) = self.find(&format!("/v1/kv/{}?consistent", path(key))).await? else { return Ok(None) };
        let unusable = || Failure::runtime(format!("the registry's key {key} has no value that Kingpost wrote"));
        let index = found[0]["ModifyIndex"].as_u64().ok_or_else(unusable)?;
        let value = BASE64.decode(found[0]["Value"].as_str().unwrap_or_default()).map_err(|_| unusable())?;
        Ok(Some(Stored { index, value: serde_json::from_slice(&value).map_err(|_| unusable())? }))
    }

    /// Writes a key of the registry if its index is still this one, 0 for a key that is not there; returns false if it is not.
    ///
    /// # Errors
    /// No node of the registry answers, or the first that does refuses.
    pub async fn store(&self, key: &str, index: u64, value: &Value) -> Result<bool, Failure> {
        let written = self.ask_for(Method::PUT, &format!("/v1/kv/{}?cas={index}", path(key)), Some(value)).await?;
        Ok(written == true)
    }

    /// Asks for a path of the namespace.
    async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        self.ask_for(method, &format!("/v1/namespaces/{}/{path}", segment(&self.namespace)), body).await
    }

    /// Reads an object of the first of the registry's nodes that answers; None if there is none.
    async fn find(&self, path: &str) -> Result<Option<Value>, Failure> {
        let mut last = no_address();
        for remote in &self.asked.remotes {
            match remote.find(path).await {
                Ok(found) => return Ok(found),
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    /// Asks the registry's nodes in turn.
    async fn ask_for(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        let mut last = no_address();
        for remote in &self.asked.remotes {
            match remote.ask(method.clone(), path, body).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }
}

fn no_address() -> Failure {
    Failure::config("the registry has no address: set cluster.from.urls")
}

/// Returns a key as segments of a path.
fn path(key: &str) -> String {
    key.split('/').map(segment).collect::<Vec<_>>().join("/")
}
