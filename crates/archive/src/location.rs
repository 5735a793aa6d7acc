//! The store that a URL means. Pure.

use std::path::PathBuf;

/// Place of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A directory, by its absolute path.
    Directory(PathBuf),
    /// A bucket.
    Bucket(Bucket),
}

/// A bucket, and the prefix of the archive in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    service: Service,
    account: String,
    name: String,
    prefix: String,
}

/// Protocol of a storage service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// Amazon S3, and services that speak like it.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
}

/// Forms of a URL, for messages.
pub const FORMS: &str =
    "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://ACCOUNT/CONTAINER/PREFIX or the absolute path of a directory";

/// Longest name of an account or a bucket.
const LONGEST: usize = 222;

impl Location {
    /// Parses a URL. None: it is of none of [`FORMS`].
    #[must_use]
    pub fn parse(url: &str) -> Option<Location> {
        if url.starts_with('/') {
            return Some(Location::Directory(url.into()));
        }
        let (scheme, rest) = url.split_once("://")?;
        let service = Service::ALL.into_iter().find(|service| service.scheme() == scheme)?;
        let (account, rest) = match service {
            Service::Azure => rest.split_once('/')?,
            Service::S3 | Service::Gcs => ("", rest),
        };
        let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        // The account becomes part of a host's name.
        let is_account = |text: &str| is_name(text) && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let is_good = is_name(name) && (service != Service::Azure || is_account(account));
        is_good.then(|| {
            let prefix = prefix.trim_matches('/').to_owned();
            Location::Bucket(Bucket { service, account: account.into(), name: name.into(), prefix })
        })
    }
}

/// True for a text that is a name at every service, as far as requests depend on it.
fn is_name(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=LONGEST).contains(&text.len()) && text.bytes().all(is_part) && text.bytes().any(|byte| byte != b'.')
}

impl Bucket {
    /// Returns the service.
    #[must_use]
    pub fn service(&self) -> Service {
        self.service
    }

    /// Returns the storage account; "" for a service without accounts.
    #[must_use]
    pub fn account(&self) -> &str {
        &self.account
    }

    /// Returns the name of the bucket, or of the container.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the prefix, without slashes around it.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl Service {
    const ALL: [Service; 3] = [Service::S3, Service::Gcs, Service::Azure];

    /// Returns the scheme of its URLs.
    #[must_use]
    pub fn scheme(self) -> &'static str {
        match self {
            Service::S3 => "s3",
            Service::Gcs => "gs",
            Service::Azure => "az",
        }
    }

    /// Returns the code of an answer that says that an object is absent. A missing bucket, and the 404 of some services for an unknown key, have others.
    pub(crate) fn absent(self) -> &'static str {
        match self {
            Service::S3 | Service::Gcs => "NoSuchKey",
            Service::Azure => "BlobNotFound",
        }
    }

    /// True if this text of a failed creation says that the object exists. Azure's status 409 has further meanings.
    pub(crate) fn says_exists(self, text: &str) -> bool {
        match self {
            Service::S3 | Service::Gcs => !self.says_conflict(text),
            Service::Azure => ["BlobAlreadyExists", "ConditionNotMet", "BlobImmutableDueToPolicy"]
                .iter()
                .any(|code| text.contains(code)),
        }
    }

    /// True if this text of a failed creation says that another creation of the object was under way: S3 decides neither, and asks for another attempt.
    pub(crate) fn says_conflict(self, text: &str) -> bool {
        self == Service::S3 && text.contains("ConditionalRequestConflict")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn urls() {
        let bucket = |service, account: &str, name: &str, prefix: &str| {
            let (account, name, prefix) = (account.into(), name.into(), prefix.into());
            Some(Location::Bucket(Bucket { service, account, name, prefix }))
        };
        for (url, expected) in [
            ("", None),
            ("/srv/wal", Some(Location::Directory("/srv/wal".into()))),
            ("srv/wal", None),
            ("s3://b", bucket(Service::S3, "", "b", "")),
            ("s3://b/", bucket(Service::S3, "", "b", "")),
            ("s3://b/of/main/", bucket(Service::S3, "", "b", "of/main")),
            ("s3:///x", None),
            ("s3://..", None),
            ("s3://b?x=y/z", None),
            ("gs://my_bucket.example/of/main", bucket(Service::Gcs, "", "my_bucket.example", "of/main")),
            ("gcs://b/x", None),
            ("az://account/container", bucket(Service::Azure, "account", "container", "")),
            ("az://account/container/of/main/", bucket(Service::Azure, "account", "container", "of/main")),
            ("az://account", None),
            ("az://account/", None),
            ("az://a.example.org/container/x", None),
            ("az://a:b@c/container/x", None),
        ] {
            assert_eq!(Location::parse(url), expected, "{url}");
        }
    }

    #[test]
    fn an_answer_that_means_another_conflict_is_none_about_the_object() {
        for (service, text, expected) in [
            (Service::Azure, "409 Conflict: <Code>BlobAlreadyExists</Code>", true),
            (Service::Azure, "412: <Code>ConditionNotMet</Code>", true),
            (Service::Azure, "409 Conflict: <Code>ContainerBeingDeleted</Code>", false),
            (Service::Gcs, "412 Precondition Failed", true),
            (Service::S3, "412 Precondition Failed", true),
            (Service::S3, "409 Conflict: <Code>ConditionalRequestConflict</Code>", false),
        ] {
            assert_eq!(service.says_exists(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(url: String) {
            let _ = (Location::parse(&url), Location::parse(&format!("az://{url}")), Location::parse(&format!("s3://{url}")));
        }
    }
}
