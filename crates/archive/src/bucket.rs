//! Buckets of S3, Google Cloud Storage and Azure Blob Storage, by the crate `object_store`.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use object_store::client::{HttpError, HttpErrorKind};
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions};
use secret::{Secret, Source};

use crate::config::ArchiveConfig;
use crate::connection::Connection;
use crate::credentials::{Credentials, forms};
use crate::http::Client;
use crate::location::{Bucket, Service};
use crate::seal::LARGEST;
use crate::store::{Created, Listed, MOST_LISTED, Store, StoreError, causes, chain, says};
use crate::{azure, gcs, s3};

/// Pauses before a creation that met another one of the same object is sent again.
const CONFLICTS: [Duration; 3] = [Duration::from_millis(100), Duration::from_millis(200), Duration::from_millis(400)];

/// Longest time of a command that writes credentials.
const COMMAND: Duration = Duration::from_secs(10);

/// An archive in a bucket.
pub struct BucketStore {
    bucket: Bucket,
    name: String,
    endpoint: String,
    region: String,
    timeout: Duration,
    given: Given,
    http: Client,
    /// Client with the credentials as last read.
    client: Mutex<Option<Arc<dyn ObjectStore>>>,
}

impl fmt::Debug for BucketStore {
    /// Leaves out the client, which shows its credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BucketStore")
            .field("name", &self.name)
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

/// Origin of the credentials.
enum Given {
    Here(Secret),
    Elsewhere(Source),
    /// The cloud gives this host or pod an identity.
    Host,
}

impl Given {
    /// Reads the credentials; None for the identity of the host. Blocks for the time of a command.
    fn read(&self, service: Service) -> Result<Option<Credentials>, String> {
        let secret = match self {
            Given::Host => return Ok(None),
            Given::Here(secret) => secret.clone(),
            Given::Elsewhere(source) => source.read_whole(COMMAND).map_err(|error| {
                // The keys have other names than those of passwords.
                error.to_string().replace("password_", "credentials_").replace("a password", "credentials")
            })?,
        };
        Ok(Some(Credentials::parse(service, secret.expose())?))
    }
}

impl BucketStore {
    /// Makes the store of a configuration. Credentials are read with the first request.
    ///
    /// # Errors
    /// [`StoreError::Settings`]: a setting cannot be used.
    pub fn new(bucket: Bucket, config: &ArchiveConfig) -> Result<BucketStore, StoreError> {
        let wrong = |why: String| StoreError::Settings(format!("relay.archive: {why}"));
        let source = Source::of(config.credentials_file.as_deref(), &config.credentials_command);
        let given = match (&config.credentials, source) {
            (Some(given), _) => Given::Here(Secret::new(given.clone())),
            (None, Some(source)) => Given::Elsewhere(source),
            (None, None) if config.host_identity => Given::Host,
            (None, None) => return Err(wrong("no credentials are given".into())),
        };
        let secured = tls::ConnectConfig {
            mode: tls::ConnectMode::VerifyFull,
            ca_file: Some(config.ca_file.clone().unwrap_or_else(|| tls::system_authorities().to_owned())),
            ..tls::ConnectConfig::default()
        };
        let connector = match tls::Connector::new(&secured) {
            Ok(connector) => connector.map(Arc::new),
            // A host without a list of CAs can reach an http endpoint.
            Err(_) if config.endpoint.starts_with("http://") => None,
            Err(error) => return Err(wrong(format!("ca_file: {error}"))),
        };
        let store = BucketStore {
            bucket,
            name: config.url.clone(),
            endpoint: config.endpoint.trim_end_matches('/').to_owned(),
            region: config.region.clone(),
            timeout: config.timeout,
            given,
            http: Client::new(connector, config.timeout),
            client: Mutex::default(),
        };
        // Settings that no client can be made of are found here, with credentials of any value.
        let any = || "any".to_owned();
        let credentials = match store.bucket.service() {
            Service::S3 => Credentials::Key { id: any(), secret: any(), session: None },
            Service::Gcs | Service::Azure => Credentials::Token(any()),
        };
        store.make(Some(credentials)).map_err(|error| wrong(causes(&error)))?;
        Ok(store)
    }

