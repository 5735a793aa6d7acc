//! `kingpost registry config`: configuration entries, and their import from a running Nacos over its HTTP API, of version 1 (servers of Nacos 1 and 2)
//! or 3.

use hyper::Method;
use serde_json::{Value, json};

use super::client::of;
use super::import::{source, strange};
use crate::args::{ConfigCommand, ConfigImportArgs};
use process::Failure;
use process::http::{Remote, segment};
use process::terminal;

/// Entries in a page of Nacos.
const PAGE: usize = 500;
/// Most pages of one namespace.
const MOST_PAGES: usize = 10_000;

pub(crate) async fn run(command: &ConfigCommand) -> Result<(), Failure> {
    match command {
        ConfigCommand::Ls { remote, namespace } => list(&of(remote)?, namespace).await,
        ConfigCommand::History { remote, namespace, group, id } => {
            let path = format!("{}/history", path_of(namespace, group, id));
            let answer = of(remote)?.ask(Method::GET, &path, None).await?;
            answer["versions"].as_array().into_iter().flatten().for_each(|version| terminal::line(version.to_string()));
            Ok(())
        }
        ConfigCommand::Rollback { remote, namespace, group, id, version } => {
            let path = format!("{}/rollback", path_of(namespace, group, id));
            let answer = of(remote)?.ask(Method::POST, &path, Some(&json!({ "version": version }))).await?;
            terminal::note(format_args!("{group}/{id} has version {}", answer["entry"]["version"]));
            Ok(())
        }
        ConfigCommand::Import(args) => import(&of(&args.remote)?, args).await,
    }
}

fn path_of(namespace: &str, group: &str, id: &str) -> String {
    format!("/v1/namespaces/{}/configs/{}/{}", segment(namespace), segment(group), segment(id))
}

async fn list(remote: &Remote, namespace: &str) -> Result<(), Failure> {
    let mut from = Some(String::new());
    while let Some(after) = from {
        let entries;
        (entries, from) = page(remote, namespace, &after).await?;
        entries.iter().for_each(|entry| terminal::line(entry.to_string()));
    }
    Ok(())
}

/// Reads a page of a namespace's entries, and the name after which the next one begins.
async fn page(remote: &Remote, namespace: &str, after: &str) -> Result<(Vec<Value>, Option<String>), Failure> {
    let path = format!("/v1/namespaces/{}/configs?from={}", segment(namespace), segment(after));
    let mut page = remote.ask(Method::GET, &path, None).await?;
    let next = page["next"].as_str().map(str::to_owned);
    Ok((page["entries"].as_array_mut().map(std::mem::take).unwrap_or_default(), next))
}

/// Prints a line for each entry of a namespace; with the older versions that are kept, oldest first, if `history` is true. A secret's older versions
/// have no content, and are left out.
pub(super) async fn export(remote: &Remote, namespace: &str, history: bool) -> Result<(), Failure> {
    let mut from = Some(String::new());
    while let Some(after) = from {
        let entries;
        (entries, from) = page(remote, namespace, &after).await?;
        for entry in entries {
            let name = |key: &str| entry[key].as_str().unwrap_or_default();
            let path = path_of(namespace, name("group"), name("id"));
            // Not the content of a gray release that is for this client.
            let whole = remote.ask(Method::GET, &format!("{path}?current"), None).await?;
            let mut line = line_of(&whole);
            if history {
                let found = remote.ask(Method::GET, &format!("{path}/history"), None).await?;
                let older = found["versions"].as_array().into_iter().flatten();
                let older = older.filter(|one| one["version"] != whole["version"] && one["content"].is_string());
                let mut older: Vec<Value> = older.map(publication).collect();
                older.reverse();
                line["versions"] = older.into();
            }
            terminal::line(json!({ "namespace": namespace, "config": line }));
        }
    }
    Ok(())
}

/// Returns an entry as it is exported: its name, and the publication that makes it again.
fn line_of(entry: &Value) -> Value {
    let mut line = publication(entry);
    for field in ["group", "id"] {
        line[field] = entry[field].clone();
    }
    line
}

/// Returns the publication that makes a version again.
fn publication(version: &Value) -> Value {
    let mut body = json!({});
    for field in ["content", "type", "description", "app", "tags", "secret", "cipher_key"] {
        if let Some(value) = version.get(field).filter(|value| !value.is_null()) {
            body[field] = value.clone();
        }
    }
    body
}

