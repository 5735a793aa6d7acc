//! The client of Azure Blob Storage.

use std::sync::Arc;

use object_store::azure::{MicrosoftAzureBuilder, split_sas};
use object_store::{ObjectStore, Result};

use crate::connection::Connection;
use crate::credentials::Credentials;

/// Makes a client. `credentials`: None for the identity of the host.
pub(crate) fn client(with: &Connection<'_>, credentials: Option<Credentials>) -> Result<Arc<dyn ObjectStore>> {
    let mut builder = MicrosoftAzureBuilder::new()
        .with_account(with.bucket.account())
        .with_container_name(with.bucket.name())
        .with_allow_http(true)
        .with_http_connector(with.http.clone())
        .with_retry(with.retry());
    if let Some(endpoint) = with.endpoint {
        builder = builder.with_endpoint(endpoint.into());
    }
    if let Ok(authority) = std::env::var("AZURE_AUTHORITY_HOST") {
        builder = builder.with_authority_host(authority.trim_end_matches('/'));
    }
    builder = match credentials {
        Some(Credentials::AccountKey(key)) => builder.with_access_key(key),
        Some(Credentials::SharedAccess(signature)) => builder.with_sas_authorization(split_sas(&signature)?),
        Some(Credentials::Application { tenant, client, secret }) => {
            builder.with_client_secret_authorization(client, secret, tenant)
        }
        Some(Credentials::Token(token)) => builder.with_bearer_token_authorization(token),
        _ => identity(builder),
    };
    Ok(Arc::new(builder.build()?))
}

/// Adds the variables by which a host or a pod gets an identity: a workload identity if there is a file with its token, else a managed one.
fn identity(mut builder: MicrosoftAzureBuilder) -> MicrosoftAzureBuilder {
    let variable = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    if let Some(client) = variable("AZURE_CLIENT_ID") {
        builder = builder.with_client_id(client);
    }
    if let (Some(tenant), Some(file)) = (variable("AZURE_TENANT_ID"), variable("AZURE_FEDERATED_TOKEN_FILE")) {
        builder = builder.with_tenant_id(tenant).with_federated_token_file(file);
    }
    if let Some(endpoint) = variable("IDENTITY_ENDPOINT") {
        builder = builder.with_msi_endpoint(endpoint);
    }
    builder
}
