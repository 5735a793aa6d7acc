//! S3 and what speaks like it, by the crate `object_store`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use object_store::aws::{AmazonS3, AmazonS3Builder, AwsCredential, S3ConditionalPut};
use object_store::client::CredentialProvider;
use object_store::path::Path;
use object_store::{
    BackoffConfig, Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, RetryConfig,
};
use secret::{Secret, Source};

use crate::config::ArchiveConfig;
use crate::http::Client;
use crate::seal::LARGEST;
use crate::store::{Created, Listed, MOST_LISTED, Store, StoreError, causes};

/// Longest time of a command that writes credentials.
const COMMAND: Duration = Duration::from_secs(10);

/// An archive in a bucket.
#[derive(Debug)]
pub struct S3Store {
    store: AmazonS3,
    name: String,
    prefix: String,
    credentials: Arc<Credentials>,
}

/// Credentials, read when they are first needed, and again after a refusal.
#[derive(Debug)]
struct Credentials {
    given: Given,
    known: Mutex<Option<Arc<AwsCredential>>>,
}

#[derive(Debug)]
enum Given {
    Here(Secret),
    Elsewhere(Source),
}

impl Credentials {
    fn read(&self) -> Result<Arc<AwsCredential>, String> {
        let read = match &self.given {
            Given::Here(secret) => secret.clone(),
            Given::Elsewhere(source) => source.read(COMMAND).map_err(|error| {
                // The keys have other names than those of passwords.
                error.to_string().replace("password_", "credentials_").replace("a password", "credentials")
            })?,
        };
        let mut parts = read.expose().splitn(3, ':').map(str::to_owned);
        match (parts.next(), parts.next()) {
            (Some(key_id), Some(secret_key)) if !key_id.is_empty() && !secret_key.is_empty() => {
                Ok(Arc::new(AwsCredential { key_id, secret_key, token: parts.next() }))
            }
            // Not even the key's identifier: the text may be the secret.
            _ => Err("the credentials are not of the form KEY_ID:SECRET or KEY_ID:SECRET:TOKEN".into()),
        }
    }

    fn forget(&self) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[async_trait]
impl CredentialProvider for Credentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*known {
            return Ok(Arc::clone(known));
        }
        // May block for the time of a command; the caller's thread does nothing but archive.
        let read =
            self.read().map_err(|why| Error::Unauthenticated { path: "credentials".into(), source: why.into() })?;
        *known = Some(Arc::clone(&read));
        Ok(read)
    }
}

impl S3Store {
    /// Makes the store of a configuration. Credentials are read with the first request.
    ///
    /// # Errors
    /// [`StoreError::Settings`]: a setting cannot be used.
    pub fn new(config: &ArchiveConfig) -> Result<S3Store, StoreError> {
        let wrong = |why: String| StoreError::Settings(format!("relay.archive: {why}"));
        let (bucket, prefix) = config.bucket().ok_or_else(|| wrong(format!("url is {:?}", config.url)))?;
        let source = Source::of(config.credentials_file.as_deref(), &config.credentials_command);
        let given = match (&config.credentials, source) {
            (Some(given), _) => Given::Here(Secret::new(given.clone())),
            (None, Some(source)) => Given::Elsewhere(source),
            (None, None) => return Err(wrong("no credentials are given".into())),
        };
        let secured = tls::ConnectConfig {
            mode: tls::ConnectMode::VerifyFull,
            ca_file: Some(config.ca_file.clone().unwrap_or_else(|| tls::system_authorities().to_owned())),
            ..tls::ConnectConfig::default()
        };
        // A host without a list of CAs can reach an http endpoint.
        let connector = if config.endpoint.starts_with("http://") {
            None
        } else {
            tls::Connector::new(&secured).map_err(|error| wrong(format!("ca_file: {error}")))?.map(Arc::new)
        };
        let credentials = Arc::new(Credentials { given, known: Mutex::default() });
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(bucket)
            .with_region(&config.region)
            .with_credentials(Arc::clone(&credentials) as _)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_allow_http(true)
            .with_http_connector(Client::new(connector, config.timeout))
            .with_retry(RetryConfig {
                backoff: BackoffConfig {
                    init_backoff: Duration::from_millis(100),
                    max_backoff: Duration::from_secs(5),
                    base: 2.0,
                },
                max_retries: 3,
                retry_timeout: config.timeout,
            });
        if !config.endpoint.is_empty() {
            builder = builder.with_endpoint(&config.endpoint);
        }
        let store = builder.build().map_err(|error| wrong(causes(&error)))?;
        Ok(S3Store { store, name: config.url.clone(), prefix: prefix.into(), credentials })
    }

    fn path(&self, path: &str) -> Path {
        if self.prefix.is_empty() { Path::from(path) } else { Path::from(format!("{}/{path}", self.prefix)) }
    }

    /// Runs an operation, and once more with credentials that are read again if it was refused. After any other failure the next operation reads them:
    /// services disagree on how to refuse.
    async fn run<T, F: Future<Output = object_store::Result<T>>>(
        &self,
        operation: impl Fn() -> F,
    ) -> object_store::Result<T> {
        match operation().await {
            Err(error) if is_refusal(&error) => {
                self.credentials.forget();
                operation().await
            }
            Err(error) => {
                if !is_outcome(&error) {
                    self.credentials.forget();
                }
                Err(error)
            }
            Ok(value) => Ok(value),
        }
    }

