//! Configuration entries over a connection: requests, and pushes to a client that listens.
//!
//! A push names an entry; the client then queries it, and listens again with the MD5 of what it got. So a push that is repeated, or that names an entry
//! whose content the client has, costs a query and nothing else; a lost one does not exist: it ends with its connection.

use std::collections::HashMap;

use super::super::super::configs::{Configs, may_read, visible_md5};
use super::super::config::MOST_LISTENED;
use super::super::messages::Heard;
use super::*;
use crate::configuration::{ConfigClient, ConfigKey, Expected, Listener, TAG};

/// The client's words for "there is no such entry".
const ABSENT: (u32, &str) = (300, "config data not exist");
/// Code of a publication whose condition does not hold.
const CHANGED: u32 = 500;

/// The entries that a client listens to.
pub(super) struct Listening {
    /// None if the store holds no entries.
    listener: Option<Listener>,
    /// The entries, by reserved namespace and name.
    heard: Mutex<HashMap<(NamespaceName, ConfigKey), Known>>,
}

/// An entry as the client knows it.
struct Known {
    namespace: NamespaceName,
    tenant: String,
    /// The client, for gray releases.
    client: ConfigClient,
    /// MD5 of the content that the client has, or was last told of.
    md5: String,
}

impl Listening {
    pub(super) fn new(registry: &Registry) -> Listening {
        Listening { listener: registry.config_listener().ok(), heard: Mutex::default() }
    }

    fn heard(&self) -> std::sync::MutexGuard<'_, HashMap<(NamespaceName, ConfigKey), Known>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns once an entry may have changed.
    pub(super) async fn changed(&self) {
        match &self.listener {
            Some(listener) => listener.changed().await,
            None => std::future::pending().await,
        }
    }
}

impl Connection {
    /// Answers a request about configuration entries.
    pub(super) async fn configuration(
        &self,
        context: &Arc<Context>,
        caller: &Caller,
        address: &str,
        asked: Asked,
    ) -> Result<Content, Refusal> {
        let own = self.peer.to_string();
        let address = if address.parse::<IpAddr>().is_ok() { address } else { &own };
        let client = ConfigClient::at(address).with(self.labels());
        let configs = |namespace| Configs { context, caller, peer: self.peer, namespace };
        match asked {
            Asked::ConfigQuery { namespace, key, tag } => {
                let found = configs(namespace).get(&key, &client.with([(TAG.to_owned(), tag)]))?;
                let entry = found.ok_or_else(|| Refusal::Own(ABSENT.0, ABSENT.1.to_owned()))?;
                let is_gray = !entry.audience.is_empty();
                Ok(json!({
                    "content": entry.text(), "contentType": entry.kind, "md5": entry.md5, "lastModified": entry.time,
                    "encryptedDataKey": entry.cipher_key, "isBeta": is_gray, "beta": is_gray,
                })
                .into())
            }
            Asked::ConfigPublish { namespace, key, new, expected, gray } => {
                match configs(namespace).publish(&key, &new, &expected, &gray).await {
                    Ok(_) => Ok(json!({}).into()),
                    Err(ApiError::Conflict(text)) => Err(Refusal::Own(CHANGED, text)),
                    Err(error) => Err(error.into()),
                }
            }
            Asked::ConfigRemove { namespace, key } => {
                configs(namespace).remove(&key, &Expected::Anything).await?;
                Ok(json!({}).into())
            }
            Asked::ConfigListen { begin, entries } => {
                self.set_up().await?;
                let changed = self.listen(context, caller, &client, begin, entries)?;
                Ok(json!({ "changedConfigs": changed }).into())
            }
            _ => Err(ApiError::NotImplemented("not a request about configuration".into()).into()),
        }
    }

    /// Begins or ends listening. Returns the entries whose content is not the one that the client has.
    fn listen(
        &self,
        context: &Context,
        caller: &Caller,
        client: &ConfigClient,
        begin: bool,
        entries: Vec<Heard>,
    ) -> Result<Vec<Value>, ApiError> {
        let Some(listener) = &self.listening.listener else {
            return Err(ApiError::Unavailable("the registry's store cannot hold entries".into()));
        };
        let mut changed = Vec::new();
        let mut heard = self.listening.heard();
        for Heard { listened, tenant } in entries {
            let (namespace, key) = (listened.namespace, listened.key);
            caller.enters(Access::Read, namespace.as_str())?;
            let name = (NamespaceName::of_config(&namespace), key.clone());
            if !begin {
                listener.remove(&namespace, &key);
                heard.remove(&name);
                continue;
            }
            if heard.len() >= MOST_LISTENED && !heard.contains_key(&name) {
                return Err(ApiError::Busy {
                    what: "configuration entries of one connection",
                    limit: "the fixed limit",
                    value: MOST_LISTENED as u64,
                });
            }
            // Listens before it looks: a change in between is found by one of the two.
            listener.add(&namespace, &key);
            let md5 = visible_md5(context, caller, (&namespace, &key), client);
            if md5 != listened.md5 {
                changed.push(json!({ "dataId": key.id(), "group": key.group(), "tenant": tenant }));
            }
            heard.insert(name, Known { namespace, tenant, client: client.clone(), md5 });
        }
        Ok(changed)
    }

    /// Returns the push for the next changed entry, if the client was not told of its content yet.
    pub(super) fn next_push(&self, context: &Context, id: &mut u64) -> Option<OutgoingMessage> {
        let listener = self.listening.listener.as_ref()?;
        let caller = self.caller(context).ok();
        let mut heard = self.listening.heard();
        while let Some(name) = listener.pop() {
            let Some(known) = heard.get_mut(&name) else { continue };
            let key = &name.1;
            // Without the right to read an entry, nothing: not even that the entry has changed.
            let may_read = |caller: &&Caller| may_read(caller, &known.namespace, key);
            let Some(caller) = caller.as_ref().filter(may_read) else {
                known.md5 = String::new();
                continue;
            };
            let md5 = visible_md5(context, caller, (&known.namespace, key), &known.client);
            if md5 == known.md5 {
                continue;
            }
            known.md5 = md5;
            *id += 1;
            let fields = json!({
                "module": "config", "dataId": key.id(), "group": key.group(), "tenant": known.tenant,
            });
            return Some(messages::request("ConfigChangeNotifyRequest", *id, fields));
        }
        None
    }
}
