//! Nacos' configuration service over HTTP: versions 1, 2 and 3, which differ in the names of their parameters and in the form of their answers.

mod answer;
mod listening;

use hyper::header::{HeaderName, LAST_MODIFIED};
use hyper::{Method, StatusCode};
use serde_json::json;

use super::super::configs::{Configs, Listened, Waiter};
use super::super::credentials::Credentials;
use super::super::reply::TEXT;
use super::naming::named;
use super::wire::{DEFAULT_GROUP, Fields};
use super::*;
use crate::configuration::{Audience, ConfigClient, ConfigEntry, ConfigKey, Expected, NewConfig, TAG};
use answer::{detail, http_date, page, past};
pub(super) use answer::{refused, result};
pub(super) use listening::{parse, render};

/// Maximum number of entries that one request, or one connection, listens to.
pub(super) const MOST_LISTENED: usize = 10_000;
/// Shortest wait of a request that listens, and the time by which the answer precedes the client's own limit. As in Nacos.
const SHORTEST: Duration = Duration::from_secs(10);
const EARLIER: Duration = Duration::from_millis(500);
/// Default and maximum number of entries in a page.
const PAGE: u64 = 100;
const LONGEST_PAGE: u64 = 500;

/// Headers of clients over HTTP, and the labels that they stand for: the same as clients over gRPC send when they connect.
const LABELS: [(&str, &str); 4] = [
    ("vipserver-tag", TAG),
    ("amory-tag", "Amory-Tag"),
    ("location-tag", "Location-Tag"),
    ("client-appname", "AppName"),
];

/// Version of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Api {
    /// Plain answers.
    V1,
    /// Answers in an envelope.
    V2,
    /// As [`Api::V2`]; the group is `groupName`.
    V3,
}

/// Operation of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Get,
    /// An entry with its attributes.
    Detail,
    Publish,
    Remove,
    List,
    Listen,
    Gray,
    RemoveGray,
    History,
    /// A version.
    Version,
    /// The version before another one.
    Previous,
    /// Names of a namespace's entries.
    Names,
}

struct Call<'a> {
    request: &'a Request,
    api: Api,
    fields: Fields,
    configs: Configs<'a>,
}

/// Returns the operation of a path; `None` for a path that is not one of the configuration service.
fn operation(method: &str, path: &[&str]) -> Option<Result<(Api, Op), ApiError>> {
    let (api, rest) = match path {
        ["nacos", "v1", "cs", rest @ ..] => (Api::V1, rest),
        ["nacos", "v2", "cs", rest @ ..] => (Api::V2, rest),
        ["nacos", "v3", "admin", "cs", rest @ ..] => (Api::V3, rest),
        ["nacos", "v3", "client", "cs", "config"] => {
            return Some(match method {
                "GET" => Ok((Api::V3, Op::Get)),
                _ => Err(ApiError::MethodNotAllowed { allow: "GET, HEAD" }),
            });
        }
        _ => return None,
    };
    let entry = match api {
        Api::V1 => "configs",
        _ => "config",
    };
    let op = match (method, rest) {
        ("GET", [name]) if *name == entry && api == Api::V3 => Op::Detail,
        ("GET", [name]) if *name == entry => Op::Get,
        ("POST" | "PUT", [name]) if *name == entry => Op::Publish,
        ("DELETE", [name]) if *name == entry => Op::Remove,
        ("POST", ["configs", "listener"]) if api == Api::V1 => Op::Listen,
        ("GET", ["config", "searchDetail"]) if api == Api::V2 => Op::List,
        ("GET", ["config", "list"]) if api == Api::V3 => Op::List,
        ("GET", ["config", "beta"]) if api == Api::V3 => Op::Gray,
        ("DELETE", ["config", "beta"]) if api == Api::V3 => Op::RemoveGray,
        ("GET", ["history"]) if api == Api::V1 => Op::History,
        ("GET", ["history", "list"]) => Op::History,
        ("GET", ["history"]) => Op::Version,
        ("GET", ["history", "previous"]) => Op::Previous,
        ("GET", ["history", "configs"]) => Op::Names,
        (_, [name]) if *name == entry => {
            return Some(Err(ApiError::MethodNotAllowed { allow: "GET, HEAD, POST, PUT, DELETE" }));
        }
        _ => return Some(Err(ApiError::NoSuchPath(path.join("/").chars().take(200).collect()))),
    };
    Some(Ok((api, op)))
}