    /// Makes a client.
    fn make(&self, credentials: Option<Credentials>) -> object_store::Result<Arc<dyn ObjectStore>> {
        let with = Connection {
            bucket: &self.bucket,
            endpoint: Some(self.endpoint.as_str()).filter(|endpoint| !endpoint.is_empty()),
            region: &self.region,
            http: &self.http,
            timeout: self.timeout,
        };
        match self.bucket.service() {
            Service::S3 => s3::client(&with, credentials),
            Service::Gcs => gcs::client(&with, credentials),
            Service::Azure => azure::client(&with, credentials),
        }
    }

    /// Returns the client; reads the credentials if they are not known, or were forgotten.
    fn client(&self) -> object_store::Result<Arc<dyn ObjectStore>> {
        let mut known = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*known {
            return Ok(Arc::clone(known));
        }
        let unusable = |why: String| Error::Unauthenticated { path: "credentials".into(), source: why.into() };
        let service = self.bucket.service();
        // May block for the time of a command; the caller's thread does nothing but archive.
        let credentials = self.given.read(service).map_err(unusable)?;
        let expected = match &credentials {
            Some(_) => forms(service),
            None => "the identity of this host cannot be used: its file or its variables are damaged",
        };
        // The crate's error may repeat a part of the credentials.
        let made = self.make(credentials).map_err(|_| unusable(expected.into()))?;
        *known = Some(Arc::clone(&made));
        Ok(made)
    }

    /// Has the next operation read the credentials again.
    fn forget(&self) {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn path(&self, path: &str) -> Path {
        match self.bucket.prefix() {
            "" => Path::from(path),
            prefix => Path::from(format!("{prefix}/{path}")),
        }
    }

    /// Returns a path below the archive's root.
    fn below(&self, path: &Path) -> String {
        let path: &str = path.as_ref();
        path.strip_prefix(self.bucket.prefix()).unwrap_or(path).trim_matches('/').to_owned()
    }

    /// Runs an operation, and once more with credentials that are read again if it was refused. After any other failure the next operation reads them:
    /// services disagree on how to refuse.
    async fn run<T, F: Future<Output = object_store::Result<T>>>(
        &self,
        operation: impl Fn(Arc<dyn ObjectStore>) -> F,
    ) -> object_store::Result<T> {
        match operation(self.client()?).await {
            Err(error) if is_refusal(&error) => {
                self.forget();
                operation(self.client()?).await
            }
            Err(error) => {
                if !self.is_outcome(&error) {
                    self.forget();
                }
                Err(error)
            }
            Ok(value) => Ok(value),
        }
    }

    /// True if the object is not there.
    fn is_absent(&self, error: &Error) -> bool {
        matches!(error, Error::NotFound { .. }) && says(error, &[self.bucket.service().absent()])
    }

    /// True if an object of that name was there already.
    fn exists(&self, error: &Error) -> bool {
        matches!(error, Error::AlreadyExists { .. } | Error::Precondition { .. })
            && self.bucket.service().says_exists(&chain(error))
    }

    /// True for an answer about the object, rather than a failure.
    fn is_outcome(&self, error: &Error) -> bool {
        self.exists(error) || self.is_absent(error)
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
        let put = |client: Arc<dyn ObjectStore>| {
            let options = PutOptions { mode: mode.clone(), ..PutOptions::default() };
            let (to, object) = (to.clone(), object.clone());
            async move { client.put_opts(&to, object.into(), options).await }
        };
        self.run(put).await.map(|_| ())
    }
}

/// True for a connection that was made and ended without an answer.
fn broke_off(error: &Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<HttpError>() {
            return !matches!(error.kind(), HttpErrorKind::Connect | HttpErrorKind::Timeout);
        }
        cause = error.source();
    }
    false
}

/// True for a refusal of the credentials. Services disagree on its status: Amazon's says 400 for an expired token, and so does the issuer of tokens.
fn is_refusal(error: &Error) -> bool {
    const SAID: [&str; 8] = [
        "status code: 401",
        "status code: 403",
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "InvalidToken",
        "invalid_client",
        "invalid_grant",
    ];
    matches!(error, Error::PermissionDenied { .. } | Error::Unauthenticated { .. }) || says(error, &SAID)
}

#[async_trait]
impl Store for BucketStore {
    fn name(&self) -> &str {
        &self.name
    }