/// Publishes an entry of an exported line, with its older versions first if the registry has no such entry. True if anything changed.
pub(super) async fn publish(remote: &Remote, namespace: &str, line: &Value) -> Result<bool, Failure> {
    let name = |key: &str| {
        let missing = || Failure::runtime(format!("config.{key}: expected text"));
        line[key].as_str().filter(|text| !text.is_empty()).ok_or_else(missing)
    };
    let path = path_of(namespace, name("group")?, name("id")?);
    if let Some(older) = line["versions"].as_array().filter(|older| !older.is_empty())
        && remote.ask(Method::GET, &format!("{path}?current"), None).await.is_err()
    {
        for version in older {
            remote.ask(Method::PUT, &path, Some(&publication(version))).await?;
        }
    }
    let answer = remote.ask(Method::PUT, &path, Some(&publication(line))).await?;
    Ok(answer["changed"] == true)
}

/// A Nacos to import from.
struct Nacos {
    remote: Remote,
    base: String,
    /// True if it has version 3 of the API only.
    is_new: bool,
}

/// An entry's name in Nacos.
#[derive(Debug, PartialEq, Eq)]
struct Name {
    group: String,
    id: String,
}

async fn import(remote: &Remote, args: &ConfigImportArgs) -> Result<(), Failure> {
    let nacos = Nacos::open(args).await?;
    let namespaces = if args.namespace.is_empty() { nacos.namespaces().await? } else { args.namespace.clone() };
    let (mut written, mut same, mut failed) = (0_u64, 0_u64, 0_u64);
    for namespace in namespaces {
        // The default one has no name in version 1.
        let target = if namespace.is_empty() { "public" } else { &namespace };
        for name in nacos.names(&namespace).await? {
            let Some(body) = of_nacos(&nacos.entry(&namespace, &name).await?) else {
                continue;
            };
            match remote.ask(Method::PUT, &path_of(target, &name.group, &name.id), Some(&body)).await {
                Ok(answer) if answer["changed"] == true => written += 1,
                Ok(_) => same += 1,
                Err(error) => {
                    failed += 1;
                    terminal::note(format_args!("{target}: {}/{}: {error}", name.group, name.id));
                }
            }
        }
    }
    terminal::note(format_args!("{written} entries published, {same} were there already"));
    match failed {
        0 => Ok(()),
        1 => Err(Failure::runtime("1 entry was refused")),
        many => Err(Failure::runtime(format!("{many} entries were refused"))),
    }
}

impl Nacos {
    /// Logs in, if there is a user, and finds out the version.
    async fn open(args: &ConfigImportArgs) -> Result<Nacos, Failure> {
        let (mut remote, base) = source(&args.nacos, None)?;
        let mut token = None;
        if let Some(user) = &args.user {
            let password = args.password.as_deref().unwrap_or_default();
            let login = format!("?username={}&password={}", segment(user), segment(password));
            let (new, old) = (format!("{base}/v3/auth/user/login"), format!("{base}/v1/auth/users/login"));
            let answer = match remote.ask(Method::POST, &(old + &login), None).await {
                Ok(answer) => answer,
                Err(_) => remote.ask(Method::POST, &(new + &login), None).await?,
            };
            let found = answer["accessToken"].as_str().or_else(|| answer["data"]["accessToken"].as_str());
            token = Some(found.ok_or_else(|| strange(&args.nacos, "its login gave no accessToken"))?.to_owned());
        }
        if token.is_some() {
            (remote, _) = source(&args.nacos, token)?;
        }
        let mut nacos = Nacos { remote, base, is_new: false };
        // Nacos 3 has removed version 1.
        nacos.is_new = nacos.page("", 1, 1).await.is_err();
        if nacos.is_new {
            nacos.page("", 1, 1).await?;
        }
        Ok(nacos)
    }

    async fn get(&self, path: &str) -> Result<Value, Failure> {
        let mut answer = self.remote.ask(Method::GET, &format!("{}{path}", self.base), None).await?;
        Ok(if self.is_new { answer["data"].take() } else { answer })
    }