/// Reads a list of entries to listen to, for fuzzing: any outcome is fine.
#[doc(hidden)]
pub fn read_listening(text: &[u8]) {
    if let Ok(lines) = std::str::from_utf8(text).map_err(drop).and_then(|text| parse(text).map_err(drop)) {
        let _ = render(lines.iter());
    }
}

/// True for a request of a client that sends user and password in each form: Node's, to the configuration service of version 1.
pub(in crate::api) fn has_password_in_form(request: &Request) -> bool {
    request.method == Method::POST && matches!(request.path().as_slice(), ["nacos", "v1", "cs", ..])
}

/// Answers a request of the configuration service; `None` for another path.
pub(super) async fn handle(context: &Arc<Context>, request: &Request) -> Option<Result<Reply, ApiError>> {
    let method = if request.method == Method::HEAD { Method::GET } else { request.method.clone() };
    let found = operation(method.as_str(), &request.path())?;
    Some(match found {
        Ok((Api::V1, op)) => answer(context, request, Api::V1, op).await,
        // These clients read the code in the body.
        Ok((api, op)) => answer(context, request, api, op).await.or_else(|error| {
            context.refused(&error);
            Ok(refused(&error))
        }),
        Err(error) => Err(error),
    })
}

async fn answer(context: &Arc<Context>, request: &Request, api: Api, op: Op) -> Result<Reply, ApiError> {
    let fields = Fields::of(request)?;
    let caller = context.identify_by(&request.headers, shown_token(&fields))?;
    let tenant = if api == Api::V1 { "tenant" } else { "namespaceId" };
    let namespace = named(fields.text(tenant))?;
    let configs = Configs { context, caller: &caller, peer: request.peer, namespace };
    let call = Call { request, api, fields, configs };
    match op {
        Op::Get => call.get().await,
        Op::Detail => call.detail(),
        Op::Publish => call.publish().await,
        Op::Remove => call.remove().await,
        Op::List => call.list().await,
        Op::Listen => call.listen().await,
        Op::Gray => call.gray(),
        Op::RemoveGray => call.remove_gray().await,
        Op::History => call.history(),
        Op::Version => call.version(|version| version),
        Op::Previous => call.version(|version| version.saturating_sub(1)),
        Op::Names => call.names().await,
    }
}

/// Returns the token of a request. Some clients send user and password with each request, in a form where there is one.
fn shown_token(fields: &Fields) -> Option<&str> {
    fields.get("accessToken").or_else(|| fields.get("password"))
}

/// Returns the audience of a publication: the addresses of a list with commas, and the clients with a tag.
pub(super) fn audience(addresses: &str, tag: &str) -> Result<Audience, ApiError> {
    let labels = if tag.is_empty() { Vec::new() } else { vec![format!("{TAG}={tag}")] };
    Ok(Audience::new(list_of(addresses), labels)?)
}

/// Returns the name of an entry; an empty group is [`DEFAULT_GROUP`].
pub(super) fn key(group: &str, id: &str) -> Result<ConfigKey, ApiError> {
    Ok(ConfigKey::new(if group.is_empty() { DEFAULT_GROUP } else { group }, id)?)
}