    fn failed(&self, tried: &'static str, path: &str, error: &Error) -> StoreError {
        let (path, store, why) = (path.to_owned(), self.name.clone(), causes(error));
        if is_refusal(error) {
            StoreError::Refused { tried, path, store, why }
        } else {
            StoreError::Failed { tried, path, store, why }
        }
    }

    async fn put(&self, path: &str, object: Bytes, mode: PutMode) -> object_store::Result<()> {
        let to = self.path(path);
        let put = || {
            let options = PutOptions { mode: mode.clone(), ..PutOptions::default() };
            self.store.put_opts(&to, object.clone().into(), options)
        };
        self.run(put).await.map(|_| ())
    }
}

/// True if the object is not there. A missing bucket, and the 404 of some services for an unknown key, say nothing about the object.
fn is_absent(error: &Error) -> bool {
    matches!(error, Error::NotFound { .. }) && causes(error).contains("NoSuchKey")
}

/// True for an answer about the object, rather than a failure.
fn is_outcome(error: &Error) -> bool {
    matches!(error, Error::AlreadyExists { .. } | Error::Precondition { .. }) || is_absent(error)
}

/// True for a refusal of the credentials. Services disagree on its status: Amazon's says 400 for an expired token.
fn is_refusal(error: &Error) -> bool {
    const CODES: [&str; 4] = ["InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"];
    let code = || {
        let text = causes(error);
        CODES.iter().any(|code| text.contains(code))
    };
    matches!(error, Error::PermissionDenied { .. } | Error::Unauthenticated { .. }) || code()
}

#[async_trait]
impl Store for S3Store {
    fn name(&self) -> &str {
        &self.name
    }

    async fn create(&self, path: &str, object: Bytes) -> Result<Created, StoreError> {
        match self.put(path, object, PutMode::Create).await {
            Ok(()) => Ok(Created::New),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(Created::Exists),
            Err(Error::NotImplemented { .. } | Error::NotSupported { .. }) => Ok(Created::Unsupported),
            // The answer of a service that does not know the header.
            Err(error) if causes(&error).contains("NotImplemented") => Ok(Created::Unsupported),
            Err(error) => Err(self.failed("write", path, &error)),
        }
    }

    async fn overwrite(&self, path: &str, object: Bytes) -> Result<(), StoreError> {
        self.put(path, object, PutMode::Overwrite).await.map_err(|error| self.failed("write", path, &error))
    }

    async fn read(&self, path: &str, bytes: Option<usize>) -> Result<Option<Bytes>, StoreError> {
        let from = self.path(path);
        let read = || async {
            let range = bytes.map(|bytes| GetRange::Bounded(0..bytes as u64));
            let got = self.store.get_opts(&from, GetOptions { range, ..GetOptions::default() }).await?;
            if got.meta.size > LARGEST as u64 && bytes.is_none() {
                let source = format!("it has {} bytes, more than any object has", got.meta.size);
                return Err(Error::Generic { store: "S3", source: source.into() });
            }
            got.bytes().await
        };
        match self.run(read).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(self.failed("read", path, &error)),
        }
    }

    async fn list(&self, directory: &str) -> Result<Vec<Listed>, StoreError> {
        use futures_util::TryStreamExt as _;
        let prefix = self.path(directory);
        let list = || async {
            let mut listing = self.store.list(Some(&prefix));
            let mut listed = Vec::new();
            while let Some(object) = listing.try_next().await? {
                if listed.len() == MOST_LISTED {
                    return Ok(None);
                }
                let path = object.location.as_ref();
                let path = path.strip_prefix(&self.prefix).unwrap_or(path).trim_start_matches('/');
                listed.push(Listed { path: path.to_owned(), size: object.size });
            }
            Ok(Some(listed))
        };
        match self.run(list).await {
            Ok(Some(listed)) => Ok(listed),
            Ok(None) => Err(StoreError::TooMany { directory: directory.into(), store: self.name.clone() }),
            Err(error) => Err(self.failed("list", directory, &error)),
        }
    }

    async fn directories(&self, directory: &str) -> Result<Vec<String>, StoreError> {
        let prefix = self.path(directory);
        let list = || self.store.list_with_delimiter(Some(&prefix));
        let listed = self.run(list).await.map_err(|error| self.failed("list", directory, &error))?;
        if listed.common_prefixes.len() > MOST_LISTED {
            return Err(StoreError::TooMany { directory: directory.into(), store: self.name.clone() });
        }
        let below = |path: &Path| {
            let path: &str = path.as_ref();
            path.strip_prefix(&self.prefix).unwrap_or(path).trim_matches('/').to_owned()
        };
        Ok(listed.common_prefixes.iter().map(below).collect())
    }

    async fn remove(&self, path: &str) -> Result<(), StoreError> {
        let target = self.path(path);
        match self.run(|| self.store.delete(&target)).await {
            Ok(()) => Ok(()),
            Err(error) if is_absent(&error) => Ok(()),
            Err(error) => Err(self.failed("remove", path, &error)),
        }
    }
}