    /// Returns the ids of all namespaces.
    async fn namespaces(&self) -> Result<Vec<String>, Failure> {
        let path = if self.is_new { "/v3/admin/core/namespace/list" } else { "/v1/console/namespaces" };
        let advise = |error: Failure| error.advise("name the namespaces with --namespace");
        let answer = self.get(path).await.map_err(advise)?;
        let list = if self.is_new { &answer } else { &answer["data"] };
        Ok(list.as_array().into_iter().flatten().filter_map(|it| it["namespace"].as_str()).map(str::to_owned).collect())
    }

    async fn page(&self, namespace: &str, number: usize, size: usize) -> Result<Value, Failure> {
        let place = segment(namespace);
        let page = format!("search=accurate&dataId=&pageNo={number}&pageSize={size}");
        self.get(&match self.is_new {
            true => format!("/v3/admin/cs/config/list?{page}&groupName=&namespaceId={place}"),
            false => format!("/v1/cs/configs?{page}&group=&tenant={place}"),
        })
        .await
    }

    /// Returns the names of all entries of a namespace.
    async fn names(&self, namespace: &str) -> Result<Vec<Name>, Failure> {
        let mut names = Vec::new();
        for number in 1..=MOST_PAGES {
            let page = self.page(namespace, number, PAGE).await?;
            let items = page["pageItems"].as_array().map(Vec::as_slice).unwrap_or_default();
            names.extend(items.iter().filter_map(name_of));
            if items.is_empty() || number as u64 >= page["pagesAvailable"].as_u64().unwrap_or(0) {
                break;
            }
        }
        Ok(names)
    }

    /// Returns an entry with its content and attributes.
    async fn entry(&self, namespace: &str, name: &Name) -> Result<Value, Failure> {
        let (id, group, place) = (segment(&name.id), segment(&name.group), segment(namespace));
        self.get(&match self.is_new {
            true => format!("/v3/admin/cs/config?dataId={id}&groupName={group}&namespaceId={place}"),
            false => format!("/v1/cs/configs?show=all&dataId={id}&group={group}&tenant={place}"),
        })
        .await
    }
}

fn name_of(item: &Value) -> Option<Name> {
    let group = item["group"].as_str().or_else(|| item["groupName"].as_str())?;
    Some(Name { group: group.to_owned(), id: item["dataId"].as_str()?.to_owned() })
}

/// Translates an entry; `None` for one that was removed meanwhile.
fn of_nacos(entry: &Value) -> Option<Value> {
    let text = |key: &str| entry[key].as_str().filter(|text| !text.is_empty());
    let tags = text("configTags").or_else(|| text("config_tags")).unwrap_or_default();
    let tags: Vec<&str> = tags.split(',').map(str::trim).filter(|tag| !tag.is_empty()).collect();
    let mut body = json!({ "content": entry["content"].as_str()?, "tags": tags });
    for (to, value) in [
        ("type", text("type")),
        ("description", text("desc")),
        ("app", text("appName")),
        ("cipher_key", text("encryptedDataKey")),
    ] {
        if let Some(value) = value {
            body[to] = value.into();
        }
    }
    Some(body)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn an_exported_entry_makes_the_same_again() {
        let shown = json!({
            "group": "g", "id": "a", "content": "x", "type": "yaml", "description": "", "tags": [], "secret": true, "version": 7, "md5": "m",
            "author": "ann", "addresses": [],
        });
        let body = json!({ "content": "x", "type": "yaml", "description": "", "tags": [], "secret": true });
        assert_eq!(publication(&shown), body);
        let line = line_of(&shown);
        assert_eq!((&line["group"], &line["id"], publication(&line)), (&json!("g"), &json!("a"), body));
    }

    #[test]
    fn entries_of_nacos() {
        let old = json!({ "dataId": "a", "group": "g", "content": "x", "type": "yaml", "appName": "", "desc": null, "configTags": "t, u" });
        assert_eq!(of_nacos(&old), Some(json!({ "content": "x", "tags": ["t", "u"], "type": "yaml" })));
        assert_eq!(name_of(&old), Some(Name { group: "g".into(), id: "a".into() }));
        let new = json!({ "dataId": "a", "groupName": "g", "content": "", "encryptedDataKey": "k" });
        assert_eq!(of_nacos(&new), Some(json!({ "content": "", "tags": [], "cipher_key": "k" })));
        assert_eq!(name_of(&new), name_of(&old));
        assert_eq!((of_nacos(&Value::Null), name_of(&Value::Null)), (None, None));
    }
}