/// Splits a list with commas; empty parts are dropped.
pub(super) fn list_of(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

impl Call<'_> {
    fn key(&self) -> Result<ConfigKey, ApiError> {
        key(self.group(), self.fields.text("dataId"))
    }

    fn group(&self) -> &str {
        self.fields.text(if self.api == Api::V3 { "groupName" } else { "group" })
    }

    /// Returns a parameter, or the header of the same name.
    fn said(&self, name: &'static str) -> &str {
        match self.fields.text(name) {
            "" => self.request.named_header(name).unwrap_or_default(),
            text => text,
        }
    }

    /// Returns the client, with the labels that clients over HTTP send as headers, and the tag that a request may name.
    fn client(&self) -> ConfigClient {
        let header = |name: &str| self.request.named_header(name).unwrap_or_default().to_owned();
        let labels = LABELS.iter().map(|(header_name, label)| ((*label).to_owned(), header(header_name)));
        let tag = (TAG.to_owned(), self.fields.text("tag").to_owned());
        ConfigClient::at(self.request.peer.to_string()).with(labels.chain([tag]))
    }

    fn waiter(&self) -> Waiter<'_> {
        let token = shown_token(&self.fields).map(str::to_owned);
        let credentials = Credentials { headers: self.request.headers.clone(), token };
        Waiter { context: self.configs.context, credentials, peer: self.request.peer, client: self.client() }
    }

    fn missing(&self, key: &ConfigKey) -> ApiError {
        match self.api {
            // The words that clients of this version know.
            Api::V1 => ApiError::Missing("config data not exist".into()),
            _ => ApiError::NotFound { what: "configuration", name: key.to_string() },
        }
    }

    async fn get(&self) -> Result<Reply, ApiError> {
        if self.api == Api::V1 && !self.fields.text("search").is_empty() {
            return self.list().await;
        }
        if self.api == Api::V1 && self.fields.text("show") == "all" {
            return self.detail();
        }
        if self.fields.text("beta") == "true" {
            return self.gray();
        }
        let key = self.key()?;
        let entry = self.configs.get(&key, &self.client())?.ok_or_else(|| self.missing(&key))?;
        let is_gray = !entry.audience.is_empty();
        match self.api {
            Api::V2 => Ok(result(&json!(entry.text()))),
            Api::V3 => Ok(result(&json!({
                "content": entry.text(), "md5": entry.md5, "contentType": entry.kind, "lastModified": entry.time,
                "encryptedDataKey": entry.cipher_key, "beta": is_gray,
            }))),
            Api::V1 => {
                let reply = Reply::bytes(StatusCode::OK, TEXT, entry.content.clone());
                let reply = reply
                    .header(HeaderName::from_static("content-md5"), entry.md5.as_str())
                    .header(HeaderName::from_static("config-type"), entry.kind.as_str())
                    .header(LAST_MODIFIED, http_date(entry.time));
                let reply = match entry.cipher_key.as_str() {
                    "" => reply,
                    cipher_key => reply.header(HeaderName::from_static("encrypted-data-key"), cipher_key),
                };
                Ok(if is_gray { reply.header(HeaderName::from_static("isbeta"), "true") } else { reply })
            }
        }
    }

    fn shown(&self, value: Value) -> Reply {
        if self.api == Api::V1 { Reply::ok(&value) } else { result(&value) }
    }

    fn detail(&self) -> Result<Reply, ApiError> {
        let key = self.key()?;
        let [entry, _] = self.configs.both(&key)?;
        let entry = entry.ok_or_else(|| self.missing(&key))?;
        Ok(self.shown(detail(&entry, self.configs.namespace.as_str(), true)))
    }

    /// Answers with the gray release; version 1 has an envelope for it, too.
    fn gray(&self) -> Result<Reply, ApiError> {
        let key = self.key()?;
        let [_, gray] = self.configs.both(&key)?;
        if gray.is_none() && self.api == Api::V1 {
            return Ok(Reply::ok(&json!({ "code": 200, "message": "query beta ok", "data": null })));
        }
        let gray = gray.ok_or_else(|| self.missing(&key))?;
        let mut shown = detail(&gray, self.configs.namespace.as_str(), true);
        shown["betaIps"] = gray.audience.addresses().join(",").into();
        shown["grayRule"] = [gray.audience.addresses(), gray.audience.labels()].concat().join(",").into();
        Ok(match self.api {
            Api::V1 => Reply::ok(&json!({ "code": 200, "message": "query beta ok", "data": shown })),
            _ => result(&shown),
        })
    }

    async fn remove_gray(&self) -> Result<Reply, ApiError> {
        let key = self.key()?;
        if self.api == Api::V1 && self.configs.both(&key)?[1].is_none() {
            return Ok(Reply::ok(&json!({ "code": 500, "message": "remove beta data error", "data": false })));
        }
        self.configs.remove_gray(&key).await?;
        Ok(match self.api {
            Api::V1 => Reply::ok(&json!({ "code": 200, "message": "stop beta ok", "data": true })),
            _ => result(&json!(true)),
        })
    }

    async fn publish(&self) -> Result<Reply, ApiError> {
        let key = self.key()?;
        // As at Nacos, an entry without content is no entry.
        if self.fields.text("content").trim().is_empty() {
            return Err(required("content"));
        }
        let text = |name: &str| self.fields.get(name).map(str::to_owned);
        let new = NewConfig {
            content: self.fields.text("content").to_owned(),
            kind: text("type").filter(|kind| !kind.is_empty()),
            description: text("desc"),
            app: text("appName"),
            tags: text(if self.api == Api::V1 { "config_tags" } else { "configTags" }).map(|tags| list_of(&tags)),
            secret: is_secret(&key, &text("config_tags").or_else(|| text("configTags")).unwrap_or_default()),
            cipher_key: text("encryptedDataKey"),
        };
        let expected = match self.said("casMd5") {
            "" => Expected::Anything,
            md5 => Expected::Md5OrAbsent(md5.to_owned()),
        };
        let audience = audience(self.said("betaIps"), self.fields.text("tag"))?;
        self.configs.publish(&key, &new, &expected, &audience).await?;
        Ok(self.done())
    }

    fn done(&self) -> Reply {
        if self.api == Api::V1 { Reply::text(StatusCode::OK, "true") } else { result(&json!(true)) }
    }

    async fn remove(&self) -> Result<Reply, ApiError> {
        if self.fields.text("beta") == "true" {
            return self.remove_gray().await;
        }
        self.configs.remove(&self.key()?, &Expected::Anything).await?;
        Ok(self.done())
    }

    /// Returns number and size of the requested page.
    fn paging(&self) -> Result<(u64, u64), ApiError> {
        let number = self.fields.number("pageNo")?.unwrap_or(1).max(1);
        Ok((number, self.fields.number("pageSize")?.unwrap_or(PAGE).clamp(1, LONGEST_PAGE)))
    }

    /// Lists entries by group and data id: equal if `search` is `accurate`, else with `*` for any text.
    async fn list(&self) -> Result<Reply, ApiError> {
        let (group, id) = (self.group(), self.fields.text("dataId"));
        let accurate = self.fields.text("search") == "accurate";
        let tags = list_of(self.fields.text(if self.api == Api::V1 { "config_tags" } else { "configTags" }));
        let app = self.fields.text("appName");
        let fits = |pattern: &str, text: &str| {
            pattern.is_empty() || if accurate { pattern == text } else { listening::matches(pattern, text) }
        };
        let mut found = self.configs.list(None).await?;
        found.retain(|entry| {
            fits(group, entry.key.group())
                && fits(id, entry.key.id())
                && (app.is_empty() || app == entry.app)
                && tags.iter().all(|tag| entry.tags.contains(tag))
        });
        let namespace = self.configs.namespace.as_str();
        // Only the detail has the content in later versions; a secret's is in no list.
        let with = |entry: &ConfigEntry| detail(entry, namespace, self.api == Api::V1 && !entry.secret);
        Ok(self.shown(page(&found, self.paging()?, with)))
    }

    async fn listen(&self) -> Result<Reply, ApiError> {
        let listened = parse(self.fields.text("Listening-Configs"))?;
        let limit = match self.request.named_header("long-pulling-timeout") {
            None => Duration::ZERO,
            Some(_) if self.request.named_header("long-pulling-timeout-no-hangup") == Some("true") => Duration::ZERO,
            Some(text) => {
                let millis = text.parse().map_err(|_| ApiError::bad("Long-Pulling-Timeout: expected milliseconds"))?;
                Duration::from_millis(millis).saturating_sub(EARLIER).max(SHORTEST)
            }
        };
        for one in &listened {
            self.configs.caller.enters(crate::rights::Access::Read, one.listened.namespace.as_str())?;
        }
        let entries: Vec<Listened> = listened.iter().map(|one| one.listened.clone()).collect();
        let found = self.waiter().changed(&entries, limit).await?;
        let is = |one: &&listening::Line| found.contains(&&one.listened);
        Ok(Reply::text(StatusCode::OK, render(listened.iter().filter(is))).waited(true))
    }

    fn history(&self) -> Result<Reply, ApiError> {
        // Version 1 has one path for the list and for a version.
        if self.api == Api::V1 && !self.fields.text("nid").is_empty() {
            return self.version(|version| version);
        }
        let found = self.configs.history(&self.key()?)?;
        let namespace = self.configs.namespace.as_str();
        Ok(self.shown(page(&found, self.paging()?, |entry| past(entry, namespace, false))))
    }

    /// Answers with a version. Its id in this API is its number.
    fn version(&self, of: impl Fn(u64) -> u64) -> Result<Reply, ApiError> {
        let key = self.key()?;
        let said = self.fields.number("nid")?.or(self.fields.number("id")?);
        let version = of(said.ok_or_else(|| ApiError::bad("nid or id is missing"))?);
        let found = self.configs.history(&key)?.into_iter().find(|entry| entry.version == version);
        let entry = found.ok_or_else(|| ApiError::NotFound { what: "version", name: format!("{key} {version}") })?;
        // A secret's content is in no history.
        Ok(self.shown(past(&entry, self.configs.namespace.as_str(), !entry.secret)))
    }

    async fn names(&self) -> Result<Reply, ApiError> {
        let namespace = self.configs.namespace.as_str();
        let found = self.configs.list(None).await?;
        let shown = found.iter().map(|entry| detail(entry, namespace, false)).collect();
        Ok(self.shown(Value::Array(shown)))
    }
}

