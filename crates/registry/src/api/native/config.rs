//! Configuration entries.

use super::*;
use crate::api::configs::{Configs, Listened, Waiter};
use crate::api::credentials::Credentials;
use crate::configuration::{Audience, ConfigClient, ConfigEntry, ConfigKey, Expected, NewConfig};

/// A publication.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Publication {
    content: String,
    #[serde(rename = "type")]
    kind: Option<String>,
    description: Option<String>,
    app: Option<String>,
    tags: Option<Vec<String>>,
    secret: Option<bool>,
    cipher_key: Option<String>,
    /// Addresses and labels of the clients that get the content; without them it is for all.
    #[serde(default)]
    addresses: Vec<String>,
    #[serde(default)]
    labels: Vec<String>,
    /// MD5 of the content that this one replaces.
    if_md5: Option<String>,
}

/// The version to restore.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RollBack {
    version: u64,
}

pub(super) async fn handle(
    context: &Arc<Context>,
    request: &Request,
    caller: &Caller,
    ns: &NamespaceName,
    route: &Route<'_>,
) -> Result<Reply, ApiError> {
    let configs = Configs { context, caller, peer: request.peer, namespace: ns.clone() };
    let key = || ConfigKey::new(route.group, route.id);
    match route.op {
        Op::ListConfigs => list(&configs, request).await,
        Op::GetConfig => get(&configs, request, &key()?).await,
        Op::PutConfig => {
            let body: Publication = request.json()?;
            let key = key()?;
            let expected = body.if_md5.map_or(Expected::Anything, Expected::Md5);
            let new = NewConfig {
                content: body.content,
                kind: body.kind,
                description: body.description,
                app: body.app,
                tags: body.tags,
                secret: body.secret.or_else(|| key.is_encrypted().then_some(true)),
                cipher_key: body.cipher_key,
            };
            let audience = Audience::new(body.addresses, body.labels)?;
            let change = configs.publish(&key, &new, &expected, &audience).await?;
            Ok(Reply::ok(&json!({ "changed": change.wrote, "entry": change.entry.as_ref().map(shown) })))
        }
        Op::DeleteConfig => {
            let key = key()?;
            let existed = match request.flag("gray") {
                true => configs.remove_gray(&key).await?,
                false => configs.remove(&key, &Expected::Anything).await?,
            };
            if existed { Ok(Reply::empty(StatusCode::NO_CONTENT)) } else { Err(missing(&key)) }
        }
        Op::ConfigHistory => {
            let key = key()?;
            let found = configs.history(&key)?;
            if found.is_empty() {
                return Err(missing(&key));
            }
            let versions: Vec<Value> = found.iter().map(|entry| with_content(entry, !entry.secret)).collect();
            Ok(Reply::ok(&json!({ "namespace": ns, "group": key.group(), "id": key.id(), "versions": versions })))
        }
        Op::RollBackConfig => {
            let body: RollBack = request.json()?;
            let change = configs.roll_back(&key()?, body.version).await?;
            Ok(Reply::ok(&json!({ "changed": change.wrote, "entry": change.entry.as_ref().map(shown) })))
        }
        _ => Err(ApiError::NoSuchPath(route.namespace.into())),
    }
}

fn missing(key: &ConfigKey) -> ApiError {
    ApiError::NotFound { what: "configuration entry", name: key.to_string() }
}

/// Returns an entry without its content.
fn shown(entry: &ConfigEntry) -> Value {
    json!({
        "group": entry.key.group(), "id": entry.key.id(), "version": entry.version, "revision": entry.revision,
        "md5": entry.md5, "type": entry.kind, "description": entry.description, "app": entry.app, "tags": entry.tags,
        "secret": entry.secret, "author": entry.author, "time_ms": entry.time, "created_ms": entry.created,
        "bytes": entry.content.len(), "restored": entry.restored, "addresses": entry.audience.addresses(),
        "labels": entry.audience.labels(),
        "removed": entry.removal,
    })
}

fn with_content(entry: &ConfigEntry, with: bool) -> Value {
    let mut value = shown(entry);
    if with {
        value["content"] = entry.text().into();
        if !entry.cipher_key.is_empty() {
            value["cipher_key"] = entry.cipher_key.as_str().into();
        }
    }
    value
}

/// Lists entries after `from`, which is `GROUP/ID`, without their contents.
async fn list(configs: &Configs<'_>, request: &Request) -> Result<Reply, ApiError> {
    let limit = page(request)?;
    let from = request.param("from").unwrap_or_default();
    let mut found = configs.list(request.param("group")).await?;
    found.retain(|entry| *entry.key.to_string() > *from);
    let next = (found.len() > limit).then(|| found[limit - 1].key.to_string());
    let entries: Vec<Value> = found.iter().take(limit).map(shown).collect();
    Ok(Reply::ok(&json!({ "namespace": configs.namespace, "entries": entries, "next": next })))
}

/// Answers with the entry; with `md5`, once its content has another MD5, or after `wait`. Each `label` is one of the client, for gray releases; with
/// `current` it is of none.
async fn get(configs: &Configs<'_>, request: &Request, key: &ConfigKey) -> Result<Reply, ApiError> {
    let label = |text: &str| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    let client = match request.flag("current") {
        // Of no gray release.
        true => ConfigClient::default(),
        false => ConfigClient::at(request.peer.to_string()).with(request.params("label").filter_map(label)),
    };
    configs.get(key, &client)?.ok_or_else(|| missing(key))?;
    let mut waited = false;
    if let Some(md5) = request.param("md5").filter(|_| !request.at_once) {
        let limit = request.duration("wait")?.unwrap_or(DEFAULT_WAIT);
        let listened = Listened { namespace: configs.namespace.clone(), key: key.clone(), md5: md5.to_owned() };
        let (context, credentials) = (configs.context, Credentials::of(request));
        let waiter = Waiter { context, credentials, peer: request.peer, client: client.clone() };
        waiter.changed(std::slice::from_ref(&listened), limit).await?;
        waited = true;
    }
    let entry = configs.get(key, &client)?.ok_or_else(|| missing(key))?;
    let tag = format!("\"{}\"", entry.md5);
    Ok(Reply::ok(&with_content(&entry, true)).header(ETAG, tag).waited(waited))
}
