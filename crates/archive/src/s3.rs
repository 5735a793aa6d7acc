//! The client of S3 and of what speaks like it.

use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::{ObjectStore, Result};

use crate::connection::Connection;
use crate::credentials::Credentials;

/// Variables by which a host or a pod gets an identity.
const IDENTITY: [&str; 6] = [
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
];

/// Makes a client. `credentials`: None for the identity of the host.
pub(crate) fn client(with: &Connection<'_>, credentials: Option<Credentials>) -> Result<Arc<dyn ObjectStore>> {
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(with.bucket.name())
        .with_region(with.region)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_allow_http(true)
        .with_http_connector(with.http.clone())
        .with_retry(with.retry());
    if let Some(endpoint) = with.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    match credentials {
        Some(Credentials::Key { id, secret, session }) => {
            builder = builder.with_access_key_id(id).with_secret_access_key(secret);
            if let Some(session) = session {
                builder = builder.with_token(session);
            }
        }
        _ => {
            for name in IDENTITY {
                if let (Ok(value), Ok(key)) =
                    (std::env::var(name), name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>())
                {
                    builder = builder.with_config(key, value);
                }
            }
        }
    }
    Ok(Arc::new(builder.build()?))
}
