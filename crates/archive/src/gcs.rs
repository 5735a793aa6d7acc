//! The client of Google Cloud Storage.

use std::sync::Arc;

use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::{ObjectStore, Result};

use crate::connection::Connection;
use crate::credentials::Credentials;

/// Makes a client. `credentials`: None for the identity of the host.
pub(crate) fn client(with: &Connection<'_>, credentials: Option<Credentials>) -> Result<Arc<dyn ObjectStore>> {
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name(with.bucket.name())
        .with_http_connector(with.http.clone())
        .with_retry(with.retry());
    if let Some(endpoint) = with.endpoint {
        builder = builder.with_base_url(endpoint);
    }
    match credentials {
        Some(Credentials::ServiceAccount(key)) => builder = builder.with_service_account_key(key),
        Some(Credentials::Token(token)) => builder = builder.with_bearer_token(token),
        // The application default credentials of this user, else the metadata server.
        _ => {}
    }
    Ok(Arc::new(builder.build()?))
}