/// True for an entry with the tag `secret`, and for one that its client has encrypted; `None`: as it is.
pub(super) fn is_secret(key: &ConfigKey, tags: &str) -> Option<bool> {
    (key.is_encrypted() || list_of(tags).iter().any(|tag| tag == "secret")).then_some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        for (method, path, expected) in [
            ("GET", "nacos/v1/cs/configs", Some(Ok((Api::V1, Op::Get)))),
            ("POST", "nacos/v1/cs/configs", Some(Ok((Api::V1, Op::Publish)))),
            ("POST", "nacos/v1/cs/configs/listener", Some(Ok((Api::V1, Op::Listen)))),
            ("GET", "nacos/v1/cs/history", Some(Ok((Api::V1, Op::History)))),
            ("GET", "nacos/v2/cs/config", Some(Ok((Api::V2, Op::Get)))),
            ("GET", "nacos/v2/cs/history", Some(Ok((Api::V2, Op::Version)))),
            ("GET", "nacos/v3/client/cs/config", Some(Ok((Api::V3, Op::Get)))),
            ("POST", "nacos/v3/client/cs/config", Some(Err(405))),
            ("GET", "nacos/v3/admin/cs/config", Some(Ok((Api::V3, Op::Detail)))),
            ("DELETE", "nacos/v3/admin/cs/config/beta", Some(Ok((Api::V3, Op::RemoveGray)))),
            ("PATCH", "nacos/v2/cs/config", Some(Err(405))),
            ("GET", "nacos/v1/cs/config", Some(Err(404))),
            ("GET", "nacos/v1/ns/instance", None),
        ] {
            let path: Vec<&str> = path.split('/').collect();
            let found = operation(method, &path).map(|found| found.map_err(|error| error.status().as_u16()));
            assert_eq!(found, expected, "{method} {path:?}");
        }
    }
}
