//! Configuration files: entries, whose id is the file's name. A version is a release.

use super::*;
use crate::api::configs::{Configs, Waiter, may_read};
use crate::api::credentials::Credentials;
use crate::configuration::{Audience, ConfigClient, ConfigEntry, ConfigKey, Expected, NewConfig};

/// Time that a request waits for a change. Clients wait for twice as long.
const WAIT: Duration = Duration::from_secs(30);
/// Maximum number of files that one request waits for.
const MOST_WATCHED: usize = 10_000;

/// Values of `ConfigDiscoverRequest.type`.
mod kind {
    pub(super) const FILE: i32 = 1;
    pub(super) const NAMES: i32 = 2;
    pub(super) const GROUPS: i32 = 3;
}

/// A file that a client waits for, and the version that it has.
struct Watched {
    namespace: NamespaceName,
    key: ConfigKey,
    version: u64,
    client: ConfigClient,
}

fn text(value: &Option<String>) -> &str {
    value.as_deref().unwrap_or_default()
}

fn reply(code: u32, info: impl Into<String>) -> pb::ConfigClientResponse {
    pb::ConfigClientResponse { code: Some(code), info: Some(info.into()), config_file: None }
}

fn refused(error: &ApiError) -> pb::ConfigClientResponse {
    reply(code_of_config(error), error.to_string())
}

fn code_of_config(error: &ApiError) -> u32 {
    match error {
        ApiError::NotFound { .. } | ApiError::Missing(_) => code::NO_SUCH_CONFIG_FILE,
        error => code_of(error),
    }
}

/// Returns a file; without its content for lists and for a client that is only told of a change.
fn file(namespace: &NamespaceName, entry: &ConfigEntry, with_content: bool) -> pb::ClientConfigFileInfo {
    let tag = |tag: &String| {
        let (key, value) = tag.split_once('=').unwrap_or((tag, ""));
        pb::ConfigFileTag { key: Some(key.to_owned()), value: Some(value.to_owned()) }
    };
    pb::ClientConfigFileInfo {
        namespace: Some(namespace.to_string()),
        group: Some(entry.key.group().to_owned()),
        file_name: Some(entry.key.id().to_owned()),
        content: with_content.then(|| entry.text().to_owned()),
        version: Some(entry.version),
        md5: Some(entry.md5.clone()),
        tags: entry.tags.iter().map(tag).collect(),
        encrypted: Some(false),
        name: Some(format!("version-{}", entry.version)),
        release_time: Some((entry.time / 1000).to_string()),
    }
}

fn of_file(file: &pb::ClientConfigFileInfo) -> Result<(NamespaceName, ConfigKey), ApiError> {
    let namespace = named(file.namespace.as_deref())?;
    Ok((namespace, ConfigKey::new(text(&file.group), text(&file.file_name))?))
}

/// Returns the publication of a file.
fn publication(
    content: Option<String>,
    format: Option<String>,
    comment: Option<String>,
    tags: &[pb::ConfigFileTag],
    encrypted: Option<bool>,
) -> Result<NewConfig, ApiError> {
    if encrypted == Some(true) {
        return Err(ApiError::bad("encrypted files are not supported: publish the file as it is"));
    }
    let tag = |tag: &pb::ConfigFileTag| format!("{}={}", text(&tag.key), text(&tag.value));
    Ok(NewConfig {
        content: content.unwrap_or_default(),
        kind: format.filter(|format| !format.is_empty()),
        description: comment,
        tags: Some(tags.iter().map(tag).collect()),
        ..NewConfig::default()
    })
}

fn missing(key: &ConfigKey) -> ApiError {
    ApiError::NotFound { what: "configuration file", name: key.to_string() }
}