    async fn create(&self, path: &str, object: Bytes) -> Result<Created, StoreError> {
        let mut put = self.put(path, object.clone(), PutMode::Create).await;
        for pause in CONFLICTS {
            if !put.as_ref().is_err_and(|error| self.bucket.service().says_conflict(&chain(error))) {
                break;
            }
            tokio::time::sleep(pause).await;
            put = self.put(path, object.clone(), PutMode::Create).await;
        }
        match put {
            Ok(()) => Ok(Created::New),
            Err(error) if self.exists(&error) => Ok(Created::Exists),
            Err(Error::NotImplemented { .. } | Error::NotSupported { .. }) => Ok(Created::Unsupported),
            // The answer of a service that does not know the header.
            Err(error) if says(&error, &["NotImplemented"]) => Ok(Created::Unsupported),
            // A service that refuses before it has read the object closes the connection; its answer may be lost.
            Err(error) if broke_off(&error) && matches!(self.read(path, Some(1)).await, Ok(Some(_))) => {
                Ok(Created::Exists)
            }
            Err(error) => Err(self.failed("write", path, &error)),
        }
    }

    async fn overwrite(&self, path: &str, object: Bytes) -> Result<(), StoreError> {
        self.put(path, object, PutMode::Overwrite).await.map_err(|error| self.failed("write", path, &error))
    }

    async fn read(&self, path: &str, bytes: Option<usize>) -> Result<Option<Bytes>, StoreError> {
        let from = self.path(path);
        let read = |client: Arc<dyn ObjectStore>| {
            let from = from.clone();
            async move {
                let range = bytes.map(|bytes| GetRange::Bounded(0..bytes as u64));
                let got = client.get_opts(&from, GetOptions { range, ..GetOptions::default() }).await?;
                if got.meta.size > LARGEST as u64 && bytes.is_none() {
                    let source = format!("it has {} bytes, more than any object has", got.meta.size);
                    return Err(Error::Generic { store: "archive", source: source.into() });
                }
                got.bytes().await
            }
        };
        match self.run(read).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if self.is_absent(&error) => Ok(None),
            Err(error) => Err(self.failed("read", path, &error)),
        }
    }

    async fn list(&self, directory: &str) -> Result<Vec<Listed>, StoreError> {
        use futures_util::TryStreamExt as _;
        let prefix = self.path(directory);
        let list = |client: Arc<dyn ObjectStore>| {
            let prefix = prefix.clone();
            async move {
                let mut listing = client.list(Some(&prefix));
                let mut listed = Vec::new();
                while let Some(object) = listing.try_next().await? {
                    if listed.len() == MOST_LISTED {
                        return Ok(None);
                    }
                    listed.push(Listed { path: self.below(&object.location), size: object.size });
                }
                Ok(Some(listed))
            }
        };
        match self.run(list).await {
            Ok(Some(listed)) => Ok(listed),
            Ok(None) => Err(StoreError::TooMany { directory: directory.into(), store: self.name.clone() }),
            Err(error) => Err(self.failed("list", directory, &error)),
        }
    }

    async fn directories(&self, directory: &str) -> Result<Vec<String>, StoreError> {
        let prefix = self.path(directory);
        let list = |client: Arc<dyn ObjectStore>| {
            let prefix = prefix.clone();
            async move { client.list_with_delimiter(Some(&prefix)).await }
        };
        let listed = self.run(list).await.map_err(|error| self.failed("list", directory, &error))?;
        if listed.common_prefixes.len() > MOST_LISTED {
            return Err(StoreError::TooMany { directory: directory.into(), store: self.name.clone() });
        }
        Ok(listed.common_prefixes.iter().map(|path| self.below(path)).collect())
    }

    async fn remove(&self, path: &str) -> Result<(), StoreError> {
        let target = self.path(path);
        let remove = |client: Arc<dyn ObjectStore>| {
            let target = target.clone();
            async move { client.delete(&target).await }
        };
        match self.run(remove).await {
            Ok(()) => Ok(()),
            // Azure removes in batches, in which a status without a code is about a blob.
            Err(Error::NotFound { .. }) if self.bucket.service() == Service::Azure => Ok(()),
            Err(error) if self.is_absent(&error) => Ok(()),
            Err(error) => Err(self.failed("remove", path, &error)),
        }
    }
}

#[cfg(test)]
mod tests;