impl Asking<'_> {
    fn configs(&self, namespace: &NamespaceName) -> Configs<'_> {
        Configs { context: self.context, caller: &self.caller, peer: self.peer, namespace: namespace.clone() }
    }

    /// Returns the client that asks for a file. Its labels are the tags of the question.
    fn client(&self, file: &pb::ClientConfigFileInfo) -> ConfigClient {
        let labels = file.tags.iter().map(|tag| (text(&tag.key).to_owned(), text(&tag.value).to_owned()));
        ConfigClient::at(self.peer.to_string()).with(labels)
    }

    fn find(&self, file: &pb::ClientConfigFileInfo) -> Result<(NamespaceName, ConfigEntry), ApiError> {
        let (namespace, key) = of_file(file)?;
        let found = self.configs(&namespace).get(&key, &self.client(file))?;
        Ok((namespace, found.ok_or_else(|| missing(&key))?))
    }

    pub(in crate::api) fn config_file(&self, asked: &pb::ClientConfigFileInfo) -> pb::ConfigClientResponse {
        match self.find(asked) {
            Ok((namespace, entry)) => pb::ConfigClientResponse {
                config_file: Some(file(&namespace, &entry, true)),
                ..reply(code::OK, "execute success")
            },
            Err(error) => refused(&error),
        }
    }

    /// Waits until a file has a later version than the client.
    pub(in crate::api) async fn watch_config_files(
        &self,
        asked: &pb::ClientWatchConfigFileRequest,
        credentials: Credentials,
    ) -> pb::ConfigClientResponse {
        match self.changed_file(asked, credentials).await {
            Ok(Some(changed)) => {
                pb::ConfigClientResponse { config_file: Some(changed), ..reply(code::OK, "execute success") }
            }
            Ok(None) => reply(code::NO_CHANGE, "discover data is no change"),
            Err(error) => refused(&error),
        }
    }

    async fn changed_file(
        &self,
        asked: &pb::ClientWatchConfigFileRequest,
        credentials: Credentials,
    ) -> Result<Option<pb::ClientConfigFileInfo>, ApiError> {
        if asked.watch_files.len() > MOST_WATCHED {
            return Err(ApiError::bad(format!("watch_files: more than {MOST_WATCHED} files")));
        }
        let files: Vec<Watched> = asked
            .watch_files
            .iter()
            .map(|file| {
                let (namespace, key) = of_file(file)?;
                Ok(Watched { namespace, key, version: file.version.unwrap_or(0), client: self.client(file) })
            })
            .collect::<Result<_, ApiError>>()?;
        for file in &files {
            self.caller.enters(Access::Read, file.namespace.as_str())?;
        }
        let registry = &self.context.registry;
        // Without the right to read a file, it is absent.
        let current = |caller: &Caller, file: &Watched| {
            let found = || registry.config_for(&file.namespace, &file.key, &file.client).ok().flatten();
            may_read(caller, &file.namespace, &file.key).then(found).flatten()
        };
        let is_new =
            |caller: &Caller, file: &Watched| current(caller, file).is_some_and(|entry| entry.version > file.version);
        let client = ConfigClient::default();
        let waiter = Waiter { context: self.context, credentials: credentials.clone(), peer: self.peer, client };
        let found = waiter.wait_for(&files, |file| (&file.namespace, &file.key), WAIT, is_new).await?;
        let Some(watched) = found.first() else { return Ok(None) };
        // As of now: tokens end while a client waits.
        let entry = current(&credentials.identify(self.context)?, watched);
        Ok(entry.map(|entry| file(&watched.namespace, &entry, false)))
    }

    pub(in crate::api) async fn publish_config_file(
        &self,
        asked: pb::ConfigFilePublishInfo,
    ) -> pb::ConfigClientResponse {
        let done = async {
            let namespace = named(asked.namespace.as_deref())?;
            let key = ConfigKey::new(text(&asked.group), text(&asked.file_name))?;
            let new = publication(asked.content, asked.format, asked.comment, &asked.tags, asked.encrypted)?;
            let expected = asked.md5.filter(|md5| !md5.is_empty()).map_or(Expected::Anything, Expected::Md5);
            let change = self.configs(&namespace).publish(&key, &new, &expected, &Audience::default()).await?;
            Ok::<_, ApiError>(change.entry.map(|entry| file(&namespace, &entry, false)))
        };
        match done.await {
            Ok(config_file) => pb::ConfigClientResponse { config_file, ..reply(code::OK, "execute success") },
            Err(error) => refused(&error),
        }
    }

    /// Writes a draft of a file, which no client gets until it is published.
    pub(in crate::api) async fn draft_config_file(
        &self,
        asked: pb::ConfigFile,
        create: bool,
    ) -> pb::ConfigClientResponse {
        let done = async {
            let namespace = named(asked.namespace.as_deref())?;
            let key = ConfigKey::new(text(&asked.group), text(&asked.name))?;
            let new = publication(asked.content, asked.format, asked.comment, &asked.tags, asked.encrypted)?;
            self.configs(&namespace).draft(&key, &new, create).await
        };
        match done.await {
            Ok(()) => reply(code::OK, "execute success"),
            Err(ApiError::Conflict(why)) if create => reply(code::EXISTS, why),
            Err(error) => refused(&error),
        }
    }

    /// Publishes the draft of a file.
    pub(in crate::api) async fn release_config_file(&self, asked: &pb::ConfigFileRelease) -> pb::ConfigClientResponse {
        let done = async {
            let namespace = named(asked.namespace.as_deref())?;
            let key = ConfigKey::new(text(&asked.group), text(&asked.file_name))?;
            let change = self.configs(&namespace).release(&key).await?;
            Ok::<_, ApiError>(change.entry.map(|entry| file(&namespace, &entry, false)))
        };
        match done.await {
            Ok(config_file) => pb::ConfigClientResponse { config_file, ..reply(code::OK, "execute success") },
            Err(error) => refused(&error),
        }
    }

    async fn files(&self, namespace: &NamespaceName, group: &str) -> Result<Vec<ConfigEntry>, ApiError> {
        self.configs(namespace).list(Some(group)).await
    }

    /// Lists the files of a group. The revision is a digest of what the caller sees.
    pub(in crate::api) async fn list_config_files(
        &self,
        asked: &pb::ConfigFileGroupRequest,
    ) -> pb::ConfigClientListResponse {
        let group = asked.config_file_group.clone().unwrap_or_default();
        let listed = async {
            let namespace = named(group.namespace.as_deref())?;
            let entries = self.files(&namespace, text(&group.name)).await?;
            Ok::<_, ApiError>((
                revision_of(&entries),
                entries.iter().map(|entry| file(&namespace, entry, false)).collect::<Vec<_>>(),
            ))
        };
        let mut answer = pb::ConfigClientListResponse {
            namespace: text(&group.namespace).to_owned(),
            group: text(&group.name).to_owned(),
            ..Default::default()
        };
        let (code, info) = match listed.await {
            Ok((revision, _)) if asked.revision.as_ref() == Some(&revision) => {
                (code::NO_CHANGE, "discover data is no change".to_owned())
            }
            Ok((revision, files)) => {
                (answer.revision, answer.config_file_infos) = (Some(revision), files);
                (code::OK, "execute success".to_owned())
            }
            Err(error) => (code_of_config(&error), ApiError::to_string(&error)),
        };
        (answer.code, answer.info) = (Some(code), Some(info));
        answer
    }

    pub(in crate::api) async fn discover_config(
        &self,
        asked: &pb::ConfigDiscoverRequest,
    ) -> pb::ConfigDiscoverResponse {
        let wanted = asked.config_file.clone().unwrap_or_default();
        let mut answer = pb::ConfigDiscoverResponse { r#type: asked.r#type, ..Default::default() };
        let found = async {
            let namespace = named(wanted.namespace.as_deref())?;
            match asked.r#type {
                kind::FILE => {
                    let (_, entry) = self.find(&wanted)?;
                    answer.config_file = Some(file(&namespace, &entry, true));
                    Ok(entry.version.to_string())
                }
                kind::NAMES => {
                    let entries = self.files(&namespace, text(&wanted.group)).await?;
                    answer.config_file_names = entries.iter().map(|entry| file(&namespace, entry, false)).collect();
                    Ok(revision_of(&entries))
                }
                kind::GROUPS => {
                    let entries = self.configs(&namespace).list(None).await?;
                    let mut groups: BTreeMap<&str, u64> = BTreeMap::new();
                    entries.iter().for_each(|entry| *groups.entry(entry.key.group()).or_default() += 1);
                    let group = |(name, count): (&str, u64)| pb::ConfigFileGroup {
                        name: Some(name.to_owned()),
                        namespace: Some(namespace.to_string()),
                        file_count: Some(count),
                    };
                    answer.config_file_groups = groups.into_iter().map(group).collect();
                    Ok(revision_of(&entries))
                }
                other => Err(ApiError::bad(format!("type {other}: expected 1, 2 or 3"))),
            }
        };
        match found.await {
            Ok(revision) if !asked.revision.is_empty() && asked.revision == revision => {
                let r#type = asked.r#type;
                let info = "discover data is no change".to_owned();
                pb::ConfigDiscoverResponse { code: code::NO_CHANGE, info, revision, r#type, ..Default::default() }
            }
            Ok(revision) => {
                pb::ConfigDiscoverResponse { code: code::OK, info: "execute success".to_owned(), revision, ..answer }
            }
            Err(error) => {
                let (code, info) = (code_of_config(&error), error.to_string());
                pb::ConfigDiscoverResponse { code, info, r#type: asked.r#type, ..Default::default() }
            }
        }
    }
}

fn revision_of(entries: &[ConfigEntry]) -> String {
    let mut text = String::new();
    for entry in entries {
        text.push_str(&format!("{}\t{}\n", entry.key, entry.version));
    }
    Digest::of_bytes(text.as_bytes()).to_string()
}
